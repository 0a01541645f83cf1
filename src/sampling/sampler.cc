#include "sampling/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "sampling/draw.h"

namespace tenon {
namespace {

constexpr float kNegInf = -std::numeric_limits<float>::infinity();
// Log2 of the probability ratio to the best token below which a token cannot matter before others
// are exhausted; keeps the sorted part short. 2^-29 = 2e-9.
constexpr float kFirstCut = -29.0F;

bool better(const std::pair<float, int32_t>& a, const std::pair<float, int32_t>& b) {
  return a.first != b.first ? a.first > b.first : a.second < b.second;
}

}  // namespace

int32_t argmax(std::span<const float> values) {
  // Independent lanes, so that the compiler can use vector registers; then the first index of the
  // maximum.
  constexpr size_t kLanes = 32;
  std::array<float, kLanes> best;
  best.fill(kNegInf);
  const size_t whole = values.size() / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float value = values[i + lane];
      best[lane] = value > best[lane] ? value : best[lane];
    }
  }
  float top = kNegInf;
  for (const float value : best) top = std::max(top, value);
  for (size_t i = whole; i < values.size(); ++i) top = values[i] > top ? values[i] : top;
  if (top == kNegInf) return -1;
  const auto found = std::find(values.begin(), values.end(), top);
  return static_cast<int32_t>(found - values.begin());
}

RequestSampler::RequestSampler(SamplingParams params,
                               std::span<const int32_t> prompt,
                               std::span<const int32_t> end_tokens,
                               uint64_t fallback_seed)
    : params_(std::move(params)),
      end_tokens_(end_tokens.begin(), end_tokens.end()),
      seed_(params_.seed ? static_cast<uint64_t>(*params_.seed) : fallback_seed) {
  // Each token once, so that the order in which biases are applied does not matter.
  auto& biases = params_.logit_bias;
  std::sort(biases.begin(), biases.end());
  size_t kept = 0;
  for (const auto& bias : biases) {
    if (kept > 0 && biases[kept - 1].first == bias.first) {
      float& sum = biases[kept - 1].second;
      sum = sum <= kLogitBiasBan ? sum : sum + bias.second;  // sorted: a ban comes first, and stays
    } else {
      biases[kept++] = bias;
    }
  }
  biases.resize(kept);
  if (params_.repetition_penalty != 1.0F) {
    for (const int32_t token : prompt) {
      if (in_seen_.emplace(token, true).second) seen_.push_back(token);
    }
  }
}

void RequestSampler::accept(int32_t token) {
  ++num_accepted_;
  if (params_.presence_penalty != 0.0F || params_.frequency_penalty != 0.0F)
    ++output_counts_[token];
  if (params_.repetition_penalty != 1.0F && in_seen_.emplace(token, true).second) {
    seen_.push_back(token);
  }
}

bool RequestSampler::is_eos(int32_t token) const {
  return std::find(end_tokens_.begin(), end_tokens_.end(), token) != end_tokens_.end();
}

bool RequestSampler::ends_with(int32_t token) const {
  const auto& stops = params_.stop_token_ids;
  if (std::find(stops.begin(), stops.end(), token) != stops.end()) return true;
  return !params_.ignore_eos && is_eos(token);
}

bool RequestSampler::adjusts_logits() const {
  return !params_.logit_bias.empty() || num_accepted_ < params_.min_tokens || !seen_.empty() ||
         !output_counts_.empty();
}

void RequestSampler::adjust(std::span<float> logits) const {
  const auto at = [&](int32_t token) -> float& { return logits[static_cast<size_t>(token)]; };
  for (const auto& [token, bias] : params_.logit_bias) {
    at(token) = bias <= kLogitBiasBan ? kNegInf : at(token) + bias;
  }
  if (num_accepted_ < params_.min_tokens) {
    for (const int32_t token : params_.stop_token_ids) at(token) = kNegInf;
    if (!params_.ignore_eos) {
      for (const int32_t token : end_tokens_) at(token) = kNegInf;
    }
  }
  for (const int32_t token : seen_) {
    float& logit = at(token);
    logit = logit > 0 ? logit / params_.repetition_penalty : logit * params_.repetition_penalty;
  }
  for (const auto& [token, count] : output_counts_) {
    at(token) -= params_.presence_penalty + params_.frequency_penalty * static_cast<float>(count);
  }
}

