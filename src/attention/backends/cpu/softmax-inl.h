// Online softmax over a tile of scores. Included by kernels.cc only.
#if defined(TENON_ATTENTION_CPU_SOFTMAX_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TENON_ATTENTION_CPU_SOFTMAX_INL_H
#undef TENON_ATTENTION_CPU_SOFTMAX_INL_H
#else
#define TENON_ATTENTION_CPU_SOFTMAX_INL_H
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "attention/backends/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tenon::cpu_attention {
namespace HWY_NAMESPACE {
namespace {

// What happens to a row's scores before the softmax, in this order.
struct ScoreRules {
  const float* k_scales = nullptr;  // [kTileKeys], of integer cells
  float soft_cap = 0.0F;            // 0: off
  float slope = 0.0F;               // ALiBi's; 0: off
  int32_t distance = 0;             // position of the tile's first key minus the query's
};

// scores := final scores in `range`, minus infinity in the rest of its vectors; returns the
// largest. Requires: a range that is not empty.
float finish_scores(float* HWY_RESTRICT scores, KeyRange range, const ScoreRules& rules) {
  const F32 d;
  constexpr auto kStep = static_cast<int32_t>(kLanes);
  const V lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  V top = lowest;
  for (int32_t key = range.begin / kStep * kStep; key < range.end; key += kStep) {
    V s = hn::LoadU(d, scores + key);
    if (rules.k_scales != nullptr) s = hn::Mul(s, hn::LoadU(d, rules.k_scales + key));
    if (rules.soft_cap > 0) {
      const V cap = hn::Set(d, rules.soft_cap);
      s = hn::Mul(cap, hn::Tanh(d, hn::Div(s, cap)));
    }
    if (rules.slope != 0.0F) {
      const V distance = hn::Iota(d, static_cast<float>(rules.distance + key));
      s = hn::MulAdd(hn::Set(d, rules.slope), distance, s);
    }
    if (key < range.begin || key + kStep > range.end) {
      const V index = hn::Iota(d, static_cast<float>(key));
      const V first = hn::Set(d, static_cast<float>(range.begin));
      const V last = hn::Set(d, static_cast<float>(range.end));
      s = hn::IfThenElse(hn::And(hn::Ge(index, first), hn::Lt(index, last)), s, lowest);
    }
    top = hn::Max(top, s);
    hn::StoreU(s, d, scores + key);
  }
  return hn::GetLane(hn::MaxOfLanes(d, top));
}

// alpha[i] := exp(max[i] - alpha[i]), max[i] := alpha[i], which come in as the new maxima, for
// `count` rows: the factors for what was summed before. Reads and writes up to a vector more.
void exchange_maxima(float* HWY_RESTRICT alpha, float* HWY_RESTRICT max, int32_t count) {
  const F32 d;
  constexpr auto kStep = static_cast<int32_t>(kLanes);
  const V one = hn::Set(d, 1.0F);
  int32_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    const V before = hn::LoadU(d, max + i);
    const V now = hn::LoadU(d, alpha + i);
    hn::StoreU(hn::IfThenElse(hn::Eq(before, now), one, hn::Exp(d, hn::Sub(before, now))), d,
               alpha + i);
    hn::StoreU(now, d, max + i);
  }
  for (; i < count; ++i) {
    const float now = alpha[i];
    alpha[i] = max[i] == now ? 1.0F : hn::GetLane(hn::Exp(d, hn::Set(d, max[i] - now)));
    max[i] = now;
  }
}

// scores := exp(score - max), times the values' scales if they have any, in the vectors of `range`;
// returns the sum without those scales. One lane sum per tile position modulo the vector, so that
// where the range begins does not matter.
float weights_of_scores(float* HWY_RESTRICT scores,
                        KeyRange range,
                        float max,
                        const float* v_scales) {
  const F32 d;
  constexpr auto kStep = static_cast<int32_t>(kLanes);
  const V shift = hn::Set(d, max);
  V total = hn::Zero(d);
  for (int32_t key = range.begin / kStep * kStep; key < range.end; key += kStep) {
    V p = hn::Exp(d, hn::Sub(hn::LoadU(d, scores + key), shift));
    total = hn::Add(total, p);
    if (v_scales != nullptr) p = hn::Mul(p, hn::LoadU(d, v_scales + key));
    hn::StoreU(p, d, scores + key);
  }
  return hn::GetLane(hn::SumOfLanes(d, total));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tenon::cpu_attention
HWY_AFTER_NAMESPACE();

#endif
