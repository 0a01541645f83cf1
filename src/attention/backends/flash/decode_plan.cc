#include "attention/backends/flash/decode_plan.h"

#include <algorithm>

#include "attention/batch_view.h"
#include "base/check.h"

namespace tenon::flash {
namespace {

// Lengths are counted in chunks of keys; cuts fall between chunks.
constexpr int32_t kChunkKeys = 16;
static_assert(kChunkKeys % kBulkKeys == 0);  // a bulk copy stays in its page
// What starting, merging and writing a unit costs, in chunks streamed by one block.
constexpr int64_t kUnitCost = 6;
// Blocks with less than this (about 400 us) get equal shares; else an eighth is kept back.
constexpr int64_t kLeastToKeepBack = 1500;
// A cut this close to the end of a unit moves there: the piece would cost more than it balances.
constexpr int64_t kLeastPiece = 4;

int64_t chunks_of(const DecodeTile& tile) {
  return (int64_t{tile.keys} + kChunkKeys - 1) / kChunkKeys;
}

// A place on the line of units.
struct Cut {
  int64_t unit = 0;
  int64_t chunk = 0;
};

// Turns consecutive cuts into stretches, and tells every piece of a cut unit where the unit begins
// and ends.
class Dealer {
 public:
  explicit Dealer(std::span<DecodeStretch> stretches) : stretches_(stretches) {}

  void add(const Cut& begin, const Cut& end) {
    if (begin.unit == end.unit && begin.chunk == end.chunk) return;
    DecodeStretch& s = stretches_[static_cast<size_t>(next_)];
    s = {};
    s.unit_begin = static_cast<int32_t>(begin.unit);
    s.unit_end = static_cast<int32_t>(end.chunk == 0 ? end.unit : end.unit + 1);
    s.key_begin = static_cast<int32_t>(begin.chunk * kChunkKeys);
    s.key_end =
        end.chunk == 0 ? DecodeStretch::kAllKeys : static_cast<int32_t>(end.chunk * kChunkKeys);
    s.first_stretch = open_;
    if (begin.chunk != 0 && end.unit > begin.unit) {
      for (int32_t i = open_; i < next_; ++i) {
        stretches_[static_cast<size_t>(i)].last_stretch = next_;
      }
    }
    // The unit that this stretch leaves open began here, unless it is the one it began within.
    if (end.chunk != 0 && (begin.chunk == 0 || end.unit > begin.unit)) open_ = next_;
    ++next_;
  }
  [[nodiscard]] int32_t count() const { return next_; }

 private:
  std::span<DecodeStretch> stretches_;
  int32_t next_ = 0;
  int32_t open_ = 0;  // stretch where the unit that is open at the last cut began
};

// The line of units, walked from its start.
class Line {
 public:
  Line(const DecodePlanShape& shape, std::span<const DecodeTile> tiles)
      : heads_(shape.num_kv_heads), tiles_(tiles) {
    for (const DecodeTile& tile : tiles) length_ += length_of(tile);
  }
  [[nodiscard]] int64_t length() const { return length_; }
  [[nodiscard]] Cut end() const { return {static_cast<int64_t>(tiles_.size()) * heads_, 0}; }

  // The cut nearest to `place`. Requires: places that do not decrease.
  Cut cut_at(int64_t place) {
    while (t_ < tiles_.size() && place - tile_begin_ >= length_of(tiles_[t_])) {
      tile_begin_ += length_of(tiles_[t_++]);
    }
    if (t_ == tiles_.size()) return end();
    const int64_t chunks = chunks_of(tiles_[t_]);
    const int64_t unit =
        static_cast<int64_t>(t_) * heads_ + (place - tile_begin_) / (chunks + kUnitCost);
    const int64_t chunk = (place - tile_begin_) % (chunks + kUnitCost) - kUnitCost;
    if (chunks - chunk < kLeastPiece) return {unit + 1, 0};
    return {unit, chunk < kLeastPiece ? 0 : chunk};
  }

 private:
  [[nodiscard]] int64_t length_of(const DecodeTile& tile) const {
    return (chunks_of(tile) + kUnitCost) * heads_;
  }

