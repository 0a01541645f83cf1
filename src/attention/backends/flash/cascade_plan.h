// The plan of cascade attention in the flash backend: which levels of the batch's prefix tree are
// read once for all their rows, how their passes (prefix.h) are cut into tiles, and which partial
// results make up a token's output (cascade_merge.h). The keys behind a row's prefix stay the
// decode kernel's.
//
// A level's tokens are dealt to tiles; every (tile, KV head) is cut into the same number of pieces
// of its keys, so that the device is full, and a piece leaves one partial row for each (token, head
// of the group).
//
// What the kernels read is one section of device memory. The places of its parts depend on the
// limits only, the tiles come last, and their number is read on the device: a captured graph can
// replay any plan.
//
// Ownership:     a CascadePlanner owns its work memory; plans are written into the caller's buffer.
// Thread safety: one thread an object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/backend.h"
#include "attention/backends/flash/cascade_merge.h"
#include "attention/backends/flash/decode_plan.h"
#include "attention/backends/flash/prefix.h"
#include "attention/cascade.h"

namespace tenon::flash {

struct CascadeShape {
  CascadeMode mode = CascadeMode::kOff;
  int32_t num_kv_heads = 1;
  int32_t group = 1;  // query heads of a KV head
  int32_t head_dim = 0;
  int32_t page_size = 1;
  int32_t tile_rows = 0;       // prefix_tile_rows()
  int32_t block_keys = 0;      // prefix_block_keys()
  int32_t blocks = 0;          // multiprocessors
  int32_t max_row_tokens = 1;  // query tokens of a row: what one tile of the decode kernel takes

  [[nodiscard]] int32_t tile_tokens() const { return tile_rows / group; }
};

// The most of everything that a step within the limits takes.
struct CascadeRoom {
  int64_t tokens = 0;        // in at least one level
  int64_t list_tokens = 0;   // of all levels
  int64_t tiles = 0;         // entries of the work list
  int64_t partial_rows = 0;  // of the passes
};
[[nodiscard]] CascadeRoom cascade_room(const CascadeShape& shape, const AttentionLimits& limits);

// Start of the section.
struct CascadeHeader {
  int32_t num_tiles = 0;
  int32_t num_tokens = 0;
};

// Where the section's parts lie, in bytes; `bytes` is all of it.
struct CascadeLayout {
  explicit CascadeLayout(const CascadeRoom& room);
  int64_t merges_at = 0;
  int64_t tokens_at = 0;
  int64_t tiles_at = 0;
  int64_t bytes = 0;
};

// The plan of one step; nothing to do without tiles.
struct CascadePart {
  int32_t tiles = 0;
  int32_t tokens = 0;  // whose results are merged
  int64_t rows = 0;    // partial rows
  int64_t bytes = 0;   // of the section, to be copied to the device
  CascadeUse use;

  [[nodiscard]] bool active() const { return tiles > 0; }
};

class CascadePlanner {
 public:
  // Takes memory; build() allocates nothing then.
  void prepare(const CascadeShape& shape, const AttentionLimits& limits);
  // Writes the section of `batch` into `section` of CascadeLayout::bytes.
  CascadePart build(const BatchView& batch, std::byte* section);
  // Of the last build(): one a row of the batch, or empty.
  [[nodiscard]] std::span<const DecodeRowStart> rows() const { return rows_; }

 private:
  // A chosen group, and how its keys are cut.
  struct Level {
    const PrefixGroup* group = nullptr;
    int32_t queries = 0;
    int32_t keys = 0;
    int32_t piece = 0;  // keys of a piece; the last one has the rest
    int32_t pieces = 1;
  };

  void choose(const BatchView& batch);
  [[nodiscard]] double seconds_saved(const PrefixLevel& level) const;
  void choose_pieces(const BatchView& batch);
  void write_level(const BatchView& batch, const Level& level);

  CascadeShape shape_;
  CascadeRoom room_;
  PrefixTree chosen_;
  std::vector<int32_t> pages_;
  std::vector<Level> levels_;  // those with long pieces first
  std::vector<DecodeRowStart> rows_;
  // The section that is being written.
  MergeToken* merges_ = nullptr;
  int32_t* tokens_ = nullptr;
  PrefixTile* tiles_ = nullptr;
  int32_t num_list_tokens_ = 0;
  CascadePart part_;
};

}  // namespace tenon::flash
