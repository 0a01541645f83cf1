#include "attention/backends/flashinfer/kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace cutlass {
struct alignas(2) bfloat16_t;
struct alignas(2) half_t;
}  // namespace cutlass

namespace tenon::flashinfer {

// Instantiated in fa2_*.cu, decode_*.cu and fa3_*.cu.
template <typename T, int kHeadDim, int kTileQ>
CudaError launch_fa2(const AttentionArgs& args, const BlockPlan& plan, Stream stream);
template <typename T, int kHeadDim, int kGroup>
CudaError launch_cuda_core_decode(const AttentionArgs& args, const BlockPlan& plan, Stream stream);
template <typename T, int kHeadDim, bool kRagged>
CudaError launch_fa3(const AttentionArgs& args, const Fa3Plan& plan, Stream stream);

namespace {

template <typename T>
BlockKernel fa2(int32_t head_dim, int32_t tile) {
  switch (head_dim) {
    case 64:
      return tile == 16   ? launch_fa2<T, 64, 16>
             : tile == 64 ? launch_fa2<T, 64, 64>
                          : launch_fa2<T, 64, 128>;
    case 128:
      return tile == 16   ? launch_fa2<T, 128, 16>
             : tile == 64 ? launch_fa2<T, 128, 64>
                          : launch_fa2<T, 128, 128>;
    case 256:
      return tile == 16 ? launch_fa2<T, 256, 16> : tile == 64 ? launch_fa2<T, 256, 64> : nullptr;
    default: return nullptr;
  }
}

template <typename T, int kHeadDim>
BlockKernel cuda_core_decode(int32_t group) {
  switch (group) {
    case 1: return launch_cuda_core_decode<T, kHeadDim, 1>;
    case 2: return launch_cuda_core_decode<T, kHeadDim, 2>;
    case 3: return launch_cuda_core_decode<T, kHeadDim, 3>;
    case 4: return launch_cuda_core_decode<T, kHeadDim, 4>;
    case 6: return launch_cuda_core_decode<T, kHeadDim, 6>;
    case 8: return launch_cuda_core_decode<T, kHeadDim, 8>;
    default: return nullptr;
  }
}

template <typename T>
BlockKernel cuda_core_decode(int32_t head_dim, int32_t group) {
  if (head_dim == 64) return cuda_core_decode<T, 64>(group);
  return head_dim == 128 ? cuda_core_decode<T, 128>(group) : nullptr;
}

template <typename T>
Fa3Kernel fa3(int32_t head_dim, Fa3Keys keys) {
  const bool ragged = keys == Fa3Keys::kRagged;
  if (head_dim == 128) return ragged ? launch_fa3<T, 128, true> : launch_fa3<T, 128, false>;
  return nullptr;
}

}  // namespace

BlockKernel find_fa2(DType dtype, int32_t head_dim, int32_t tile) {
  if (tile != 16 && tile != 64 && tile != 128) return nullptr;
  if (dtype == DType::kBF16) return fa2<nv_bfloat16>(head_dim, tile);
  return dtype == DType::kF16 ? fa2<half>(head_dim, tile) : nullptr;
}

BlockKernel find_cuda_core_decode(DType dtype, int32_t head_dim, int32_t group) {
  if (dtype == DType::kBF16) return cuda_core_decode<nv_bfloat16>(head_dim, group);
  return dtype == DType::kF16 ? cuda_core_decode<half>(head_dim, group) : nullptr;
}

Fa3Kernel find_fa3(DType dtype, int32_t head_dim, Fa3Keys keys) {
  if (dtype == DType::kBF16) return fa3<cutlass::bfloat16_t>(head_dim, keys);
  return dtype == DType::kF16 ? fa3<cutlass::half_t>(head_dim, keys) : nullptr;
}

}  // namespace tenon::flashinfer
