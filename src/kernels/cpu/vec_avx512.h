// Vectors of 16 lanes for AVX-512 F/BW/DQ/VL with VNNI. The interface is described in
// vec_portable.h. Include only in units compiled for these instructions.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/cpu/unroll.h"

namespace tenon::cpu {

struct VecAvx512 {
  static constexpr const char* kName = "avx512";
  static constexpr int kLanes = 16;
  static constexpr int kQuantTile = 8;
  static constexpr int kFloatTile = 8;
  static constexpr int kFloatVectors = 2;

  using F = __m512;
  using I = __m512i;
  using B = __m512i;

  static __mmask16 first(int64_t count) { return static_cast<__mmask16>((1U << count) - 1U); }

  static F set1(float value) { return _mm512_set1_ps(value); }
  static F load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, F value) { _mm512_storeu_ps(to, value); }
  static F load_partial(const float* from, int64_t count) {
    return _mm512_maskz_loadu_ps(first(count), from);
  }
  static void store_partial(float* to, F value, int64_t count) {
    _mm512_mask_storeu_ps(to, first(count), value);
  }
  static F load_f16(const void* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
  }
  static F load_bf16(const void* from) {
    const I wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }

  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F swap_pairs(F a) { return _mm512_permute_ps(a, 0xB1); }
  static float reduce_add(F a) { return _mm512_reduce_add_ps(a); }
  static float reduce_max(F a) { return _mm512_reduce_max_ps(a); }
  static F pow2_of_shifted(F shifted) {
    const I biased = _mm512_add_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(biased, 23));
  }

  static I zero_int() { return _mm512_setzero_si512(); }
  static I add(I a, I b) { return _mm512_add_epi32(a, b); }
  static F to_float(I a) { return _mm512_cvtepi32_ps(a); }
  static I max_abs_bits(I so_far, F x) {
    return _mm512_max_epi32(
        so_far, _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7FFFFFFF)));
  }
  static int32_t reduce_max(I a) { return _mm512_reduce_max_epi32(a); }
  static int32_t reduce_add(I a) { return _mm512_reduce_add_epi32(a); }
  static I round_to_int(F x) { return _mm512_cvtps_epi32(x); }
  static void store_int16(int16_t* to, I a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(a));
  }

  static B load_bytes(const void* from) { return _mm512_loadu_si512(from); }
  static B bits(B a, uint8_t mask) {
    return _mm512_and_si512(a, _mm512_set1_epi8(static_cast<char>(mask)));
  }
  static B either(B a, B b) { return _mm512_or_si512(a, b); }
  template <int kShift>
  static B shift(B a) {
    if constexpr (kShift > 0) return _mm512_slli_epi16(a, kShift);
    if constexpr (kShift < 0) return _mm512_srli_epi16(a, -kShift);
    return a;
  }
  template <int kBits, int kChunks, int kTokens, typename Chunk>
  [[gnu::always_inline]] static void dots(const Chunk& chunk,
                                          const int16_t* a,
                                          int64_t stride,
                                          I* out) {
    // vpdpwssd takes 4 cycles and two start in each: 8 independent chains, walked side by side,
    // keep the units busy without a deep look-ahead.
    constexpr int kSplit = kTokens >= 8 ? 1 : kTokens >= 4 ? 2 : 4;
    I sums[kTokens][kSplit];
    unrolled<kChunks>([&](auto c) {
      const B w = chunk(c);
      const I words[2] = {even_words<kBits>(w), odd_words<kBits>(w)};
      unrolled<2>([&](auto half) {
        constexpr int kStep = 2 * c + half;
        unrolled<kTokens>([&](auto t) {
          int32_t columns;
          std::memcpy(&columns, a + t * stride + 2 * kStep, sizeof(columns));
          I& sum = sums[t][kStep % kSplit];
          sum = _mm512_dpwssd_epi32(kStep < kSplit ? zero_int() : sum, words[half],
                                    _mm512_set1_epi32(columns));
        });
      });
    });
    unrolled<kTokens>([&](auto t) {
      if constexpr (kSplit == 4)
        sums[t][0] = add(add(sums[t][0], sums[t][1]), add(sums[t][2], sums[t][3]));
      if constexpr (kSplit == 2) sums[t][0] = add(sums[t][0], sums[t][1]);
      out[t] = sums[t][0];
    });
  }

 private:
  template <int kBits>
  static I even_words(B w) {
    if constexpr (kBits == 8) return _mm512_srai_epi16(_mm512_slli_epi16(w, 8), 8);
    return _mm512_and_si512(w, _mm512_set1_epi16(0x00FF));
  }
  template <int kBits>
  static I odd_words(B w) {
    if constexpr (kBits == 8) return _mm512_srai_epi16(w, 8);
    return _mm512_srli_epi16(w, 8);
  }
};

}  // namespace tenon::cpu
