// The decode kernel's plan: every key of every unit in exactly one stretch, pieces that find each
// other, loads that are even. Needs no GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <set>
#include <vector>

#include "attention/backends/flash/cascade_plan.h"
#include "attention/backends/flash/decode_plan.h"
#include "attention/backends/flash/flash_plan.h"
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
  const SyntheticBatch batch =
      make_batch(rows, shape.page_size, blocks_needed(rows, shape.page_size), 3);
  Dealt dealt;
  dealt.tiles.resize(
      static_cast<size_t>(max_decode_tiles(shape, batch.view.num_rows(), batch.view.num_tokens())));
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
      units[static_cast<size_t>(unit)].push_back(
          {begin, end, i, begin > 0 ? s.first_stretch : i, end < keys ? s.last_stretch : i});
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
      row.seq_len =
          random() % 8 == 0
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

// Where there is much to do, blocks start with less than their share, and the last stretches are
// short.
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

// ---- the plan of a whole step ----

PlanShape step_shape(int32_t group, AttentionSplit split) {
  PlanShape shape;
  shape.multiprocessors = 132;
  shape.head_dim = 128;
  shape.split = split;
  for (DecodePlanShape* decode : {&shape.narrow, &shape.wide}) {
    decode->blocks = 132;
    decode->num_kv_heads = 8;
    decode->group = group;
    decode->tile_rows = decode == &shape.wide ? 64 : group <= 8 ? 8 : 16;
    decode->page_size = 16;
  }
  shape.prefill.num_q_heads = 8 * group;
  shape.prefill.num_kv_heads = 8;
  shape.prefill.head_dim = 128;
  shape.prefill.page_size = 16;
  shape.has_prefill = true;
  return shape;
}

class StepPlan {
 public:
  StepPlan(const PlanShape& shape, std::string_view spec)
      : StepPlan(shape, *parse_batch_spec(spec)) {}
  StepPlan(const PlanShape& shape, const std::vector<BatchSpecRow>& rows) {
    const SyntheticBatch batch = make_batch(rows, 16, blocks_needed(rows, 16), 3);
    AttentionLimits limits;
    limits.max_num_seqs = std::max(batch.view.num_rows(), 1);
    limits.max_num_batched_tokens = std::max(batch.view.num_tokens(), 1);
    limits.max_seq_len = std::max(batch.view.max_seq_len, 1);
    const int64_t most = FlashPlan::max_bytes(shape, limits);
    std::vector<std::byte> buffer(static_cast<size_t>(most) + 64);
    std::vector<PrefillRow> room;
    plan.build(shape, batch.view, {}, buffer.data(), room);
    EXPECT_LE(plan.bytes, most);
    EXPECT_EQ(plan.bytes - plan.pages_at,
              static_cast<int64_t>(batch.page_indices.size() * sizeof(int32_t)));
    // A row without query tokens has a way, but nothing to do.
    EXPECT_LE(plan.narrow.rows + plan.wide.rows + plan.prefill.rows, batch.view.num_rows());
  }
  FlashPlan plan;
};

TEST(FlashStepPlan, FitsInItsBoundsWhateverTheBatch) {
  std::mt19937 random(9);
  for (int i = 0; i < 200; ++i) {
    const PlanShape shape = step_shape(1 + static_cast<int32_t>(random() % 20),
                                       static_cast<AttentionSplit>(random() % 3));
    std::vector<BatchSpecRow> rows(random() % 30);
    for (BatchSpecRow& row : rows) {
      row.query_len = random() % 2 == 0 ? 1 : static_cast<int32_t>(random() % 300);
      row.seq_len = random() % 9 == 0 ? 0 : row.query_len + static_cast<int32_t>(random() % 3000);
    }
    const StepPlan step(shape, rows);
  }
}

