// Partials to outputs, and base-2 LSE to natural log. (FlashInfer's own merge keeps base 2 and
// dense rows.)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "attention/backends/flashinfer/kernels.h"

namespace tenon::flashinfer {
namespace {

constexpr float kLn2 = 0.693147180559945309F;

// FlashInfer's kernels start maxima at -50,000 instead of -infinity: that is what they leave for a
// row without keys.
__device__ bool is_empty(float lse) {
  return lse <= -49000.0F;
}

constexpr int kThreads = 128;

template <typename T>
__device__ float2 to_float2(uint32_t bits);
template <>
__device__ float2 to_float2<__nv_bfloat16>(uint32_t bits) {
  return __bfloat1622float2(*reinterpret_cast<__nv_bfloat162*>(&bits));
}
template <>
__device__ float2 to_float2<__half>(uint32_t bits) {
  return __half22float2(*reinterpret_cast<__half2*>(&bits));
}
template <typename T>
__device__ uint32_t from_float2(float2 value);
template <>
__device__ uint32_t from_float2<__nv_bfloat16>(float2 value) {
  const __nv_bfloat162 packed = __float22bfloat162_rn(value);
  return *reinterpret_cast<const uint32_t*>(&packed);
}
template <>
__device__ uint32_t from_float2<__half>(float2 value) {
  const __half2 packed = __float22half2_rn(value);
  return *reinterpret_cast<const uint32_t*>(&packed);
}

// A block takes one (token, head). Groups of threads with 8 elements each take every kGroups-th
// partial: the first loads of all of them are under way before the weights are known.
template <typename T, int kHeadDim>
__global__ void __launch_bounds__(kThreads) merge_kernel(const MergeArgs args) {
  constexpr int kLanes = kHeadDim / 8;
  constexpr int kGroups = kThreads / kLanes;
  __shared__ float sums[kGroups][kHeadDim];
  __shared__ float weights[kGroups];
  const int group = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int head = static_cast<int>(blockIdx.y);
  const int token = static_cast<int>(blockIdx.x);
  const int begin = args.token_begin[token];
  const int end = args.token_begin[token + 1];
  // The attention kernel in front may still be running: what it writes is read after this line
  // only.
  asm volatile("griddepcontrol.wait;" ::: "memory");

  // Online softmax over this group's partials, then over the groups.
  float sum[8] = {};
  float largest = -INFINITY;
  float weight_sum = 0.0F;
  constexpr int kAtOnce = 4;
  for (int first = begin + group; first < end; first += kAtOnce * kGroups) {
    uint4 bits[kAtOnce] = {};
    float lse[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int p = first + j * kGroups;
      lse[j] = -INFINITY;
      if (p >= end) continue;
      const int64_t cell = int64_t{p} * args.num_q_heads + head;
      bits[j] = *(static_cast<const uint4*>(args.partial_out) + cell * kLanes + lane);
      lse[j] = args.partial_lse[cell];
      if (is_empty(lse[j])) lse[j] = -INFINITY;
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const float next = fmaxf(largest, lse[j]);
      const float base = next == -INFINITY ? 0.0F : next;
      const float rescale = exp2f(largest - base);
      const float weight = exp2f(lse[j] - base);
      largest = next;
      weight_sum = fmaf(weight_sum, rescale, weight);
      const uint32_t words[4] = {bits[j].x, bits[j].y, bits[j].z, bits[j].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 value = to_float2<T>(words[i]);
        sum[2 * i] = fmaf(sum[2 * i], rescale, weight * value.x);
        sum[2 * i + 1] = fmaf(sum[2 * i + 1], rescale, weight * value.y);
      }
    }
  }
  if (lane == 0) weights[group] = largest;
  __syncthreads();
  float top = -INFINITY;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) top = fmaxf(top, weights[g]);
  const float scale = top == -INFINITY ? 0.0F : exp2f(largest - top);
#pragma unroll
  for (int i = 0; i < 8; ++i) sums[group][lane * 8 + i] = sum[i] * scale;
  __syncthreads();
  if (lane == 0) weights[group] = weight_sum * scale;
  __syncthreads();

  float total = 0.0F;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) total += weights[g];
  const float inverse = total > 0.0F ? 1.0F / total : 0.0F;
  auto* out = static_cast<uint32_t*>(args.out) +
              (token * args.out_row_stride + int64_t{head} * kHeadDim) / 2;
  for (int pair = static_cast<int>(threadIdx.x); pair < kHeadDim / 2; pair += kThreads) {
    float2 value = {0.0F, 0.0F};
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      value.x += sums[g][2 * pair];
      value.y += sums[g][2 * pair + 1];
    }
    out[pair] = from_float2<T>({value.x * inverse, value.y * inverse});
  }
  if (args.lse != nullptr && threadIdx.x == 0) {
    args.lse[int64_t{token} * args.num_q_heads + head] =
        total > 0.0F ? (top + log2f(total)) * kLn2 : -INFINITY;
  }
}

__global__ void natural_lse_kernel(float* lse, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) lse[i] = is_empty(lse[i]) ? -INFINITY : lse[i] * kLn2;
}

template <typename T, int kHeadDim>
cudaError_t launch(const MergeArgs& args, cudaStream_t stream) {
  // Started while the last blocks of the attention kernel still run; see the wait above.
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim =
      dim3(static_cast<unsigned>(args.num_tokens), static_cast<unsigned>(args.num_q_heads));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = args.overlap ? 1 : 0;
  return cudaLaunchKernelEx(&config, merge_kernel<T, kHeadDim>, args);
}

template <typename T>
cudaError_t launch(const MergeArgs& args, cudaStream_t stream) {
  switch (args.head_dim) {
    case 64: return launch<T, 64>(args, stream);
    case 128: return launch<T, 128>(args, stream);
    case 256: return launch<T, 256>(args, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace

CudaError launch_merge(const MergeArgs& args, Stream stream) {
  if (args.num_tokens == 0) return cudaSuccess;
  switch (args.dtype) {
    case DType::kBF16: return launch<__nv_bfloat16>(args, stream);
    case DType::kF16: return launch<__half>(args, stream);
    default: return cudaErrorInvalidValue;
  }
}

CudaError launch_natural_lse(float* lse, int64_t count, Stream stream) {
  if (count == 0) return cudaSuccess;
  natural_lse_kernel<<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0,
                       stream>>>(lse, count);
  return cudaGetLastError();
}

}  // namespace tenon::flashinfer
