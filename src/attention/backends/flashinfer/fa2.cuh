// Launch of FlashInfer's FA2 paged prefill kernel (mma.sync, cp.async): prefill, and decode on
// tensor cores with the heads of a group packed into the query tile. Included by fa2_*.cu only.
#pragma once

#include <cuda_runtime.h>

#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/variants.cuh>

#include "attention/backends/flashinfer/kernels.h"
#include "attention/backends/flashinfer/paged_kv.cuh"

namespace tenon::flashinfer {

// What the kernel and its variant read, by the names they read it by.
template <typename T>
struct Fa2Params {
  using DTypeQ = T;
  using DTypeKV = T;
  using DTypeO = T;
  using IdType = int32_t;

  T* q;
  fi::paged_kv_t<T, int32_t> paged_kv;
  int32_t* q_indptr;
  T* o;
  float* lse;
  fi::uint_fastdiv group_size;
  uint32_t num_qo_heads;
  int32_t q_stride_n;
  int32_t q_stride_h;
  // Scale factors of quantised pages, which do not exist here.
  uint32_t k_sf_stride_page = 0, k_sf_stride_n = 0, k_sf_stride_h = 0;
  uint32_t v_sf_stride_page = 0, v_sf_stride_n = 0, v_sf_stride_h = 0;
  int32_t window_left = -1;
  float logits_soft_cap = 0.0F;
  float sm_scale;
  float v_scale;

  int32_t* request_indices;
  int32_t* qo_tile_indices;
  int32_t* kv_tile_indices;
  int32_t* o_indptr;
  bool* block_valid_mask;
  int32_t* kv_chunk_size_ptr;
  bool partition_kv;

  __host__ __device__ __forceinline__ uint32_t get_qo_len(uint32_t row) const {
    return q_indptr[row + 1] - q_indptr[row];
  }
  __host__ __device__ __forceinline__ uint32_t get_kv_len(uint32_t row) const {
    return paged_kv.get_length(row);
  }
};

// Steps of 16 keys that a warp takes at once. Bounded by registers and by two blocks sharing an
// SM's 228 KiB of shared memory.
template <int kHeadDim, int kTileQ>
constexpr uint32_t fa2_key_steps() {
  constexpr uint32_t kWarpsKv = fi::get_num_warps_kv(kTileQ);
  constexpr uint32_t kShared = 116736;
  constexpr uint32_t kPerStep = 2 * kHeadDim * 16 * kWarpsKv * 2;
  constexpr uint32_t kFit = (kShared - kTileQ * kHeadDim * 2) / kPerStep;
  constexpr uint32_t kMost =
      kFit < 8 / fi::get_num_mma_q(kTileQ) ? kFit : 8 / fi::get_num_mma_q(kTileQ);
  return kMost >= 8 ? 8 : kMost >= 4 ? 4 : kMost >= 2 ? 2 : 1;
}

template <typename T, int kHeadDim, int kTileQ>
CudaError launch_fa2(const AttentionArgs& args, const BlockPlan& plan, Stream stream) {
  using Params = Fa2Params<T>;
  using Traits = fi::KernelTraits<fi::MaskMode::kCausal, kTileQ, fi::get_num_mma_q(kTileQ),
                                  fa2_key_steps<kHeadDim, kTileQ>(), kHeadDim / 16, kHeadDim / 16,
                                  fi::get_num_warps_q(kTileQ), fi::get_num_warps_kv(kTileQ),
                                  fi::PosEncodingMode::kNone, T, T, T, float, int32_t,
                                  fi::DefaultAttention<false, false, false, false>>;
  static_assert(!Traits::IsInvalid());

  const bool split = plan.out_indptr != nullptr;
  Params params;
  params.q = static_cast<T*>(const_cast<void*>(args.q));
  params.paged_kv = make_paged_kv<T, kHeadDim>(args.kv, plan);
  params.q_indptr = const_cast<int32_t*>(plan.q_indptr);
  params.o = static_cast<T*>(split ? plan.partial_out : args.out);
  params.lse = split ? plan.partial_lse : args.lse;
  params.group_size = fi::uint_fastdiv(args.num_q_heads / args.kv.num_kv_heads);
  params.num_qo_heads = static_cast<uint32_t>(args.num_q_heads);
  params.q_stride_n = static_cast<int32_t>(args.q_row_stride);
  params.q_stride_h = kHeadDim;
  params.sm_scale = args.scale;
  params.v_scale = args.v_scale;
  params.request_indices = const_cast<int32_t*>(plan.block_rows);
  params.qo_tile_indices = const_cast<int32_t*>(plan.block_tiles);
  params.kv_tile_indices = const_cast<int32_t*>(plan.block_chunks);
  params.o_indptr = const_cast<int32_t*>(split ? plan.out_indptr : plan.q_indptr);
  params.block_valid_mask = const_cast<bool*>(plan.block_valid);
  params.kv_chunk_size_ptr = const_cast<int32_t*>(plan.chunk_size);
  params.partition_kv = split;

  auto* const kernel = fi::BatchPrefillWithPagedKVCacheKernel<Traits, Params>;
  constexpr size_t kShared = sizeof(typename Traits::SharedStoragePaged);
  static const cudaError_t configured = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared));
  if (configured != cudaSuccess) return configured;
  void* kernel_args[] = {&params};
  return cudaLaunchKernel(
      reinterpret_cast<const void*>(kernel),
      dim3(static_cast<unsigned>(plan.num_blocks), 1, static_cast<unsigned>(args.kv.num_kv_heads)),
      dim3(32, Traits::NUM_WARPS_Q, Traits::NUM_WARPS_KV), kernel_args, kShared, stream);
}

}  // namespace tenon::flashinfer