  const int64_t heads_;
  std::span<const DecodeTile> tiles_;
  int64_t length_ = 0;
  size_t t_ = 0;
  int64_t tile_begin_ = 0;  // of tile t_ on the line
};

// Pieces of at most `piece` chunks.
void deal_one_each(const DecodePlanShape& shape,
                   std::span<const DecodeTile> tiles,
                   int64_t piece,
                   Dealer& dealer) {
  const int64_t units = static_cast<int64_t>(tiles.size()) * shape.num_kv_heads;
  for (int64_t unit = 0; unit < units; ++unit) {
    const int64_t chunks = chunks_of(tiles[static_cast<size_t>(unit / shape.num_kv_heads)]);
    const int64_t pieces = std::max<int64_t>((chunks + piece - 1) / piece, 1);
    for (int64_t i = 0; i < pieces; ++i) {
      dealer.add({unit, chunks * i / pieces},
                 i + 1 == pieces ? Cut{unit + 1, 0} : Cut{unit, chunks * (i + 1) / pieces});
    }
  }
}

// Equal stretches, one a block; or seven eighths of the line so, and the rest in stretches of a
// twenty-fifth and then a fiftieth of a block's share.
void deal_evenly(const DecodePlanShape& shape, Line& line, Dealer& dealer) {
  const int64_t blocks = shape.blocks;
  const int64_t least = kUnitCost + kLeastPiece;
  Cut begin;
  const auto deal_to = [&](int64_t place) {
    const Cut end = place >= line.length() ? line.end() : line.cut_at(place);
    dealer.add(begin, end);
    begin = end;
  };
  if (max_decode_stretches(shape) < 5 * blocks || line.length() / blocks < kLeastToKeepBack) {
    const int64_t cuts = std::clamp<int64_t>(line.length() / least, 1, blocks);
    for (int64_t i = 1; i <= cuts; ++i) deal_to(line.length() * i / cuts);
    return;
  }
  const int64_t unit = line.length() / 50;  // a fiftieth of what all blocks have
  for (int64_t i = 1; i <= blocks; ++i) deal_to(44 * unit * i / blocks);
  for (int64_t i = 1; i <= 2 * blocks; ++i) deal_to(44 * unit + 2 * unit * i / blocks);
  for (int64_t i = 1; i < 2 * blocks; ++i) deal_to(48 * unit + unit * i / blocks);
  deal_to(line.length());
}

// With fewer units than blocks: the least number of chunks such that pieces of at most that many,
// one a block, are enough.
int64_t least_piece_for_one_each(const DecodePlanShape& shape,
                                 std::span<const DecodeTile> tiles,
                                 int64_t longest) {
  int64_t low = std::min(kLeastPiece, longest);
  int64_t high = longest;
  while (low < high) {
    const int64_t piece = (low + high) / 2;
    int64_t pieces = 0;
    for (const DecodeTile& tile : tiles) {
      pieces += std::max<int64_t>((chunks_of(tile) + piece - 1) / piece, 1);
    }
    if (pieces * shape.num_kv_heads <= shape.blocks) {
      high = piece;
    } else {
      low = piece + 1;
    }
  }
  return high;
}

// Copies to every stretch what its first unit needs.
void give_starts(const DecodePlanShape& shape,
                 std::span<const DecodeTile> tiles,
                 std::span<const int32_t> page_indices,
                 std::span<DecodeStretch> stretches) {
  for (DecodeStretch& s : stretches) {
    if (s.unit_begin >= s.unit_end) continue;
    s.tile = tiles[static_cast<size_t>(s.unit_begin / shape.num_kv_heads)];
    s.first_page = s.key_begin / shape.page_size;
    const int32_t pages = num_pages(s.tile.keys, shape.page_size) - s.first_page;
    const auto first = page_indices.begin() + s.tile.page_begin + s.first_page;
    std::copy_n(first, std::clamp(pages, 0, int32_t{DecodeStretch::kPages}), s.pages);
  }
}

}  // namespace

int32_t make_decode_tiles(const DecodePlanShape& shape,
                          const BatchView& batch,
                          int32_t row,
                          std::span<DecodeTile> room,
                          const DecodeRowStart& start) {
  const auto b = static_cast<size_t>(row);
  const int32_t query_len = batch.query_len(row);
  const int32_t seq_len = batch.seq_lens[b] - start.pages * shape.page_size;
  const int64_t packed = int64_t{query_len} * shape.group;
  size_t count = 0;
  for (int64_t first = 0; first < packed; first += shape.tile_rows) {
    const int64_t rows = std::min<int64_t>(shape.tile_rows, packed - first);
    const auto last_token = static_cast<int32_t>((first + rows - 1) / shape.group);
    DecodeTile& tile = room[count++];
    tile.keys = seq_len;
    if (shape.causal && seq_len != 0) tile.keys = seq_len - query_len + last_token + 1;
    tile.seq_len = seq_len;
    tile.query_len = query_len;
    tile.first_token = batch.query_start_loc[b];
    tile.first_row = static_cast<int32_t>(first);
    tile.rows = static_cast<int32_t>(rows);
    tile.page_begin = batch.page_indptr[b] + start.pages;
    tile.merge = start.merge + 1;
  }
  return static_cast<int32_t>(count);
}

int32_t deal_decode_tiles(const DecodePlanShape& shape,
                          std::span<const DecodeTile> tiles,
                          std::span<const int32_t> page_indices,
                          std::span<DecodeStretch> stretches) {
  TENON_CHECK_GE(static_cast<int64_t>(stretches.size()), int64_t{max_decode_stretches(shape)});
  Dealer dealer(stretches);
  Line line(shape, tiles);
  const int64_t units = static_cast<int64_t>(tiles.size()) * shape.num_kv_heads;
  bool dealt = false;
  if (units <= shape.blocks && line.length() / shape.blocks < kLeastToKeepBack) {
    int64_t longest = 1;
    for (const DecodeTile& tile : tiles) longest = std::max(longest, chunks_of(tile));
    const int64_t piece = least_piece_for_one_each(shape, tiles, longest);
    // Against equal shares, with which blocks often end one unit and start the next.
    const int64_t share = std::max((line.length() + shape.blocks - 1) / shape.blocks,
                                   std::min(line.length(), kUnitCost + kLeastPiece));
    if (piece <= share) {
      deal_one_each(shape, tiles, piece, dealer);
      dealt = true;
    }
  }
  if (!dealt && units > 0) deal_evenly(shape, line, dealer);
  const int32_t total = dealer.count();
  const int32_t count = std::max(total, shape.blocks);
  for (int32_t i = total; i < count; ++i) stretches[static_cast<size_t>(i)] = {};
  for (DecodeStretch& s : stretches.first(static_cast<size_t>(count))) s.total = total;
  give_starts(shape, tiles, page_indices, stretches.first(static_cast<size_t>(total)));
  return count;
}

}  // namespace tenon::flash
