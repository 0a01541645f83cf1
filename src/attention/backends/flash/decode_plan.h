// The plan of the decode kernel (decode.h): which block of the grid streams which keys.
//
// Query rows are packed: a tile holds up to `tile_rows` (query token, head of the group) pairs of
// one batch row, all of which read the keys of one KV head. (tile, KV head) is a unit, numbered
// tile * num_kv_heads + head. The plan lays the units on a line, as long as their keys plus a fixed
// cost each, and cuts the line into stretches that mind the bytes only, not the units (stream-K,
// arXiv 2301.03598). A unit that is cut leaves one partial result a piece; the block that finishes
// last merges them, in the same launch.
//
// Block b of the grid starts with stretch b. Multiprocessors do not all get the same share of the
// memory's bandwidth, so where there is enough to do, an eighth of the line is kept back as short
// stretches, which blocks claim in order when they have finished. The grid never depends on the
// batch: blocks without a stretch end at once. Planning takes O(tiles + stretches) and allocates
// nothing.
//
// Ownership:     writes into the caller's arrays. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <span>

namespace tenon {
struct BatchView;
}

namespace tenon::flash {

// Keys of a bulk copy of the kernel, which begins at a multiple of them.
inline constexpr int32_t kBulkKeys = 16;

// One tile of packed query rows. Packed row r of a batch row is head r % group of the group, of its
// query token r / group. Device format.
struct alignas(32) DecodeTile {
  int32_t keys;         // keys that its last query token sees; 0: out = 0, lse = -inf
  int32_t seq_len;      // of the batch row
  int32_t query_len;    // of the batch row
  int32_t first_token;  // of the batch row among the step's tokens
  int32_t first_row;    // packed row of the batch row that the tile starts with
  int32_t rows;         // packed rows of the tile
  int32_t page_begin;   // of the batch row in page_indices
  // Cascade attention: 1 + where its batch row's first token is among those whose results are
  // merged with others (DecodeParams::suffix_out); 0: they go to the output.
  int32_t merge;
};

// Units [unit_begin, unit_end), from key `key_begin` of the first one to key `key_end` of the last
// one. Device format. What a block needs to start is here, so that it can ask for its first keys
// after one read.
struct alignas(64) DecodeStretch {
  static constexpr int32_t kAllKeys = 0x7fffffff;
  static constexpr int32_t kPages = 16;

  int32_t unit_begin;
  int32_t unit_end;
  int32_t key_begin;
  int32_t key_end;        // kAllKeys: the last unit is done to its end
  int32_t first_stretch;  // where the first unit began, if before this one
  int32_t last_stretch;   // where the last unit ends, if after this one
  int32_t first_page;     // key_begin / page size
  int32_t total;          // stretches of the plan
  DecodeTile tile;        // of the first unit
  int32_t pages[kPages];  // its pages from first_page on, as many as it has
};

struct DecodePlanShape {
  int32_t blocks = 0;  // of the grid
  int32_t num_kv_heads = 0;
  int32_t group = 0;      // query heads of a KV head
  int32_t tile_rows = 0;  // of the kernel: 8, 16 or 64
  int32_t page_size = 1;
  bool causal = true;
};

// Tiles that `query_len` query tokens take.
[[nodiscard]] inline int64_t decode_tiles(const DecodePlanShape& shape, int64_t query_len) {
  return (query_len * shape.group + shape.tile_rows - 1) / shape.tile_rows;
}

// The most tiles of any step with at most `rows` rows and `tokens` query tokens.
[[nodiscard]] inline int64_t max_decode_tiles(const DecodePlanShape& shape,
                                              int64_t rows,
                                              int64_t tokens) {
  return rows + tokens * shape.group / shape.tile_rows;
}

// Where the kernel begins with a batch row: behind pages that others attend to, if any.
struct DecodeRowStart {
  int32_t pages = 0;   // fewer than the row has
  int32_t merge = -1;  // where its first token is among those whose results are merged
};

// Writes the tiles of a batch row to the start of `room` and returns their number.
int32_t make_decode_tiles(const DecodePlanShape& shape,
                          const BatchView& batch,
                          int32_t row,
                          std::span<DecodeTile> room,
                          const DecodeRowStart& start = {});

// The most stretches of a plan. Wide tiles, whose partial results are large, get one a block.
[[nodiscard]] inline int32_t max_decode_stretches(const DecodePlanShape& shape) {
  return shape.tile_rows > 16 ? shape.blocks : 5 * shape.blocks;
}

// Deals the units of `tiles` out to stretches and returns their number, at least shape.blocks: the
// rest of those are empty. `page_indices` are the batch's. Requires: room for
// max_decode_stretches().
int32_t deal_decode_tiles(const DecodePlanShape& shape,
                          std::span<const DecodeTile> tiles,
                          std::span<const int32_t> page_indices,
                          std::span<DecodeStretch> stretches);

}  // namespace tenon::flash
