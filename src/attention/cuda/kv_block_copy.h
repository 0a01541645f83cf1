// The launcher behind KvBlockMover::copy, in plain pointers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/block_copy.h"

namespace tenon {

inline constexpr int kCopiesPerLaunch = 128;

// Up to kCopiesPerLaunch copies of which none touches what another one writes.
struct KvBlockCopyArgs {
  std::byte* base = nullptr;  // of layer 0
  int64_t layer_bytes = 0;    // from one layer's block to the next layer's
  int64_t block_bytes = 0;    // of one layer; a multiple of 16
  int64_t block_stride = 0;   // bytes from one block to the next
  int32_t layers = 0;
  int32_t count = 0;
  BlockCopy copies[kCopiesPerLaunch];
};
void launch_kv_block_copy(const KvBlockCopyArgs& args, cudaStream_t stream);

}  // namespace tenon
