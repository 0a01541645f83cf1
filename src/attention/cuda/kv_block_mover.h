// Moves KV blocks for the CUDA attention backends: copies inside the pool, and swaps between the
// pool and (pinned) host memory.
//
// Order: what was enqueued on the device's stream before a call sees the blocks as they were, what
// is enqueued after it as they are then. Swaps run on the copy stream, tied to the other by events
// both ways, one after the other: a block can be swapped out and back in without the host waiting.
//
// Ownership:     owns its events, borrows the device; one for each backend.
// Thread safety: the engine thread only.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "base/block_copy.h"
#include "kv_cache/pool.h"
#include "tensor/cuda/cuda_device.h"

namespace tenon {

class KvBlockMover {
 public:
  explicit KvBlockMover(CudaDevice* device);
  ~KvBlockMover();
  KvBlockMover(const KvBlockMover&) = delete;
  KvBlockMover& operator=(const KvBlockMover&) = delete;

  // Later copies see the result of earlier ones.
  void copy(KvPool& pool, std::span<const BlockCopy> copies);
  // One of the pools is in host memory. Requires: equal specs and layouts.
  void swap(const KvPool& src, KvPool& dst, std::span<const BlockCopy> copies);

 private:
  CudaDevice* device_;
  cudaEvent_t ready_ = nullptr, moved_ = nullptr;
};

}  // namespace tenon
