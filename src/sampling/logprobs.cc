#include "sampling/logprobs.h"

#include <algorithm>
#include <cmath>

namespace tenon {

TokenLogprobs make_logprobs(std::span<const float> logits,
                            float log_sum_exp,
                            int32_t token,
                            int32_t num_top) {
  TokenLogprobs result;
  result.token = token;
  // log_sum_exp is at least the largest logit up to rounding; a probability never exceeds 1.
  const auto logprob = [&](int32_t id) {
    return std::min(0.0F, logits[static_cast<size_t>(id)] - log_sum_exp);
  };
  result.logprob = logprob(token);
  if (num_top <= 0) return result;
  // A heap of the best so far with the worst of them at the front.
  const auto better = [&](int32_t a, int32_t b) {
    const float la = logits[static_cast<size_t>(a)];
    const float lb = logits[static_cast<size_t>(b)];
    return la != lb ? la > lb : a < b;
  };
  std::vector<int32_t> heap;
  heap.reserve(static_cast<size_t>(num_top) + 1);
  for (int32_t id = 0; id < static_cast<int32_t>(logits.size()); ++id) {
    if (static_cast<int32_t>(heap.size()) == num_top) {
      if (!better(id, heap.front())) continue;
      std::pop_heap(heap.begin(), heap.end(), better);
      heap.pop_back();
    }
    heap.push_back(id);
    std::push_heap(heap.begin(), heap.end(), better);
  }
  std::sort_heap(heap.begin(), heap.end(), better);
  for (const int32_t id : heap) result.top.emplace_back(id, logprob(id));
  return result;
}

}  // namespace tenon
