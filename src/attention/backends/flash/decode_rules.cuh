// What a layer does to scores besides scaling them (Extras), and to the scores and weights of
// quantised cells. Part of decode_kernel.cuh. Kernels with rules keep scores in units of log2 e, as
// their exponentials want them.
#pragma once

#include <cmath>

#include "attention/backends/flash/decode_cells.cuh"
#include "attention/backends/flash/mma.cuh"

namespace tenon::flash {

// e^x in base 2, 0 for -inf.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float log2_fast(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

inline constexpr float kLog2E = 1.4426950408889634F;

// Of a query row.
struct RowRule {
  float factor;  // from q . k to units of log2 e
  float slope;   // ALiBi's, in units of log2 e a token
  int position;
  int visible;  // keys before this one are seen, but for the window
};

// cap tanh(score / cap), both sides in units of log2 e. tanh x = 1 - 2 / (1 + e^2x), infinities
// included.
__device__ __forceinline__ float capped(float score, const Extras& extras) {
  const float e = exp2_fast(score * extras.two_over_cap);
  return extras.soft_cap * kLog2E * (1.0F - 2.0F * reciprocal_fast(1.0F + e));
}

// The scales of one key of Cells::kI8. What lies behind a row's end is not looked at.
struct TokenScales {
  float k = 1.0F;
  float v = 1.0F;
  float log2_v = 0.0F;

  TokenScales() = default;
  __device__ TokenScales(uint32_t k_address, uint32_t v_address, bool exists) {
    k = exists ? load_shared_float(k_address) : 0.0F;
    v = exists ? load_shared_float(v_address) : 0.0F;
    // A head of zeros has scale 0; its weight must not make others' overflow.
    log2_v = fmaxf(log2_fast(v), -64.0F);
  }
};

// The score that the key's weight would have as V meets it.
template <bool kTokenScales>
__device__ __forceinline__ float weighed(float score, const TokenScales& token) {
  if constexpr (kTokenScales) return score + token.log2_v;
  return score;
}

// A score of `key` by the rules of its row; -inf where the row does not see the key.
__device__ __forceinline__ float ruled(
    const Extras& extras, const RowRule& row, float product, int key, int end) {
  float score = product * row.factor;
  if (extras.soft_cap > 0.0F) score = capped(score, extras);
  if (extras.alibi != nullptr) score += row.slope * static_cast<float>(key - row.position);
  const bool seen = key < min(row.visible, end) && row.position - key < extras.window;
  return seen ? score : -INFINITY;
}

}  // namespace tenon::flash
