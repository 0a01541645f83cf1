#include "attention/backends/flash/decode_plan.h"

#include <algorithm>

#include "attention/batch_view.h"
#include "base/check.h"

namespace tenon::flash {
namespace {

// Lengths are counted in chunks of keys; cuts fall between chunks.
constexpr int32_t kChunkKeys = 16;
// What starting, merging and writing a unit costs, in chunks streamed by one block.
constexpr int64_t kUnitCost = 6;
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
    DecodeStretch& s = stretches_[next_];
    s = {};
    s.unit_begin = static_cast<int32_t>(begin.unit);
    s.unit_end = static_cast<int32_t>(end.chunk == 0 ? end.unit : end.unit + 1);
    s.key_begin = static_cast<int32_t>(begin.chunk * kChunkKeys);
    s.key_end = end.chunk == 0 ? DecodeStretch::kAllKeys
                               : static_cast<int32_t>(end.chunk * kChunkKeys);
    s.first_block = open_;
    if (begin.chunk != 0 && end.unit > begin.unit) {
      for (int32_t b = open_; b < next_; ++b) stretches_[static_cast<size_t>(b)].last_block = next_;
    }
    // The unit that this stretch leaves open began here, unless it is the one it began within.
    if (end.chunk != 0 && (begin.chunk == 0 || end.unit > begin.unit)) open_ = next_;
    ++next_;
  }
  void fill_up() {
    for (; static_cast<size_t>(next_) < stretches_.size(); ++next_) {
      stretches_[static_cast<size_t>(next_)] = {};
    }
  }

 private:
  std::span<DecodeStretch> stretches_;
  int32_t next_ = 0;
  int32_t open_ = 0;  // block where the unit that is open at the last cut began
};

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
    std::copy_n(first, std::clamp(pages, 0, DecodeStretch::kPages), s.pages);
  }
}

}  // namespace

int32_t make_decode_tiles(const DecodePlanShape& shape,
                          const BatchView& batch,
                          int32_t row,
                          std::span<DecodeTile> room) {
  const auto b = static_cast<size_t>(row);
  const int32_t query_len = batch.query_len(row);
  const int32_t seq_len = batch.seq_lens[b];
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
    tile.page_begin = batch.page_indptr[b];
    tile.reserved = 0;
  }
  return static_cast<int32_t>(count);
}

void deal_decode_tiles(const DecodePlanShape& shape,
                       std::span<const DecodeTile> tiles,
                       std::span<const int32_t> page_indices,
                       std::span<DecodeStretch> stretches) {
  TENON_CHECK_EQ(static_cast<int64_t>(stretches.size()), int64_t{shape.blocks});
  Dealer dealer(stretches);
  const int64_t heads = shape.num_kv_heads;
  const int64_t units = static_cast<int64_t>(tiles.size()) * heads;
  int64_t total = 0;
  int64_t longest = 0;
  for (const DecodeTile& tile : tiles) {
    total += (chunks_of(tile) + kUnitCost) * heads;
    longest = std::max(longest, chunks_of(tile));
  }
  // A block's stretch, when the line is cut evenly; no shorter than the least piece of one unit.
  const int64_t least = kUnitCost + kLeastPiece;
  const int64_t cuts = std::clamp<int64_t>(total / least, 1, shape.blocks);

  if (units <= shape.blocks) {
    const int64_t piece = least_piece_for_one_each(shape, tiles, std::max<int64_t>(longest, 1));
    // Against an even cut, where blocks often serve the end of one unit and the start of the next.
    if (piece + kUnitCost <= (total + cuts - 1) / cuts + kUnitCost) {
      for (int64_t unit = 0; unit < units; ++unit) {
        const int64_t chunks = chunks_of(tiles[static_cast<size_t>(unit / heads)]);
        const int64_t pieces = std::max<int64_t>((chunks + piece - 1) / piece, 1);
        for (int64_t i = 0; i < pieces; ++i) {
          const Cut begin{unit, chunks * i / pieces};
          const Cut end = i + 1 == pieces ? Cut{unit + 1, 0} : Cut{unit, chunks * (i + 1) / pieces};
          dealer.add(begin, end);
        }
      }
      dealer.fill_up();
      give_starts(shape, tiles, page_indices, stretches);
      return;
    }
  }

  size_t t = 0;
  int64_t tile_begin = 0;  // of tile t on the line
  Cut begin;
  for (int64_t block = 1; block <= cuts; ++block) {
    Cut end{units, 0};
    if (block < cuts) {
      const int64_t target = total * block / cuts;
      while (target - tile_begin >= (chunks_of(tiles[t]) + kUnitCost) * heads) {
        tile_begin += (chunks_of(tiles[t]) + kUnitCost) * heads;
        ++t;
      }
      const int64_t chunks = chunks_of(tiles[t]);
      const int64_t head = (target - tile_begin) / (chunks + kUnitCost);
      const int64_t chunk = (target - tile_begin) % (chunks + kUnitCost) - kUnitCost;
      end = {static_cast<int64_t>(t) * heads + head, chunk};
      if (chunk < kLeastPiece) end.chunk = 0;
      if (chunks - chunk < kLeastPiece) end = {end.unit + 1, 0};
    }
    dealer.add(begin, end);
    begin = end;
  }
  dealer.fill_up();
  give_starts(shape, tiles, page_indices, stretches);
}

}  // namespace tenon::flash
