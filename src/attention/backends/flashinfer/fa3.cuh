// Launch of FlashInfer's Hopper prefill kernel with Tenon's work scheduler. Included by fa3_*.cu
// only, and never together with fa2.cuh: FlashInfer uses the same names for different things there.
#pragma once

#include <cuda_runtime.h>

#include <flashinfer/attention/hopper/prefill_sm90.cuh>
#include <flashinfer/attention/hopper/variants.cuh>

#include "attention/backends/flashinfer/fa3_scheduler.cuh"
#include "attention/backends/flashinfer/kernels.h"

namespace tenon::flashinfer {
namespace fi = ::flashinfer;

// By the names that the kernel looks for.
struct Fa3Scale {
  float sm_scale;
  float scale_v_scalar;
  float* maybe_scale_v = nullptr;  // a scale a head
};

template <typename T, int kHeadDim, bool kRagged>
struct Fa3Traits {
  static constexpr int kTileQ = kFa3Tile;
  // Gathered tiles are narrower: the producer needs registers for addresses.
  static constexpr int kTileKv = kRagged ? 128 : 96;
  using Kernel = fi::AttentionKernelTraits<kRagged,
                                           kHeadDim,
                                           kHeadDim,
                                           kTileQ,
                                           kTileKv,
                                           /*NUM_STAGES=*/2,
                                           T,
                                           T,
                                           T,
                                           int32_t,
                                           fi::StandardAttention>;
  using Mainloop = std::conditional_t<kRagged,
                                      fi::CollectiveMainloop<Fa3Scale, Kernel, true>,
                                      fi::SparseCollectiveMainloop<Fa3Scale, Kernel, true>>;
  using Epilogue = fi::CollectiveEpilogue<Kernel>;
  static constexpr int kStorage = (sizeof(typename Kernel::SharedStorage) + 15) / 16 * 16;
  static constexpr int kShared = kStorage + 2 * static_cast<int>(sizeof(int));
  using Scheduler =
      DrawingTileScheduler<Kernel::NUM_PRODUCER_THREADS, Kernel::NUM_MMA_THREADS, kStorage>;
};

template <typename T, int kHeadDim, bool kRagged>
CudaError launch_fa3(const AttentionArgs& args, const Fa3Plan& plan, Stream stream) {
  using Traits = Fa3Traits<T, kHeadDim, kRagged>;
  using Kernel = typename Traits::Kernel;
  using Mainloop = typename Traits::Mainloop;
  using Epilogue = typename Traits::Epilogue;
  using Scheduler = typename Traits::Scheduler;

  const int group = args.num_q_heads / args.kv.num_kv_heads;
  T* const q = static_cast<T*>(const_cast<void*>(args.q));
  T* const k = static_cast<T*>(args.kv.k);
  T* const v = static_cast<T*>(args.kv.v);
  const auto q_layout =
      fi::get_gmem_layout(plan.num_tokens, args.num_q_heads, kHeadDim, args.q_row_stride, kHeadDim);
  const auto kv_layout = fi::get_gmem_layout(kRagged ? plan.num_tokens : 0, args.kv.num_kv_heads,
                                             kHeadDim, args.kv.token_stride, args.kv.head_stride);
  typename Mainloop::Params mainloop = [&] {
    if constexpr (kRagged) {
      return Mainloop::to_underlying_arguments({q,
                                                q_layout,
                                                k,
                                                kv_layout,
                                                v,
                                                kv_layout,
                                                /*window_left=*/-1,
                                                {args.scale, args.v_scale}});
    } else {
      return Mainloop::to_underlying_arguments({q,
                                                q_layout,
                                                k,
                                                kv_layout,
                                                v,
                                                kv_layout,
                                                plan.page_indices,
                                                /*window_left=*/-1,
                                                args.kv.page_stride,
                                                args.kv.page_stride,
                                                static_cast<uint32_t>(args.kv.page_size),
                                                {args.scale, args.v_scale}});
    }
  }();
  typename Epilogue::Params epilogue = Epilogue::to_underlying_arguments(
      {static_cast<T*>(args.out),
       fi::get_gmem_layout(plan.num_tokens, args.num_q_heads, kHeadDim, args.out_row_stride,
                           kHeadDim),
       args.lse, fi::get_lse_gmem_layout(plan.num_tokens, args.num_q_heads)});
  const int works = plan.num_tiles * plan.heads_per_tile;
  typename Scheduler::Params scheduler{plan.tiles,
                                       plan.counter,
                                       works,
                                       works + plan.total_blocks - 1,
                                       cutlass::FastDivmod(plan.heads_per_tile),
                                       cutlass::FastDivmod(group)};

  auto* const kernel = fi::PrefillWithKVCacheKernel<Mainloop, Epilogue, Kernel,
                                                    /*LEFT_SLIDING_WINDOW=*/false,
                                                    /*CAUSAL=*/true, Scheduler>;
  static const cudaError_t configured =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kShared);
  if (configured != cudaSuccess) return configured;
  void* kernel_args[] = {&mainloop, &epilogue, &scheduler};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel),
                          dim3(static_cast<unsigned>(plan.num_blocks)), dim3(Kernel::NUM_THREADS),
                          kernel_args, Traits::kShared, stream);
}

}  // namespace tenon::flashinfer
