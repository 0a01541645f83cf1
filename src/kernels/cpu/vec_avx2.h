// Vectors of 8 lanes for AVX2 with FMA and F16C. The interface is described in vec_portable.h.
// Include only in units compiled for these instructions.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/cpu/unroll.h"

namespace tenon::cpu {

struct VecAvx2 {
  static constexpr const char* kName = "avx2";
  static constexpr int kLanes = 8;
  static constexpr int kQuantTile = 4;
  static constexpr int kFloatTile = 3;
  static constexpr int kFloatVectors = 4;

  using F = __m256;
  using I = __m256i;
  using B = __m256i;

  static __m256i first(int64_t count) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lane);
  }

  static F set1(float value) { return _mm256_set1_ps(value); }
  static F load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, F value) { _mm256_storeu_ps(to, value); }
  static F load_partial(const float* from, int64_t count) {
    return _mm256_maskload_ps(from, first(count));
  }
  static void store_partial(float* to, F value, int64_t count) {
    _mm256_maskstore_ps(to, first(count), value);
  }
  static F load_f16(const void* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(from)));
  }
  static F load_bf16(const void* from) {
    const I wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(from)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }

  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F min(F a, F b) { return _mm256_min_ps(a, b); }
  static F swap_pairs(F a) { return _mm256_permute_ps(a, 0xB1); }
  static float reduce_add(F a) {
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
  }
  static float reduce_max(F a) {
    __m128 max = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    max = _mm_max_ps(max, _mm_movehl_ps(max, max));
    return _mm_cvtss_f32(_mm_max_ss(max, _mm_movehdup_ps(max)));
  }
  static F pow2_of_shifted(F shifted) {
    const I biased = _mm256_add_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
  }

  static I zero_int() { return _mm256_setzero_si256(); }
  static I add(I a, I b) { return _mm256_add_epi32(a, b); }
  static F to_float(I a) { return _mm256_cvtepi32_ps(a); }
  static I max_abs_bits(I so_far, F x) {
    return _mm256_max_epi32(
        so_far, _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7FFFFFFF)));
  }
  static int32_t reduce_max(I a) {
    __m128i max = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    max = _mm_max_epi32(max, _mm_shuffle_epi32(max, 0x4E));
    return _mm_cvtsi128_si32(_mm_max_epi32(max, _mm_shuffle_epi32(max, 0xB1)));
  }
  static int32_t reduce_add(I a) {
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xB1)));
  }
  static I round_to_int(F x) { return _mm256_cvtps_epi32(x); }
  static void store_int16(int16_t* to, I a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1)));
  }

  static B load_bytes(const void* from) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(from));
  }
  static B bits(B a, uint8_t mask) {
    return _mm256_and_si256(a, _mm256_set1_epi8(static_cast<char>(mask)));
  }
  static B either(B a, B b) { return _mm256_or_si256(a, b); }
  template <int kShift>
  static B shift(B a) {
    if constexpr (kShift > 0) return _mm256_slli_epi16(a, kShift);
    if constexpr (kShift < 0) return _mm256_srli_epi16(a, -kShift);
    return a;
  }
  template <int kBits, int kChunks, int kTokens, typename Chunk>
  [[gnu::always_inline]] static void dots(const Chunk& chunk,
                                          const int16_t* a,
                                          int64_t stride,
                                          I* out) {
    unrolled<kChunks>([&](auto c) {
      const B w = chunk(c);
      const I words[2] = {even_words<kBits>(w), odd_words<kBits>(w)};
      unrolled<2>([&](auto half) {
        constexpr int kStep = 2 * c + half;
        unrolled<kTokens>([&](auto t) {
          int32_t columns;
          std::memcpy(&columns, a + t * stride + 2 * kStep, sizeof(columns));
          I sum = _mm256_madd_epi16(words[half], _mm256_set1_epi32(columns));
          if constexpr (kStep > 0) sum = add(out[t], sum);
          // Or GCC regroups these integer sums into trees, whose leaves do not fit the registers.
          asm("" : "+x"(sum));
          out[t] = sum;
        });
      });
    });
  }

 private:
  template <int kBits>
  static I even_words(B w) {
    if constexpr (kBits == 8) return _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8);
    return _mm256_and_si256(w, _mm256_set1_epi16(0x00FF));
  }
  template <int kBits>
  static I odd_words(B w) {
    if constexpr (kBits == 8) return _mm256_srai_epi16(w, 8);
    return _mm256_srli_epi16(w, 8);
  }
};

}  // namespace tenon::cpu
