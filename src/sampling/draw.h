// The arithmetic of a draw, for the host and for kernels, bit for bit the same on both.
//
// Purpose:       a token's share of the probability is a whole number, so that sums do not depend
//                on the order in which they are made: a request draws the same token on the CPU
//                and on a GPU, alone and in any batch, with the row split over any number of
//                threads.
// Thread safety: plain functions.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define TENON_HOST_DEVICE __host__ __device__
#else
#define TENON_HOST_DEVICE
#endif

namespace tenon::draw {

// Never fused: the CPU's baseline has no fused multiply-add to match.
TENON_HOST_DEVICE inline float multiply(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
TENON_HOST_DEVICE inline float add(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

// Log2 of a token's probability over the best one's, up to rounding: (logit - best) * scale. At
// most 0; never rising as the logit falls.
TENON_HOST_DEVICE inline float log2_ratio(float logit, float best, float scale) {
  return multiply(add(logit, -best), scale);
}

// log2(e) / temperature.
TENON_HOST_DEVICE inline float log2_scale(float temperature) {
  return 1.44269504F / temperature;
}

// 2^ratio in units of 2^-44, rounded down; nothing below one unit and for NaN. Relative error below
// 3e-7 where the units do not show. The sum over a vocabulary of kMaxVocab fits 64 bits.
inline constexpr int kWeightBits = 44;
inline constexpr int32_t kMaxVocab = (1 << 20) - 1;
TENON_HOST_DEVICE inline uint64_t weight(float ratio) {
  if (!(ratio >= static_cast<float>(-kWeightBits))) return 0;
  // Adding 1.5 * 2^23 rounds to a whole number, which the low bits of the sum then hold.
  constexpr float kRound = 12582912.0F;
  const float rounded = add(ratio, kRound);
  const int32_t whole = std::bit_cast<int32_t>(rounded) - std::bit_cast<int32_t>(kRound);
  const float f = add(ratio, -add(rounded, -kRound));
  // 2^f for |f| <= 1/2: minimax in relative error (9e-8), with 1 at f = 0.
  float p = 0.0013264727F;
  p = add(multiply(p, f), 0.009671513F);
  p = add(multiply(p, f), 0.055507336F);
  p = add(multiply(p, f), 0.24022242F);
  p = add(multiply(p, f), 0.6931470F);
  p = add(multiply(p, f), 1.0F);
  const int32_t bits = std::bit_cast<int32_t>(p) + (whole + kWeightBits) * (1 << 23);
  return static_cast<uint64_t>(static_cast<int64_t>(std::bit_cast<float>(bits)));
}

// The weight that top_p asks for out of `total`: at least 1, so that one token always stays.
TENON_HOST_DEVICE inline uint64_t top_p_weight(uint64_t total, float top_p) {
  const double wanted = ceil(static_cast<double>(total) * static_cast<double>(top_p));
  if (!(wanted >= 1.0)) return 1;
  if (wanted >= static_cast<double>(total)) return total;
  return static_cast<uint64_t>(wanted);
}

// SplitMix64's finaliser (Steele, Lea, Flood: Fast splittable pseudorandom number generators,
// 2014).
TENON_HOST_DEVICE inline uint64_t mix(uint64_t value) {
  value += 0x9E3779B97F4A7C15ULL;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
  return value ^ (value >> 31);
}

// Uniform in [0, total). Counter based: the draw of output number `counter` is a function of
// (seed, counter), so preemption and batching cannot shift it.
TENON_HOST_DEVICE inline uint64_t point(uint64_t seed, uint64_t counter, uint64_t total) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>((static_cast<Wide>(mix(mix(seed) ^ counter)) * total) >> 64);
}

}  // namespace tenon::draw
