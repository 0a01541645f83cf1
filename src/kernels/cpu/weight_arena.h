// Memory for weights, cut from large blocks.
//
// Purpose:       streaming through weights in 4 KiB pages costs address translation and restarts
// the prefetchers;
//                blocks of this size get huge pages, single matrices of a small model would not.
// Ownership:     a block lives until the arena and all memory cut from it are gone.
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <memory>

#include "tensor/tensor.h"

namespace tenon::cpu {

class WeightArena {
 public:
  // Zeroed memory, aligned to 64 bytes; null if it cannot be had.
  std::shared_ptr<std::byte> allocate(size_t bytes);

 private:
  std::shared_ptr<Buffer> block_;
  size_t used_ = 0;
};

}  // namespace tenon::cpu
