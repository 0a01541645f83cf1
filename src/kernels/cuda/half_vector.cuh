// Eight 16-bit floats at a time: one 16-byte access a thread.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace tenon {

__device__ __forceinline__ float2 unpack(const __nv_bfloat162& pair) {
  return __bfloat1622float2(pair);
}
__device__ __forceinline__ float2 unpack(const __half2& pair) {
  return __half22float2(pair);
}

template <typename T>
struct PairOf;
template <>
struct PairOf<__nv_bfloat16> {
  using Type = __nv_bfloat162;
  static __device__ __forceinline__ Type pack(float a, float b) {
    return __floats2bfloat162_rn(a, b);
  }
};
template <>
struct PairOf<__half> {
  using Type = __half2;
  static __device__ __forceinline__ Type pack(float a, float b) { return __floats2half2_rn(a, b); }
};

template <typename T>
__device__ __forceinline__ void unpack8(const uint4& bits, float (&out)[8]) {
  const auto* pairs = reinterpret_cast<const typename PairOf<T>::Type*>(&bits);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = unpack(pairs[i]);
    out[2 * i] = two.x;
    out[2 * i + 1] = two.y;
  }
}

template <typename T>
__device__ __forceinline__ uint4 pack8(const float (&in)[8]) {
  uint4 bits;
  auto* pairs = reinterpret_cast<typename PairOf<T>::Type*>(&bits);
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = PairOf<T>::pack(in[2 * i], in[2 * i + 1]);
  return bits;
}

// Requires: 16-byte alignment.
template <typename T>
__device__ __forceinline__ void load8(const T* from, float (&out)[8]) {
  unpack8<T>(*reinterpret_cast<const uint4*>(from), out);
}
template <>
__device__ __forceinline__ void load8<float>(const float* from, float (&out)[8]) {
  const float4 low = reinterpret_cast<const float4*>(from)[0];
  const float4 high = reinterpret_cast<const float4*>(from)[1];
  out[0] = low.x, out[1] = low.y, out[2] = low.z, out[3] = low.w;
  out[4] = high.x, out[5] = high.y, out[6] = high.z, out[7] = high.w;
}
template <typename T>
__device__ __forceinline__ void store8(T* to, const float (&in)[8]) {
  *reinterpret_cast<uint4*>(to) = pack8<T>(in);
}
template <>
__device__ __forceinline__ void store8<float>(float* to, const float (&in)[8]) {
  reinterpret_cast<float4*>(to)[0] = make_float4(in[0], in[1], in[2], in[3]);
  reinterpret_cast<float4*>(to)[1] = make_float4(in[4], in[5], in[6], in[7]);
}

template <typename T>
__device__ __forceinline__ float to_float(T value) {
  return static_cast<float>(value);
}
template <typename T>
__device__ __forceinline__ T from_float(float value);
template <>
__device__ __forceinline__ float from_float<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ __forceinline__ __half from_float<__half>(float value) {
  return __float2half_rn(value);
}

}  // namespace tenon
