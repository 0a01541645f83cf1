// Vectors of 4 lanes in the compiler's own vector types: the interface every vec_*.h has.
//   F: float lanes. I: int32 lanes. B: 4 bytes a lane.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/unroll.h"

namespace tenon::cpu {

struct VecPortable {
  static constexpr const char* kName = "portable";
  static constexpr int kLanes = 4;
  static constexpr int kQuantTile = 2;     // tokens that share one unpacking of quantised weights
  static constexpr int kFloatTile = 4;     // tokens of a float tile ...
  static constexpr int kFloatVectors = 2;  // ... and vectors of rows

  using F = float __attribute__((vector_size(16)));
  using I = int32_t __attribute__((vector_size(16)));
  using B = uint16_t __attribute__((vector_size(16)));

  static F set1(float value) { return F{value, value, value, value}; }
  static F load(const float* from) {
    F value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  static void store(float* to, F value) { std::memcpy(to, &value, sizeof(value)); }
  // Lanes from `count` on read as 0 and are not written.
  static F load_partial(const float* from, int64_t count) {
    F value = set1(0.0F);
    std::memcpy(&value, from, static_cast<size_t>(count) * sizeof(float));
    return value;
  }
  static void store_partial(float* to, F value, int64_t count) {
    std::memcpy(to, &value, static_cast<size_t>(count) * sizeof(float));
  }
  static F load_f16(const void* from) {
    using Half4 = uint16_t __attribute__((vector_size(8)));
    Half4 halves;
    std::memcpy(&halves, from, sizeof(halves));
    const I wide = __builtin_convertvector(halves, I);
    const I magnitude = wide & 0x7FFF;
    // The exponent is rebased by a multiplication, which also normalises subnormals; infinity and
    // NaN then only lack the upper exponent bits.
    const I rebased = (I)((F)(magnitude << 13) * set1(0x1p112F));
    const I special = (magnitude >= 0x7C00) & 0x7F800000;
    return (F)(rebased | special | ((wide & 0x8000) << 16));
  }
  static F load_bf16(const void* from) {
    using Half4 = uint16_t __attribute__((vector_size(8)));
    Half4 halves;
    std::memcpy(&halves, from, sizeof(halves));
    return (F)(__builtin_convertvector(halves, I) << 16);
  }

  static F add(F a, F b) { return a + b; }
  static F sub(F a, F b) { return a - b; }
  static F mul(F a, F b) { return a * b; }
  static F div(F a, F b) { return a / b; }
  static F fma(F a, F b, F c) { return a * b + c; }
  // The second operand where either is NaN.
  static F max(F a, F b) { return a > b ? a : b; }
  static F min(F a, F b) { return a < b ? a : b; }
  static F swap_pairs(F a) { return __builtin_shufflevector(a, a, 1, 0, 3, 2); }
  static float reduce_add(F a) { return (a[0] + a[2]) + (a[1] + a[3]); }
  static float reduce_max(F a) {
    const F b = max(a, __builtin_shufflevector(a, a, 2, 3, 0, 1));
    return b[0] > b[1] ? b[0] : b[1];
  }
  // 2^n for a float that is 1.5 * 2^23 + n: the low bits of its mantissa are n.
  static F pow2_of_shifted(F shifted) { return (F)(((I)shifted + 127) << 23); }

  static I zero_int() { return I{0, 0, 0, 0}; }
  static F to_float(I a) { return __builtin_convertvector(a, F); }
  // Maximum of `so_far` and the bits of |x|, which order like the values and put NaN above
  // infinity.
  static I max_abs_bits(I so_far, F x) {
    const I bits = (I)x & 0x7FFFFFFF;
    return bits > so_far ? bits : so_far;
  }
  static int32_t reduce_max(I a) {
    int32_t result = a[0];
    for (int i = 1; i < kLanes; ++i) result = a[i] > result ? a[i] : result;
    return result;
  }
  static int32_t reduce_add(I a) { return (a[0] + a[1]) + (a[2] + a[3]); }
  // Rounds to nearest even. Requires: |x| < 2^22.
  static I round_to_int(F x) {
    const F shift = set1(0x1.8p23F);
    return (I)(x + shift) - (I)shift;
  }
  static void store_int16(int16_t* to, I a) {
    for (int i = 0; i < kLanes; ++i) to[i] = static_cast<int16_t>(a[i]);
  }
  static I add(I a, I b) { return a + b; }

  static B load_bytes(const void* from) {
    B value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  static B bits(B a, uint8_t mask) { return a & static_cast<uint16_t>(mask * 0x0101); }
  static B either(B a, B b) { return a | b; }
  template <int kShift>  // left, or right when negative; bits move between neighbouring bytes
  static B shift(B a) {
    if constexpr (kShift >= 0) return a << kShift;
    return a >> -kShift;
  }
  // out[t], per lane: sum over c < kChunks of the 4 products of chunk(c) and a[t * stride + 4c..];
  // |a| <= kActivationMax. A chunk's bytes are columns 0, 2, 1, 3 of its four, unsigned numbers of
  // kBits, or signed ones if those are 8.
  template <int kBits, int kChunks, int kTokens, typename Chunk>
  [[gnu::always_inline]] static void dots(const Chunk& chunk,
                                          const int16_t* a,
                                          int64_t stride,
                                          I* out) {
    // Products are taken in 16 bits, of the high and the low 7 bits of the activations. How many
    // chunks a sum of them holds: each adds two products to a lane.
    constexpr int kLargest = kBits == 8 ? 128 : (1 << kBits) - 1;
    constexpr int kFit = 32767 / (2 * kLargest * 127);
    constexpr int kRun = kFit < kChunks ? kFit : kChunks;
    static_assert(kRun >= 1 && kChunks % kRun == 0);
    Short8 high[kTokens];
    Short8 low[kTokens];
    unrolled<kTokens>([&](auto t) { out[t] = zero_int(); });
    unrolled<kChunks>([&](auto c) {
      const B w = chunk(c);
      const Short8 even = kBits == 8 ? (Short8)(w << 8) >> 8 : (Short8)(w & 0x00FF);
      const Short8 odd = kBits == 8 ? (Short8)w >> 8 : (Short8)(w >> 8);
      unrolled<kTokens>([&](auto t) {
        const Short8 x_even = broadcast_pair(a + t * stride + 4 * c);
        const Short8 x_odd = broadcast_pair(a + t * stride + 4 * c + 2);
        const Short8 high_sum = even * (x_even >> 7) + odd * (x_odd >> 7);
        const Short8 low_sum = even * (x_even & 127) + odd * (x_odd & 127);
        high[t] = c % kRun == 0 ? high_sum : high[t] + high_sum;
        low[t] = c % kRun == 0 ? low_sum : low[t] + low_sum;
        if constexpr (c % kRun == kRun - 1) {
          out[t] += (sum_of_pairs(high[t]) << 7) + sum_of_pairs(low[t]);
        }
      });
    });
  }

 private:
  using Short8 = int16_t __attribute__((vector_size(16)));
  static Short8 broadcast_pair(const int16_t* from) {
    int32_t pair;
    std::memcpy(&pair, from, sizeof(pair));
    return (Short8)I{pair, pair, pair, pair};
  }
  static I sum_of_pairs(Short8 words) { return (((I)words << 16) >> 16) + ((I)words >> 16); }
};

}  // namespace tenon::cpu