TEST(FlashStepPlan, RowsGoTheirWays) {
  const PlanShape shape = step_shape(4, AttentionSplit::kAuto);
  const FlashPlan mixed = StepPlan(shape, "1q2k_63q1s2k").plan;
  EXPECT_EQ(mixed.narrow.rows, 63);
  EXPECT_EQ(mixed.prefill.rows, 1);
  EXPECT_TRUE(mixed.side_by_side);
  EXPECT_EQ(mixed.narrow.blocks + mixed.prefill.max_blocks, 132);

  const FlashPlan decode = StepPlan(shape, "63q1s2k").plan;
  EXPECT_EQ(decode.narrow.blocks, 132);
  EXPECT_EQ(decode.prefill.rows, 0);
  EXPECT_FALSE(decode.side_by_side);

  // The decode rows fill the memory's time; the prefill is short.
  EXPECT_FALSE(StepPlan(shape, "1q256_128q1s4k").plan.side_by_side);
  // A few decode rows are lost among the tiles of a long prefill.
  EXPECT_EQ(StepPlan(shape, "8q1k_4q1s500").plan.prefill.rows, 12);
  // One short extend of a long context is cut over all blocks; many go to the prefill kernel.
  EXPECT_EQ(StepPlan(shape, "1q8s8k").plan.wide.rows, 1);
  EXPECT_EQ(StepPlan(shape, "40q8s8k").plan.prefill.rows, 40);
  EXPECT_EQ(StepPlan(shape, "40q2s8k").plan.narrow.rows, 40);

  const FlashPlan split = StepPlan(step_shape(4, AttentionSplit::kSplit), "1q2k_63q1s2k").plan;
  EXPECT_EQ(split.narrow.rows, 63);
  EXPECT_FALSE(split.side_by_side);
  const FlashPlan unified = StepPlan(step_shape(4, AttentionSplit::kUnified), "1q2k_63q1s2k").plan;
  EXPECT_EQ(unified.prefill.rows, 64);

  PlanShape no_prefill = shape;
  no_prefill.has_prefill = false;
  EXPECT_EQ(StepPlan(no_prefill, "1q2k_63q1s2k").plan.wide.rows, 1);

  // Rows without earlier keys read the step's own, unless pages hold something else.
  EXPECT_TRUE(StepPlan(shape, "q300").plan.prefill.plan.any_ragged);
  PlanShape pages_only = shape;
  pages_only.pages_only = true;
  EXPECT_FALSE(StepPlan(pages_only, "q300").plan.prefill.plan.any_ragged);
}

// What a captured graph holds: places and grids, which only the number of rows may decide.
TEST(FlashStepPlan, DecodeBatchesOfOneSizeLookAlikeToAGraph) {
  for (const int32_t group : {4, 12, 40}) {
    const PlanShape shape = step_shape(group, AttentionSplit::kAuto);
    const FlashPlan a = StepPlan(shape, "20q1s30").plan;
    const FlashPlan b = StepPlan(shape, "1q1s9000_17q1s5_q1s0_q1s0").plan;
    for (const auto part : {&FlashPlan::narrow, &FlashPlan::wide}) {
      EXPECT_EQ((a.*part).tiles, (b.*part).tiles);
      EXPECT_EQ((a.*part).blocks, (b.*part).blocks);
      EXPECT_EQ((a.*part).tiles_at, (b.*part).tiles_at);
      EXPECT_EQ((a.*part).stretches_at, (b.*part).stretches_at);
    }
    EXPECT_EQ(a.pages_at, b.pages_at);
    EXPECT_EQ(a.prefill.rows + b.prefill.rows, 0);
  }
}

// Cells of the grid of bench/results/2026-12-01-h200-attention.md: prefix levels are taken where
// they were faster, and not where they were slower by more than the 2 % that `auto` may be.
TEST(CascadePlan, AutoTakesLevelsWhereTheyWereMeasuredFaster) {
  CascadeShape shape;
  shape.mode = CascadeMode::kAuto;
  shape.num_kv_heads = 8;
  shape.group = 4;
  shape.head_dim = 128;
  shape.page_size = 16;
  shape.tile_rows = prefix_tile_rows(128);
  shape.block_keys = prefix_block_keys(128);
  shape.blocks = 132;
  shape.max_row_tokens = 2;
  const auto takes = [&](const char* spec) {
    const auto rows = parse_batch_spec(spec);
    SyntheticBatch batch = make_batch(*rows, 16, blocks_needed(*rows, 16), 3);
    share_prefixes(batch, 16);
    const AttentionLimits limits{256, 512, 65536};
    CascadePlanner planner;
    planner.prepare(shape, limits);
    std::vector<std::byte> section(
        static_cast<size_t>(CascadeLayout(cascade_room(shape, limits)).bytes));
    return planner.build(batch.view, section.data()).active();
  };
  for (const char* slower :
       {"2q1s8448p8k", "4q1s4352p4k", "8q1s2304p2k", "16q1s1280p1k", "32q1s768p512", "32q1s1280p1k",
        "64q1s512p256", "64q1s768p512", "128q1s512p256", "256q1s320p64", "256q1s512p256"}) {
    EXPECT_FALSE(takes(slower)) << slower;
  }
  for (const char* faster : {"4q1s33024p32k", "8q1s8448p8k", "16q1s4352p4k", "32q1s2304p2k",
                             "64q1s1280p1k", "128q1s1280p1k", "256q1s768p512", "256q1s8448p8k"}) {
    EXPECT_TRUE(takes(faster)) << faster;
  }
}

}  // namespace
}  // namespace tenon::flash
