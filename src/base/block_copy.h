// One KV block to copy: the scheduler writes lists of them, the KV pool carries them out. Block
// ids, no bytes.
#pragma once

#include <cstdint>

namespace tenon {

struct BlockCopy {
  int32_t src = 0;
  int32_t dst = 0;
  bool operator==(const BlockCopy&) const = default;
};

}  // namespace tenon
