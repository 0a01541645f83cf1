#include "attention/backends/flash/cascade_plan.h"

#include <algorithm>
#include <functional>

#include "attention/backends/flash/prefill_config.h"
#include "base/check.h"

namespace tenon::flash {
namespace {

// What the kernels reach on one H200 (docs/design/flash_backend.md).
constexpr double kStreamBytes = 4.3e12;  // a second, of keys that are read once
// The same of the decode kernel where rows read the same keys, which lie in the L2 cache then.
constexpr double kSharedBytes = 9e12;
constexpr double kPassFlops = 4.4e12;       // a multiprocessor, padding of tiles included
constexpr double kTileSeconds = 2.5e-6;     // of a tile besides its products
constexpr double kPartialBytes = 1.0e12;    // written and read again
constexpr double kPassesSeconds = 12.5e-6;  // starts of the passes and of the merge
// Of one more level; the smallest gain that a level is worth.
constexpr double kLevelSeconds = 1e-6;

// Tiles in excess of one a (tile of tokens, KV head), from cutting keys.
int64_t max_extra_tiles(const CascadeShape& shape) {
  return int64_t{2} * shape.blocks;
}

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

size_t at(int64_t i) {
  return static_cast<size_t>(i);
}

int64_t align(int64_t offset) {
  return (offset + 63) / 64 * 64;
}

}  // namespace

int32_t prefix_tile_rows(int32_t head_dim) {
  return 64 * prefill_consumers(prefill_padded_dim(head_dim));
}

int32_t prefix_block_keys(int32_t head_dim) {
  return prefill_block_keys(prefill_padded_dim(head_dim));
}

bool prefix_supports(const PrefillShape& shape) {
  return prefill_supports(shape) &&
         shape.num_q_heads / shape.num_kv_heads <= prefix_tile_rows(shape.head_dim);
}

CascadeRoom cascade_room(const CascadeShape& shape, const AttentionLimits& limits) {
  CascadeRoom room;
  if (shape.mode == CascadeMode::kOff) return room;
  const int64_t rows = limits.max_num_seqs;
  room.tokens = std::min(int64_t{limits.max_num_batched_tokens}, rows * shape.max_row_tokens);
  room.list_tokens = kMaxPrefixLevels * room.tokens;
  // A row is in one level of each depth at most, and a level has two rows or more.
  const int64_t tiles = kMaxPrefixLevels * (room.tokens / shape.tile_tokens() + rows / 2);
  room.tiles = tiles * shape.num_kv_heads + max_extra_tiles(shape);
  room.partial_rows = room.list_tokens * shape.num_kv_heads * shape.group +
                      max_extra_tiles(shape) * shape.tile_rows;
  return room;
}

CascadeLayout::CascadeLayout(const CascadeRoom& room) {
  if (room.tokens == 0) return;
  merges_at = align(static_cast<int64_t>(sizeof(CascadeHeader)));
  tokens_at = align(merges_at + room.tokens * static_cast<int64_t>(sizeof(MergeToken)));
  tiles_at = align(tokens_at + room.list_tokens * static_cast<int64_t>(sizeof(int32_t)));
  bytes = align(tiles_at + room.tiles * static_cast<int64_t>(sizeof(PrefixTile)));
}

void CascadePlanner::prepare(const CascadeShape& shape, const AttentionLimits& limits) {
  shape_ = shape;
  room_ = cascade_room(shape, limits);
  if (shape.mode == CascadeMode::kOff) return;
  chosen_.reserve(limits.max_num_seqs);
  pages_.reserve(at(limits.max_num_seqs));
  levels_.reserve(at(limits.max_num_seqs));
  rows_.reserve(at(limits.max_num_seqs));
}

CascadePart CascadePlanner::build(const BatchView& batch, std::byte* section) {
  part_ = {};
  rows_.clear();
  if (shape_.mode == CascadeMode::kOff || batch.prefix_groups.empty()) return part_;
  choose(batch);
  if (chosen_.groups.empty()) return part_;

  const CascadeLayout layout(room_);
  merges_ = reinterpret_cast<MergeToken*>(section + layout.merges_at);
  tokens_ = reinterpret_cast<int32_t*>(section + layout.tokens_at);
  tiles_ = reinterpret_cast<PrefixTile*>(section + layout.tiles_at);
  num_list_tokens_ = 0;
  part_.use = cascade_use(chosen_, shape_.page_size);
  pages_.resize(at(batch.num_rows()));
  prefix_pages(chosen_, pages_);
  for (int32_t row = 0; row < batch.num_rows(); ++row) {
    rows_.push_back({pages_[at(row)], -1});
    if (rows_.back().pages == 0) continue;
    rows_.back().merge = part_.tokens;
    for (int32_t i = 0; i < batch.query_len(row); ++i) {
      MergeToken& merge = merges_[part_.tokens++];
      merge = {};
      merge.token = batch.query_start_loc[at(row)] + i;
    }
  }
  choose_pieces(batch);
  for (const Level& level : levels_) write_level(batch, level);
  TENON_CHECK_LE(int64_t{part_.tokens}, room_.tokens);
  TENON_CHECK_LE(int64_t{part_.tiles}, room_.tiles);
  TENON_CHECK_LE(part_.rows, room_.partial_rows);
  part_.bytes = layout.tiles_at + part_.tiles * static_cast<int64_t>(sizeof(PrefixTile));
  *reinterpret_cast<CascadeHeader*>(section) = {part_.tiles, part_.tokens};
  return part_;
}

// Seconds that a level's pass takes less than its rows by themselves would.
double CascadePlanner::seconds_saved(const PrefixLevel& level) const {
  const double key_bytes = 4.0 * shape_.head_dim * shape_.num_kv_heads;
  const double units =
      static_cast<double>(ceil_div(level.queries, shape_.tile_tokens())) * shape_.num_kv_heads;
  const double flops = 4.0 * units * level.keys * shape_.tile_rows * shape_.head_dim;
  const double partials =
      8.0 * level.queries * shape_.num_kv_heads * shape_.group * shape_.head_dim;
  const double pass =
      std::max(flops / (shape_.blocks * kPassFlops) + kTileSeconds * units / shape_.blocks,
               level.keys * key_bytes / kStreamBytes) +
      2 * partials / kPartialBytes + kLevelSeconds;
  return level.rows * level.keys * key_bytes / kSharedBytes - pass;
}

void CascadePlanner::choose(const BatchView& batch) {
  chosen_.clear();
  // The passes leave partial results to rows that the decode kernel takes as one tile.
  for (const int32_t row : batch.prefix_rows) {
    if (batch.query_len(row) > shape_.max_row_tokens) return;
  }
  double saved = -kPassesSeconds;
  const auto pays = [&](const PrefixLevel& level) {
    if (level.depth >= kMaxPrefixLevels) return false;
    if (shape_.mode == CascadeMode::kOn) return true;
    const double seconds = seconds_saved(level);
    if (seconds <= 0) return false;
    saved += seconds;
    return true;
  };
  choose_prefix_groups(batch, shape_.page_size, 1, std::ref(pays), chosen_);
  if (shape_.mode == CascadeMode::kAuto && saved <= 0) chosen_.clear();
}

// Cuts the levels' keys into pieces of one length, such that the passes take least time.
void CascadePlanner::choose_pieces(const BatchView& batch) {
  levels_.clear();
  int32_t longest = 0;
  for (const PrefixGroup& group : chosen_.groups) {
    Level& level = levels_.emplace_back();
    level.group = &group;
    level.keys = (group.end_page - group.begin_page) * shape_.page_size;
    for (int32_t i = group.first; i < group.first + group.count; ++i) {
      level.queries += batch.query_len(chosen_.rows[at(i)]);
    }
    longest = std::max(longest, level.keys);
  }
  // Pieces begin with a page, and end with a step of the kernel where pages allow it.
  const int64_t step =
      shape_.block_keys % shape_.page_size == 0 ? shape_.block_keys : shape_.page_size;
  // What a tile costs besides its products, in keys.
  const double tile_keys = kTileSeconds * kPassFlops / (4.0 * shape_.tile_rows * shape_.head_dim);
  int64_t best = longest;
  double least = 0;
  for (int64_t cuts = 1;; ++cuts) {
    const int64_t piece = ceil_div(ceil_div(longest, cuts), step) * step;
    int64_t tiles = 0;
    int64_t extra = 0;
    double keys = 0;
    for (const Level& level : levels_) {
      const int64_t units = ceil_div(level.queries, shape_.tile_tokens()) * shape_.num_kv_heads;
      const int64_t pieces = ceil_div(level.keys, piece);
      tiles += units * pieces;
      extra += units * (pieces - 1);
      keys += static_cast<double>(units * level.keys);
    }
    if (extra > max_extra_tiles(shape_)) break;
    const auto rounds = static_cast<double>(ceil_div(tiles, shape_.blocks));
    const double cost = rounds * (keys / static_cast<double>(tiles) + tile_keys);
    if (cuts == 1 || cost < least) {
      least = cost;
      best = piece;
    }
    if (piece == step) break;
  }
  for (Level& level : levels_) {
    level.pieces = static_cast<int32_t>(ceil_div(level.keys, best));
    level.piece = static_cast<int32_t>(ceil_div(ceil_div(level.keys, level.pieces), step) * step);
  }
  std::sort(levels_.begin(), levels_.end(), [](const Level& a, const Level& b) {
    const int32_t a_keys = std::min(a.piece, a.keys);
    const int32_t b_keys = std::min(b.piece, b.keys);
    return a_keys != b_keys ? a_keys > b_keys : a.group < b.group;
  });
}

// Tiles of the same keys follow each other: they find them in the L2 cache.
void CascadePlanner::write_level(const BatchView& batch, const Level& level) {
  const PrefixGroup& group = *level.group;
  const int32_t token_begin = num_list_tokens_;
  const auto first_row = static_cast<int32_t>(part_.rows);
  const int32_t tile_tokens = shape_.tile_tokens();
  const int32_t heads = shape_.num_kv_heads;
  // Partial rows of a full tile, all its pieces and heads.
  const int32_t tile_partials = tile_tokens * shape_.group * heads * level.pieces;
  int32_t token = 0;  // of the level
  for (int32_t i = group.first; i < group.first + group.count; ++i) {
    const int32_t row = chosen_.rows[at(i)];
    for (int32_t q = 0; q < batch.query_len(row); ++q, ++token) {
      tokens_[num_list_tokens_++] = batch.query_start_loc[at(row)] + q;
      const int32_t tile = token / tile_tokens;
      const int32_t tokens_of_tile = std::min(tile_tokens, level.queries - tile * tile_tokens);
      MergeToken& merge = merges_[rows_[at(row)].merge + q];
      MergePart& merge_part = merge.parts[merge.num_parts++];
      merge_part.first_row = first_row + tile * tile_partials + token % tile_tokens * shape_.group;
      merge_part.tile_rows = tokens_of_tile * shape_.group;
      merge_part.pieces = level.pieces;
      merge_part.reserved = 0;
    }
  }
  const int32_t page_begin =
      batch.page_indptr[at(chosen_.rows[at(group.first)])] + group.begin_page;
  for (int32_t piece = 0; piece < level.pieces; ++piece) {
    const int32_t key_begin = piece * level.piece;
    for (int32_t head = 0; head < heads; ++head) {
      for (int32_t begin = 0; begin < level.queries; begin += tile_tokens) {
        PrefixTile& tile = tiles_[part_.tiles++];
        tile.token_begin = token_begin + begin;
        tile.num_tokens = std::min(tile_tokens, level.queries - begin);
        tile.num_keys = std::min(level.piece, level.keys - key_begin);
        tile.visible = tile.num_keys;
        tile.page_begin = page_begin + key_begin / shape_.page_size;
        tile.kv_head = head;
        tile.first_row = first_row + begin / tile_tokens * tile_partials +
                         (piece * heads + head) * tile.num_tokens * shape_.group;
        tile.reserved = 0;
      }
    }
  }
  part_.rows += int64_t{level.queries} * shape_.group * heads * level.pieces;
}

}  // namespace tenon::flash
