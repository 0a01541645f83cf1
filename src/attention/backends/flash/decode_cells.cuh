// 8-bit cells as operands of matrix products in f16: every e4m3 and every small integer is one
// exactly. Part of decode_kernel.cuh.
//
// A stage holds a token's K and V in rows of whole 128 bytes, its pieces of 16 bytes swizzled as in
// KvLayout::kLBHNCSwizzled (piece p at p ^ token % 8). Products do not mind in which order features
// are summed, nor which token is which row, as long as both operands agree; so a thread takes 16
// bytes of K at a time, which make four products, and rows of a product are tokens in an order in
// which these reads meet no bank twice (row_token()). V is transposed in pairs of bytes: what
// ldmatrix takes for a number of 16 bits is two features of a token, and what it gives a thread are
// the same two features of two tokens.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "attention/backends/flash/decode.h"

namespace tenon::flash {

// Row r of 8 rows of a product is this one of 8 tokens.
__device__ __forceinline__ int row_token(int row) {
  return (row & 1) * 4 + (row >> 1);
}

// From four bytes to two pairs of f16, in the order of the lower half and the upper half.
template <Cells kCells>
struct CellFormat;

template <>
struct CellFormat<Cells::kF8> {
  // Bytes (0, 1) and (2, 3).
  __device__ static __forceinline__ void neighbours(uint32_t bytes, uint32_t& low, uint32_t& high) {
    asm("{\n"
        ".reg .b16 l, h;\n"
        "mov.b32 {l, h}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, l;\n"
        "cvt.rn.f16x2.e4m3x2 %1, h;\n"
        "}"
        : "=r"(low), "=r"(high)
        : "r"(bytes));
  }
  // Bytes (0, 2) and (1, 3).
  __device__ static __forceinline__ void alternate(uint32_t bytes, uint32_t& even, uint32_t& odd) {
    neighbours(__byte_perm(bytes, 0U, 0x3120), even, odd);
  }
};

template <>
struct CellFormat<Cells::kI8> {
  __device__ static __forceinline__ void neighbours(uint32_t bytes, uint32_t& low, uint32_t& high) {
    expand(bytes, low, high, 0x4140, 0x4342);
  }
  __device__ static __forceinline__ void alternate(uint32_t bytes, uint32_t& even, uint32_t& odd) {
    expand(bytes, even, odd, 0x4240, 0x4341);
  }

 private:
  // 0x6400 + b is 1024 + b in f16; b is the integer plus 128.
  __device__ static __forceinline__ void expand(
      uint32_t bytes, uint32_t& first, uint32_t& second, uint32_t order, uint32_t other_order) {
    const uint32_t biased = bytes ^ 0x80808080U;
    first = without_bias(__byte_perm(biased, 0x64646464U, order));
    second = without_bias(__byte_perm(biased, 0x64646464U, other_order));
  }
  __device__ static __forceinline__ uint32_t without_bias(uint32_t pair) {
    uint32_t difference;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(difference) : "r"(pair), "r"(0x64806480U));
    return difference;
  }
};

__device__ __forceinline__ uint4 load_shared_16(uint32_t address) {
  uint4 words;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(address)
               : "memory");
  return words;
}
__device__ __forceinline__ float load_shared_float(uint32_t address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}

// bf16 queries as f16: scaled by a power of two that leaves them exact, but for numbers that vanish
// beside the row's largest.
class QueryScale {
 public:
  // Of a row whose largest magnitude is `largest`.
  __device__ explicit QueryScale(float largest) {
    const uint32_t exponent = min(max(__float_as_uint(largest) >> 23, 30U), 254U);
    multiplier_ = __uint_as_float((268U - exponent) << 23);  // the largest becomes 2^14 or more
    inverse_ = __uint_as_float((exponent - 14U) << 23);
  }
  __device__ static float larger_of(uint32_t pair, float largest) {
    return fmaxf(largest, fmaxf(fabsf(low(pair)), fabsf(high(pair))));
  }
  __device__ uint32_t to_half(uint32_t pair) const {
    const __half2 half = __floats2half2_rn(low(pair) * multiplier_, high(pair) * multiplier_);
    return reinterpret_cast<const uint32_t&>(half);
  }
  // What scores are to be multiplied by.
  __device__ float inverse() const { return inverse_; }

 private:
  __device__ static float low(uint32_t pair) { return __uint_as_float(pair << 16); }
  __device__ static float high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000U); }

  float multiplier_, inverse_;
};

}  // namespace tenon::flash
