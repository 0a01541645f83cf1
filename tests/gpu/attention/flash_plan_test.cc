// The decode kernel's plan: every key of every unit in exactly one stretch, pieces that find each
// other, loads that are even. Needs no GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <set>
#include <vector>

#include "attention/backends/flash/decode_plan.h"
#include "attention/synthetic_batch.h"

namespace tenon::flash {
namespace {

struct Dealt {
  std::vector<DecodeTile> tiles;
  std::vector<DecodeStretch> stretches;
};

// Every stretch has the tile and the first pages of its first unit.
void check_starts(const DecodePlanShape& shape, const SyntheticBatch& batch, const Dealt& dealt) {
  for (const DecodeStretch& s : dealt.stretches) {
    if (s.unit_begin >= s.unit_end) continue;
    const DecodeTile& tile = dealt.tiles[static_cast<size_t>(s.unit_begin / shape.num_kv_heads)];
    EXPECT_EQ(s.tile.page_begin, tile.page_begin);
    EXPECT_EQ(s.tile.keys, tile.keys);
    EXPECT_EQ(s.tile.first_row, tile.first_row);
    EXPECT_EQ(s.first_page, s.key_begin / shape.page_size);
    for (int32_t i = 0; i < DecodeStretch::kPages; ++i) {
      if (int64_t{s.first_page + i} * shape.page_size >= tile.keys) break;
      EXPECT_EQ(s.pages[i],
                batch.page_indices[static_cast<size_t>(tile.page_begin + s.first_page + i)]);
    }
  }
}

Dealt deal(const DecodePlanShape& shape, const std::vector<BatchSpecRow>& rows) {
  const SyntheticBatch batch = make_batch(rows, shape.page_size, blocks_needed(rows, shape.page_size), 3);
  Dealt dealt;
  dealt.tiles.resize(static_cast<size_t>(
      max_decode_tiles(shape, batch.view.num_rows(), batch.view.num_tokens())));
  size_t count = 0;
  for (int32_t row = 0; row < batch.view.num_rows(); ++row) {
    count += static_cast<size_t>(
        make_decode_tiles(shape, batch.view, row, std::span(dealt.tiles).subspan(count)));
  }
  EXPECT_LE(count, dealt.tiles.size());
  dealt.tiles.resize(count);
  dealt.stretches.resize(static_cast<size_t>(max_decode_stretches(shape)));
  const int32_t stretches =
      deal_decode_tiles(shape, dealt.tiles, batch.page_indices, dealt.stretches);
  EXPECT_GE(stretches, shape.blocks);
  dealt.stretches.resize(static_cast<size_t>(stretches));
  for (const DecodeStretch& s : dealt.stretches) {
    EXPECT_EQ(s.total, dealt.stretches[0].total);
    EXPECT_EQ(s.unit_begin < s.unit_end, &s - dealt.stretches.data() < s.total);
  }
  check_starts(shape, batch, dealt);
  return dealt;
}

struct Piece {
  int32_t begin, end, stretch, first, last;
};

// Reads the stretches as the kernel does; returns the pieces of every unit in the order of keys.
std::vector<std::vector<Piece>> pieces_of(const DecodePlanShape& shape, const Dealt& dealt) {
  std::vector<std::vector<Piece>> units(dealt.tiles.size() *
                                        static_cast<size_t>(shape.num_kv_heads));
  for (int32_t i = 0; i < static_cast<int32_t>(dealt.stretches.size()); ++i) {
    const DecodeStretch& s = dealt.stretches[static_cast<size_t>(i)];
    for (int32_t unit = s.unit_begin; unit < s.unit_end; ++unit) {
      const int32_t keys = dealt.tiles[static_cast<size_t>(unit / shape.num_kv_heads)].keys;
      const int32_t begin = unit == s.unit_begin ? s.key_begin : 0;
      const int32_t end = unit + 1 == s.unit_end ? std::min(s.key_end, keys) : keys;
      units[static_cast<size_t>(unit)].push_back({begin, end, i, begin > 0 ? s.first_stretch : i,
                                                  end < keys ? s.last_stretch : i});
    }
  }
  return units;
}

void check(const DecodePlanShape& shape, const std::vector<BatchSpecRow>& rows) {
  const Dealt dealt = deal(shape, rows);
  const auto units = pieces_of(shape, dealt);
  std::set<int32_t> counters;
  std::set<std::pair<int32_t, bool>> slots;
  for (size_t unit = 0; unit < units.size(); ++unit) {
    const auto& pieces = units[unit];
    const int32_t keys = dealt.tiles[unit / static_cast<size_t>(shape.num_kv_heads)].keys;
    ASSERT_FALSE(pieces.empty()) << "unit " << unit;
    int32_t at = 0;
    for (const Piece& piece : pieces) {
      EXPECT_EQ(piece.begin, at);
      EXPECT_TRUE(piece.end > piece.begin || keys == 0);
      EXPECT_EQ(piece.first, pieces.front().stretch);
      EXPECT_EQ(piece.last, pieces.back().stretch);
      at = piece.end;
      if (pieces.size() > 1) {
        const bool opens = piece.stretch == piece.first;
        EXPECT_TRUE(slots.emplace(piece.stretch, opens).second) << "two pieces in one slot";
      }
    }
    EXPECT_EQ(at, keys);
    // Pieces lie in consecutive stretches: the kernel counts them by that.
    EXPECT_EQ(pieces.back().stretch - pieces.front().stretch + 1,
              static_cast<int32_t>(pieces.size()));
    if (pieces.size() > 1) {
      EXPECT_TRUE(counters.insert(pieces.front().stretch).second) << "two units count in one place";
    }
  }
}

std::vector<BatchSpecRow> decode_rows(int32_t count, int32_t keys) {
  return std::vector<BatchSpecRow>(static_cast<size_t>(count), {1, keys});
}

TEST(FlashPlan, CoversEveryKeyOnce) {
  for (const int32_t blocks : {132, 40, 1}) {
    const DecodePlanShape shape{blocks, 8, 4, 16, 16, true};
    for (const int32_t rows : {1, 2, 4, 16, 17, 64, 256}) {
      for (const int32_t keys : {0, 1, 15, 16, 17, 64, 100, 1024, 8191}) {
        check(shape, decode_rows(rows, keys));
      }
    }
    check(shape, {});
  }
}

TEST(FlashPlan, CoversEveryKeyOnceInRaggedBatches) {
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    DecodePlanShape shape;
    shape.blocks = 1 + static_cast<int32_t>(random() % 264);
    shape.num_kv_heads = 1 + static_cast<int32_t>(random() % 8);
    shape.group = 1 + static_cast<int32_t>(random() % 16);
    shape.tile_rows = random() % 2 == 0 ? 16 : 64;
    shape.page_size = 1 + static_cast<int32_t>(random() % 40);
    shape.causal = random() % 4 != 0;
    std::vector<BatchSpecRow> rows(random() % 40);
    for (BatchSpecRow& row : rows) {
      row.query_len = random() % 3 == 0 ? static_cast<int32_t>(random() % 50) : 1;
      row.seq_len = random() % 8 == 0
                        ? 0
                        : row.query_len + static_cast<int32_t>(random() % (random() % 2 ? 50 : 5000));
    }
    check(shape, rows);
  }
}

// The longest stretch against an even share of a block, in keys.
double longest_share(const DecodePlanShape& shape, const std::vector<BatchSpecRow>& rows) {
  const Dealt dealt = deal(shape, rows);
  std::vector<int64_t> load(dealt.stretches.size());
  int64_t total = 0;
  for (const auto& pieces : pieces_of(shape, dealt)) {
    for (const Piece& piece : pieces) {
      load[static_cast<size_t>(piece.stretch)] += piece.end - piece.begin;
      total += piece.end - piece.begin;
    }
  }
  return static_cast<double>(*std::max_element(load.begin(), load.end())) * shape.blocks /
         static_cast<double>(total);
}

TEST(FlashPlan, SpreadsBytesEvenly) {
  const DecodePlanShape shape{132, 8, 4, 16, 16, true};
  EXPECT_LT(longest_share(shape, decode_rows(1, 1024)), 1.05);
  EXPECT_LT(longest_share(shape, decode_rows(16, 1024)), 1.05);
  EXPECT_LT(longest_share(shape, decode_rows(17, 1024)), 1.15);
  std::vector<BatchSpecRow> ragged = decode_rows(63, 500);
  ragged.push_back({1, 30000});
  EXPECT_LT(longest_share(shape, ragged), 1.15);  // starting the short rows counts, too
}

// Where there is much to do, blocks start with less than their share, and the last stretches are short.
TEST(FlashPlan, KeepsWorkBackForBlocksThatAreQuick) {
  const DecodePlanShape shape{132, 8, 4, 16, 16, true};
  const Dealt dealt = deal(shape, decode_rows(64, 8192));
  EXPECT_GT(dealt.stretches.size(), 4U * 132U);
  EXPECT_LE(dealt.stretches.size(), 5U * 132U);
  EXPECT_LT(longest_share(shape, decode_rows(64, 8192)), 0.9);
  const DecodePlanShape wide{132, 8, 4, 64, 16, true};
  EXPECT_EQ(deal(wide, decode_rows(64, 8192)).stretches.size(), 132U);
}

TEST(FlashPlan, CutsASingleUnitOverNearlyAllBlocks) {
  const DecodePlanShape shape{132, 1, 8, 16, 16, true};
  const Dealt dealt = deal(shape, decode_rows(1, 131072));
  EXPECT_GE(pieces_of(shape, dealt)[0].size(), 130U);
}

TEST(FlashPlan, ATileSeesWhatItsLastTokenSees) {
  const DecodePlanShape shape{4, 1, 3, 16, 16, true};
  const Dealt dealt = deal(shape, {{10, 25}});
  ASSERT_EQ(dealt.tiles.size(), 2U);
  EXPECT_EQ(dealt.tiles[0].rows, 16);
  EXPECT_EQ(dealt.tiles[0].keys, 15 + 6);  // packed row 15 belongs to token 5
  EXPECT_EQ(dealt.tiles[1].first_row, 16);
  EXPECT_EQ(dealt.tiles[1].rows, 14);
  EXPECT_EQ(dealt.tiles[1].keys, 25);
}

}  // namespace
}  // namespace tenon::flash
