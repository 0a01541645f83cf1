// Partials to outputs, and base-2 LSE to natural log. FlashInfer's own merge kernel keeps base 2 and
// takes two passes over the lengths; this one is a warp a (token, head).
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "attention/backends/flashinfer/kernels.h"

namespace tenon::flashinfer {
namespace {

constexpr float kLn2 = 0.693147180559945309F;
constexpr int kWarps = 4;

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

// Two elements a lane and step.
template <typename T, int kHeadDim>
__global__ void __launch_bounds__(32 * kWarps) merge_kernel(const MergeArgs args) {
  constexpr int kPairs = kHeadDim / 64;
  const int lane = static_cast<int>(threadIdx.x);
  const int head = static_cast<int>(blockIdx.y * kWarps + threadIdx.y);
  const int token = static_cast<int>(blockIdx.x);
  // The attention kernel before this one may still be running: everything it wrote, and nothing
  // else, is read after this line.
  const int begin = args.token_begin[token];
  const int end = args.token_begin[token + 1];
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (head >= args.num_q_heads) return;

  float2 sum[kPairs] = {};
  float largest = -INFINITY;
  float weight_sum = 0.0F;
  for (int base = begin; base < end; base += 32) {
    // Weights of up to 32 partials, one a lane.
    const int count = min(32, end - base);
    const float mine =
        lane < count ? args.partial_lse[int64_t{base + lane} * args.num_q_heads + head] : -INFINITY;
    float top = mine;
    for (int step = 16; step > 0; step /= 2) {
      top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, step));
    }
    const float next = fmaxf(largest, top);
    if (next == -INFINITY) continue;
    const float rescale = exp2f(largest - next);
    largest = next;
    const float weight = exp2f(mine - next);
    weight_sum *= rescale;
    for (int i = 0; i < kPairs; ++i) {
      sum[i].x *= rescale;
      sum[i].y *= rescale;
    }
#pragma unroll 8
    for (int p = 0; p < count; ++p) {
      const float w = __shfl_sync(0xffffffffU, weight, p);
      weight_sum += w;
      const uint32_t* row = static_cast<const uint32_t*>(args.partial_out) +
                            (int64_t{base + p} * args.num_q_heads + head) * (kHeadDim / 2);
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const float2 value = to_float2<T>(row[i * 32 + lane]);
        sum[i].x = fmaf(w, value.x, sum[i].x);
        sum[i].y = fmaf(w, value.y, sum[i].y);
      }
    }
  }

  const float inverse = weight_sum > 0.0F ? 1.0F / weight_sum : 0.0F;
  const int64_t cell = int64_t{token} * args.num_q_heads + head;
  uint32_t* out = static_cast<uint32_t*>(args.out) +
                  (token * args.out_row_stride + int64_t{head} * kHeadDim) / 2;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    out[i * 32 + lane] = from_float2<T>({sum[i].x * inverse, sum[i].y * inverse});
  }
  if (args.lse != nullptr && lane == 0) {
    args.lse[cell] = weight_sum > 0.0F ? (largest + log2f(weight_sum)) * kLn2 : -INFINITY;
  }
}

__global__ void natural_lse_kernel(float* lse, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) lse[i] *= kLn2;
}

template <typename T, int kHeadDim>
cudaError_t launch(const MergeArgs& args, cudaStream_t stream) {
  // Started while the last blocks of the attention kernel still run; see the wait above.
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(args.num_tokens),
                        static_cast<unsigned>((args.num_q_heads + kWarps - 1) / kWarps));
  config.blockDim = dim3(32, kWarps);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = args.overlap ? 1 : 0;
  return cudaLaunchKernelEx(&config, merge_kernel<T, kHeadDim>, args);
}

template <typename T>
cudaError_t launch(const MergeArgs& args, cudaStream_t stream) {
  switch (args.head_dim) {
    case 64:
      return launch<T, 64>(args, stream);
    case 128:
      return launch<T, 128>(args, stream);
    case 256:
      return launch<T, 256>(args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

CudaError launch_merge(const MergeArgs& args, Stream stream) {
  if (args.num_tokens == 0) return cudaSuccess;
  switch (args.dtype) {
    case DType::kBF16:
      return launch<__nv_bfloat16>(args, stream);
    case DType::kF16:
      return launch<__half>(args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

CudaError launch_natural_lse(float* lse, int64_t count, Stream stream) {
  if (count == 0) return cudaSuccess;
  constexpr int kThreads = 256;
  natural_lse_kernel<<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
      lse, count);
  return cudaGetLastError();
}

}  // namespace tenon::flashinfer
