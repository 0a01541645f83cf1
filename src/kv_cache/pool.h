// The bytes of a KV cache on one device (or in host memory, for swapped-out blocks).
//
// Ownership:     owns the memory; views are valid as long as the pool lives.
// Thread safety: the engine thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/block_copy.h"
#include "base/status.h"
#include "kv_cache/layout.h"
#include "tensor/tensor.h"

namespace tenon {

class KvPool {
 public:
  // Takes the memory: `allocate` is Device::allocate or allocate_host, or by default the host's.
  // Errors: kResourceExhausted with the bytes wanted when the memory cannot be had.
  using Allocate = std::function<Result<Buffer>(size_t bytes)>;
  static Result<KvPool> create(const KvCacheSpec& spec,
                               KvLayout layout,
                               int64_t num_blocks,
                               const Allocate& allocate = {});

  [[nodiscard]] const KvCacheSpec& spec() const { return spec_; }
  [[nodiscard]] KvLayout layout() const { return layout_; }
  [[nodiscard]] int64_t num_blocks() const { return num_blocks_; }
  [[nodiscard]] int64_t bytes() const { return static_cast<int64_t>(buffer_.size()); }
  [[nodiscard]] KvView view(int32_t layer) const;

 private:
  KvCacheSpec spec_;
  KvLayout layout_ = KvLayout::kLBHNC;
  int64_t num_blocks_ = 0;
  Buffer buffer_;
};

// Copies whole blocks of all layers from `src` to `dst` (the same pool for copy-on-write, two pools
// for swapping). Host memory only: a device's backends bring their own. Requires: equal specs and
// layouts, ids in range. Later copies see the result of earlier ones.
void copy_kv_blocks(const KvPool& src, KvPool& dst, std::span<const BlockCopy> copies);

}  // namespace tenon
