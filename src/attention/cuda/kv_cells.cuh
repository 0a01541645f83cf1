// How values become cells of a KV cache: what the kernels that write them share.
#pragma once

#include <cuda_fp8.h>

#include "attention/cuda/kv_write_kernel.h"
#include "kernels/cuda/half_vector.cuh"

namespace tenon {

// f8e4m3: to nearest even, saturating. Requires: 8-byte alignment.
template <>
__device__ __forceinline__ void store8<__nv_fp8_e4m3>(__nv_fp8_e4m3* to, const float (&in)[8]) {
  uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    pairs[i] =
        __nv_cvt_float2_to_fp8x2(make_float2(in[2 * i], in[2 * i + 1]), __NV_SATFINITE, __NV_E4M3);
  }
  *reinterpret_cast<uint2*>(to) = make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
}
template <>
__device__ __forceinline__ __nv_fp8_e4m3 from_float<__nv_fp8_e4m3>(float value) {
  __nv_fp8_e4m3 cell;
  cell.__x = __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
  return cell;
}

// What values of a head are divided by.
__device__ __forceinline__ float k_scale_of(const KvWriteArgs& args, int head) {
  return args.k_head_scales == nullptr ? args.k_scale : args.k_head_scales[head];
}
__device__ __forceinline__ float v_scale_of(const KvWriteArgs& args, int head) {
  return args.v_head_scales == nullptr ? args.v_scale : args.v_head_scales[head];
}

}  // namespace tenon