int32_t RequestSampler::draw(std::span<const float> logits, SamplerScratch& scratch) const {
  const int32_t best = argmax(logits);
  if (best < 0) return -1;
  const float top = logits[static_cast<size_t>(best)];
  if (!std::isfinite(top)) return top > 0 ? best : -1;  // +inf: that token, with certainty
  const float scale = draw::log2_scale(params_.temperature);
  auto& candidates = scratch.candidates;
  const auto vocab = static_cast<int32_t>(logits.size());
  const int32_t top_k = params_.top_k <= 0 || params_.top_k >= vocab ? 0 : params_.top_k;
  const bool sorted = top_k > 0 || params_.top_p < 1.0F;
  const auto ratio = [&](float logit) { return draw::log2_ratio(logit, top, scale); };
  const auto weight = [&](float logit) { return draw::weight(ratio(logit)); };
  const auto sum = [&] {
    uint64_t total = 0;
    for (const auto& [logit, id] : candidates) total += weight(logit);
    return total;
  };

  // Collects (logit, id) of the tokens above `cut`.
  const auto collect = [&](float cut) {
    candidates.clear();
    for (int32_t id = 0; id < vocab; ++id) {
      const float logit = logits[static_cast<size_t>(id)];
      if (ratio(logit) >= cut) candidates.emplace_back(logit, id);
    }
  };
  // min_p keeps tokens whose probability is at least min_p times the best one's. It comes last:
  // top_p refers to the mass of what top_k leaves.
  const float min_p_cut = min_p_log2();
  // What is below has no weight.
  constexpr float kAll = -static_cast<float>(draw::kWeightBits);
  collect(sorted ? kFirstCut : std::max(min_p_cut, kAll));
  bool complete = !sorted;
  const auto collect_all = [&] {
    if (!complete) collect(kAll);
    complete = true;
  };
  if (top_k > 0) {
    const auto k = static_cast<size_t>(top_k);
    if (candidates.size() < k) collect_all();
    if (candidates.size() > k) {
      std::nth_element(candidates.begin(), candidates.begin() + top_k, candidates.end(), better);
      candidates.resize(k);
    }
  }
  if (params_.top_p < 1.0F) {
    uint64_t mass = 0;
    if (top_k > 0) {
      mass = sum();
    } else {
      for (const float logit : logits) mass += weight(logit);
    }
    const uint64_t wanted = draw::top_p_weight(mass, params_.top_p);
    // In a flat distribution the short list does not reach top_p.
    if (top_k == 0 && sum() < wanted) collect_all();
    std::sort(candidates.begin(), candidates.end(), better);
    uint64_t kept = 0;
    size_t count = 0;
    while (kept < wanted) kept += weight(candidates[count++].first);
    candidates.resize(count);
  }
  if (sorted) {
    std::erase_if(candidates, [&](const auto& item) { return ratio(item.first) < min_p_cut; });
    // The order of a draw is that of the ids, whatever was cut.
    std::sort(candidates.begin(), candidates.end(),
              [](const auto& a, const auto& b) { return a.second < b.second; });
  }
  const uint64_t point = draw::point(seed_, static_cast<uint64_t>(num_accepted_), sum());
  uint64_t passed = 0;
  for (const auto& [logit, id] : candidates) {
    passed += weight(logit);
    if (passed > point) return id;
  }
  return best;  // not reached: the best token has weight, and the point lies below the sum
}

float RequestSampler::min_p_log2() const {
  return params_.min_p > 0.0F ? std::log2(params_.min_p) : kNegInf;
}

Result<int32_t> RequestSampler::sample(std::span<const float> logits,
                                       SamplerScratch& scratch) const {
  std::span<const float> final_logits = logits;
  if (adjusts_logits()) {
    scratch.logits.assign(logits.begin(), logits.end());
    adjust(scratch.logits);
    final_logits = scratch.logits;
  }
  const int32_t token = params_.greedy() ? argmax(final_logits) : draw(final_logits, scratch);
  if (token < 0) return argmax(logits) >= 0 ? all_tokens_banned() : logits_are_no_numbers();
  return token;
}

Status all_tokens_banned() {
  return invalid_argument(
      "no token is left to sample: logit_bias, or stop_token_ids with min_tokens, bans all");
}

Status logits_are_no_numbers() {
  return internal_error("no token can be sampled: the model's logits are not numbers");
}

}  // namespace tenon
