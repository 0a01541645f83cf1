// Launch of FlashInfer's CUDA-core decode kernel: one query token a row. Included by decode_*.cu
// only.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include <flashinfer/attention/decode.cuh>
#include <flashinfer/attention/variants.cuh>

#include "attention/backends/flashinfer/kernels.h"
#include "attention/backends/flashinfer/paged_kv.cuh"

namespace tenon::flashinfer {

// What the kernel and its variant read, by the names they read it by.
template <typename T>
struct DecodeParams {
  using DTypeQ = T;
  using DTypeKV = T;
  using DTypeO = T;
  using IdType = int32_t;

  T* q;
  fi::paged_kv_t<T, int32_t> paged_kv;
  T* o;
  float* lse;
  uint32_t padded_batch_size;
  uint32_t num_qo_heads;
  int32_t q_stride_n;
  int32_t q_stride_h;
  int32_t window_left = -1;
  float logits_soft_cap = 0.0F;
  float sm_scale;
  float v_scale;
  int32_t* request_indices;
  int32_t* kv_tile_indices;
  int32_t* o_indptr;
  int32_t* kv_chunk_size_ptr;
  bool* block_valid_mask;
  bool partition_kv;

  __host__ __device__ __forceinline__ int32_t get_qo_len(int32_t) const { return 1; }
  __host__ __device__ __forceinline__ int32_t get_kv_len(int32_t row) const {
    return paged_kv.get_length(row);
  }
};

template <typename T, int kHeadDim, int kGroup>
CudaError launch_cuda_core_decode(const AttentionArgs& args, const BlockPlan& plan, Stream stream) {
  constexpr uint32_t kStages = 2;
  constexpr uint32_t kVector = std::max<uint32_t>(16 / sizeof(T), kHeadDim / 32);
  constexpr uint32_t kX = kHeadDim / kVector;
  constexpr uint32_t kThreads = std::max<uint32_t>(128, kX * kGroup);
  constexpr uint32_t kZ = kThreads / (kX * kGroup);
  constexpr uint32_t kTile = kGroup == 1 ? 4 : 1;
  constexpr size_t kShared =
      2 * kStages * kTile * kGroup * kZ * kHeadDim * sizeof(T) +
      std::max<size_t>(kTile * kThreads * sizeof(T*), 2 * kGroup * kZ * sizeof(float));

  const bool split = plan.out_indptr != nullptr;
  DecodeParams<T> params;
  params.q = static_cast<T*>(const_cast<void*>(args.q));
  params.paged_kv = make_paged_kv<T, kHeadDim>(args.kv, plan);
  params.o = static_cast<T*>(split ? plan.partial_out : args.out);
  params.lse = split ? plan.partial_lse : args.lse;
  params.padded_batch_size = static_cast<uint32_t>(plan.num_blocks);
  params.num_qo_heads = static_cast<uint32_t>(args.num_q_heads);
  params.q_stride_n = static_cast<int32_t>(args.q_row_stride);
  params.q_stride_h = kHeadDim;
  params.sm_scale = args.scale;
  params.v_scale = args.v_scale;
  params.request_indices = const_cast<int32_t*>(plan.block_rows);
  params.kv_tile_indices = const_cast<int32_t*>(plan.block_chunks);
  params.o_indptr = const_cast<int32_t*>(split ? plan.out_indptr : plan.q_indptr);
  params.kv_chunk_size_ptr = const_cast<int32_t*>(plan.chunk_size);
  params.block_valid_mask = const_cast<bool*>(plan.block_valid);
  params.partition_kv = split;

  auto* const kernel = fi::BatchDecodeWithPagedKVCacheKernel<
      fi::PosEncodingMode::kNone, kStages, kTile, kVector, kX, kGroup, kZ,
      fi::DefaultAttention<false, false, false, false>, DecodeParams<T>>;
  static const cudaError_t configured = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared));
  if (configured != cudaSuccess) return configured;
  void* kernel_args[] = {&params};
  return cudaLaunchKernel(
      reinterpret_cast<const void*>(kernel),
      dim3(static_cast<unsigned>(plan.num_blocks), static_cast<unsigned>(args.kv.num_kv_heads)),
      dim3(kX, kGroup, kZ), kernel_args, kShared, stream);
}

}  // namespace tenon::flashinfer
