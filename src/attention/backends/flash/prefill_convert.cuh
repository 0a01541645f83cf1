// 8-bit cells as the 16-bit numbers that wgmma takes from shared memory, exactly. Part of
// prefill_kernel.cuh.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "attention/backends/flash/decode_cells.cuh"
#include "attention/backends/flash/prefill_ptx.cuh"

namespace tenon::flash {

// Four cells to two pairs.
template <Cells kCells, bool kBf16>
__device__ __forceinline__ void convert_cells(uint32_t cells, uint32_t& low, uint32_t& high) {
  CellFormat<kCells>::neighbours(cells, low, high);
  if constexpr (kBf16) {
    const float2 a = __half22float2(reinterpret_cast<const __half2&>(low));
    const float2 b = __half22float2(reinterpret_cast<const __half2&>(high));
    low = ptx::pack_16<true>(a.x, a.y);
    high = ptx::pack_16<true>(b.x, b.y);
  }
}

// The same of integers: 0x4300 + u is 128 + u in bf16 for u below 128, and so many more than u as
// 0x4300 or, of a negative integer's lower seven bits, 0x4380 is.
template <>
__device__ __forceinline__ void convert_cells<Cells::kI8, true>(uint32_t cells,
                                                                uint32_t& low,
                                                                uint32_t& high) {
  const auto expand = [&](uint32_t order) {
    const uint32_t bytes = __byte_perm(cells, 0U, order);
    const uint32_t number = (bytes & 0x007F007FU) | 0x43004300U;
    const uint32_t bias = (bytes & 0x00800080U) | 0x43004300U;
    uint32_t pair;
    asm("sub.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(number), "r"(bias));
    return pair;
  };
  low = expand(0x4140);
  high = expand(0x4342);
}

}  // namespace tenon::flash
