#include "attention/cuda/kv_block_copy.h"

#include "kernels/cuda/chained_launch.cuh"

namespace tenon {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    kv_block_copy_kernel(const __grid_constant__ KvBlockCopyArgs args) {
  wait_for_predecessor();
  const BlockCopy copy = args.copies[blockIdx.y];
  std::byte* const layer = args.base + blockIdx.x * args.layer_bytes;
  const auto* from = reinterpret_cast<const uint4*>(layer + copy.src * args.block_stride);
  auto* to = reinterpret_cast<uint4*>(layer + copy.dst * args.block_stride);
  for (int64_t i = threadIdx.x; i < args.block_bytes / 16; i += kThreads) to[i] = from[i];
}

}  // namespace

void launch_kv_block_copy(const KvBlockCopyArgs& args, cudaStream_t stream) {
  launch_chained(
      kv_block_copy_kernel,
      {dim3(static_cast<unsigned>(args.layers), static_cast<unsigned>(args.count)), dim3(kThreads)},
      stream, args);
}

}  // namespace tenon
