// How the prefill kernel is tiled, by head size: what its host part and its instantiations share.
#pragma once

#include <cstdint>
#include <numeric>

#include "attention/backends/flash/prefill.h"

namespace tenon::flash {

// Head sizes are padded (with zeros, in shared memory) to the next of 64, 96, 128, 192, 256.
[[nodiscard]] constexpr int32_t prefill_padded_dim(int32_t head_dim) {
  return head_dim > 64 && head_dim <= 96 ? 96 : (head_dim + 63) / 64 * 64;
}

// Keys of a block: as many as shared memory takes twice, with K and V and the queries beside them.
[[nodiscard]] constexpr int32_t prefill_block_keys(int32_t padded_dim) {
  switch (padded_dim) {
    case 64:
    case 96: return 128;
    case 128: return 160;
    case 192: return 96;
    default: return 64;
  }
}
// The same for kernels with extras, which keep more in registers.
[[nodiscard]] constexpr int32_t prefill_block_keys_extras(int32_t padded_dim) {
  if (padded_dim == 64) return 96;
  return padded_dim == 128 ? 128 : prefill_block_keys(padded_dim);
}
// The same for 8-bit cells, whose bytes need room of their own.
[[nodiscard]] constexpr int32_t prefill_block_keys_quantised(int32_t padded_dim) {
  return padded_dim == 64 || padded_dim == 192 ? 64 : prefill_block_keys_extras(padded_dim);
}
// Computing warpgroups, 64 query rows each: as many as the registers take.
[[nodiscard]] constexpr int32_t prefill_consumers(int32_t padded_dim) {
  return padded_dim == 64 ? 3 : 2;
}

// Query heads that share the rows of a tile.
[[nodiscard]] constexpr int32_t prefill_pack(const PrefillShape& shape) {
  const int32_t group = shape.num_q_heads / shape.num_kv_heads;
  return group <= 64 && (group & (group - 1)) == 0 ? group : 1;
}
[[nodiscard]] constexpr int32_t prefill_tile_tokens(const PrefillShape& shape) {
  return 64 * prefill_consumers(prefill_padded_dim(shape.head_dim)) / prefill_pack(shape);
}

// plan_prefill() for tiles of any size.
PrefillPlan plan_prefill_tiles(const PrefillShape& shape,
                               int32_t tile_tokens,
                               bool causal,
                               std::span<PrefillRow> rows,
                               std::span<PrefillTile> tiles);

// Keys that one bulk copy takes out of a page; 0: pages are such that 16-byte gathers are needed
// (the swizzle of shared memory repeats every 8 rows, so a copy must start at a multiple of them).
[[nodiscard]] constexpr int32_t prefill_box_keys(int32_t page_size, int32_t block_keys) {
  const int32_t box = std::gcd(page_size, block_keys);
  return box % 8 == 0 ? box : 0;
}

}  // namespace tenon::flash
