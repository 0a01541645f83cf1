// sum[16 x 8] += A[16 x 16] * B[16 x 8] on the tensor cores, one warp (PTX ISA, mma.m16n8k16).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace tenon {

template <typename T>
__device__ __forceinline__ void multiply(
    float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void multiply<__nv_bfloat16>(
    float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void multiply<__half>(
    float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Two of them: 32 columns of 16 rows of W (lane's 8 columns of rows g and g + 8) with 8 tokens
// (lane's 8 columns of token g), in the arrangement of skinny_linear.h.
template <typename T>
__device__ __forceinline__ void multiply_32_columns(float (&sum)[4],
                                                    const uint4& low,
                                                    const uint4& high,
                                                    const uint4& x) {
  multiply<T>(sum, low.x, high.x, low.y, high.y, x.x, x.y);
  multiply<T>(sum, low.z, high.z, low.w, high.w, x.z, x.w);
}

}  // namespace tenon
