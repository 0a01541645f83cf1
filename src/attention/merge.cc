#include "attention/merge.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace tenon {

void merge_states(std::span<float> out_a, float& lse_a, std::span<const float> out_b, float lse_b) {
  TENON_CHECK_EQ(out_a.size(), out_b.size());
  constexpr float kEmpty = -std::numeric_limits<float>::infinity();
  if (lse_b == kEmpty) {
    if (lse_a == kEmpty) std::fill(out_a.begin(), out_a.end(), 0.0F);
    return;
  }
  if (lse_a == kEmpty) {
    std::copy(out_b.begin(), out_b.end(), out_a.begin());
    lse_a = lse_b;
    return;
  }
  const double top = std::max(lse_a, lse_b);
  const double weight_a = std::exp(lse_a - top);
  const double weight_b = std::exp(lse_b - top);
  const double total = weight_a + weight_b;
  for (size_t i = 0; i < out_a.size(); ++i) {
    out_a[i] = static_cast<float>((weight_a * out_a[i] + weight_b * out_b[i]) / total);
  }
  lse_a = static_cast<float>(top + std::log(total));
}

}  // namespace tenon
