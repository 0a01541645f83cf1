// Plans of the FlashInfer backend, read back the way the kernels read them. No GPU needed.
#include "attention/backends/flashinfer/plan.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <tuple>

#include "attention/synthetic_batch.h"

namespace tenon::flashinfer {
namespace {

constexpr int32_t kBlockSize = 16;

PlanShape llama_shape(AttentionSplit split = AttentionSplit::kAuto) {
  PlanShape shape;
  shape.num_q_heads = 32;
  shape.num_kv_heads = 8;
  shape.head_dim = 128;
  shape.block_size = kBlockSize;
  shape.num_sms = 132;
  shape.cuda_core = true;
  shape.fa3 = true;
  shape.split = split;
  return shape;
}

SyntheticBatch batch_of(std::string_view spec) {
  auto rows = parse_batch_spec(spec);
  EXPECT_TRUE(rows.ok()) << rows.status().message();
  return make_batch(*rows, kBlockSize, blocks_needed(*rows, kBlockSize), 3);
}

// A plan with the memory of the worst case within limits that the batch just reaches.
struct Planned {
  explicit Planned(const PlanShape& shape,
                   const BatchView& batch,
                   const GraphBounds* graph = nullptr)
      : Planned(shape,
                batch,
                {batch.num_rows(), batch.num_tokens(), std::max(batch.max_seq_len, 1)},
                graph) {}
  Planned(const PlanShape& shape,
          const BatchView& batch,
          const AttentionLimits& limits,
          const GraphBounds* graph)
      : capacity(plan_capacity(shape, limits)),
        memory(static_cast<size_t>(capacity.plan_bytes), std::byte{0xEE}),
        planner(shape, limits),
        status(planner.plan(batch, graph, memory)) {}

  [[nodiscard]] const Plan& plan() const { return planner.result(); }
  template <typename T>
  [[nodiscard]] const T* at(int64_t offset) const {
    return reinterpret_cast<const T*>(memory.data() + offset);
  }

  PlanCapacity capacity;
  std::vector<std::byte> memory;
  Planner planner;
  Status status;
};

// Which keys of which packed query rows every block takes; each must be taken once.
void expect_blocks_cover(const Planned& planned,
                         const PlanShape& shape,
                         const BatchView& batch,
                         const BlockLaunch& launch) {
  const auto* rows = planned.at<int32_t>(launch.block_rows);
  const auto* tiles = planned.at<int32_t>(launch.block_tiles);
  const auto* chunks = planned.at<int32_t>(launch.block_chunks);
  const bool* valid = planned.at<bool>(launch.block_valid);
  const int32_t chunk_keys = *planned.at<int32_t>(launch.chunk_size);
  ASSERT_GT(chunk_keys, 0);
  std::set<std::tuple<int32_t, int32_t, int32_t>> seen;
  for (int32_t b = 0; b < launch.num_blocks; ++b) {
    if (!valid[b]) continue;
    ASSERT_TRUE(seen.emplace(rows[b], tiles[b], chunks[b]).second) << "block " << b << " again";
  }
  size_t expected = 0;
  int32_t partials = 0;
  int32_t token = 0;
  for (int32_t r = 0; r < launch.num_rows; ++r) {
    const int32_t row = launch.first_row + r;
    const int32_t seq_len = batch.seq_lens[static_cast<size_t>(row)];
    const int32_t packed = batch.query_len(row) * shape.group();
    const int32_t row_tiles = launch.cuda_core ? 1 : (packed + launch.tile - 1) / launch.tile;
    // As the kernel computes it from the chunk size.
    const int32_t row_chunks =
        launch.split ? (std::max(seq_len, 1) + chunk_keys - 1) / chunk_keys : 1;
    for (int32_t t = 0; t < row_tiles; ++t) {
      for (int32_t c = 0; c < row_chunks; ++c) EXPECT_TRUE(seen.contains({r, t, c}));
    }
    expected += static_cast<size_t>(row_tiles) * static_cast<size_t>(row_chunks);
    if (!launch.split) continue;
    EXPECT_EQ(planned.at<int32_t>(launch.out_indptr)[r], partials);
    for (int32_t i = 0; i < batch.query_len(row); ++i) {
      EXPECT_EQ(planned.at<int32_t>(launch.token_begin)[token++], partials);
      partials += row_chunks;
    }
  }
  EXPECT_EQ(seen.size(), expected);
  if (launch.split) {
    EXPECT_EQ(planned.at<int32_t>(launch.token_begin)[token], partials);
    EXPECT_LE(partials, planned.capacity.partials);
  }
  if (launch.cuda_core) {
    // Its outputs are numbered by block.
    for (int32_t b = 1; b < launch.num_blocks && valid[b]; ++b) {
      EXPECT_LT(std::pair(rows[b - 1], chunks[b - 1]), std::pair(rows[b], chunks[b]));
    }
  }
}

// Each query tile of each row must be computed once for each head.
void expect_fa3_covers(const Planned& planned,
                       const PlanShape& shape,
                       const BatchView& batch,
                       const Fa3Launch& launch) {
  std::set<std::tuple<int32_t, int32_t, int32_t>> seen;
  const bool ragged = launch.keys == Fa3Keys::kRagged;
  for (int32_t i = 0; i < launch.num_tiles; ++i) {
    const Fa3Tile& tile = planned.at<Fa3Tile>(launch.tiles)[i];
    ASSERT_GE(tile.row, 0);
    ASSERT_LT(tile.row, launch.num_rows);
    EXPECT_EQ(tile.head_begin % shape.group(), 0);
    for (int32_t head = tile.head_begin; head < tile.head_begin + launch.heads_per_tile; ++head) {
      EXPECT_TRUE(seen.emplace(tile.row, tile.tile, head).second);
    }
    const int32_t row = launch.first_row + tile.row;
    const auto r = static_cast<size_t>(row);
    EXPECT_LT(tile.tile * 128, batch.query_len(row));
    EXPECT_EQ(tile.q_begin, batch.query_start_loc[r]);
    EXPECT_EQ(tile.q_len, batch.query_len(row));
    EXPECT_EQ(tile.kv_len, batch.seq_lens[r]);
    EXPECT_GT(tile.kv_len, 0);
    EXPECT_EQ(tile.kv_begin, ragged ? batch.query_start_loc[r] : batch.page_indptr[r]);
    // Contiguous keys are those of this step: nothing may lie before them.
    if (ragged) {
      EXPECT_EQ(tile.kv_len, tile.q_len);
    }
  }
  size_t expected = 0;
  for (int32_t r = 0; r < launch.num_rows; ++r) {
    expected += static_cast<size_t>((batch.query_len(launch.first_row + r) + 127) / 128);
  }
  EXPECT_EQ(seen.size(), expected * static_cast<size_t>(shape.num_q_heads));
  EXPECT_EQ(*planned.at<int32_t>(launch.counter), 0);
}

void expect_valid(const Planned& planned, const PlanShape& shape, const BatchView& batch) {
  ASSERT_TRUE(planned.status.ok()) << planned.status.message();
  const Plan& plan = planned.plan();
  EXPECT_LE(plan.bytes, planned.capacity.plan_bytes);
  std::vector<int> served(static_cast<size_t>(batch.num_rows()));
  const auto serve = [&](int32_t first, int32_t count) {
    for (int32_t row = first; row < first + count; ++row) ++served[static_cast<size_t>(row)];
  };
  for (size_t i = 0; i < plan.num_block_launches; ++i) {
    serve(plan.blocks[i].first_row, plan.blocks[i].num_rows);
    expect_blocks_cover(planned, shape, batch, plan.blocks[i]);
  }
  for (size_t i = 0; i < plan.num_fa3_launches; ++i) {
    serve(plan.fa3[i].first_row, plan.fa3[i].num_rows);
    expect_fa3_covers(planned, shape, batch, plan.fa3[i]);
  }
  for (int32_t row = 0; row < batch.num_rows(); ++row) {
    EXPECT_EQ(served[static_cast<size_t>(row)], batch.query_len(row) == 0 ? 0 : 1) << "row " << row;
    const auto r = static_cast<size_t>(row);
    EXPECT_EQ(planned.at<int32_t>(plan.q_indptr)[row], batch.query_start_loc[r]);
    EXPECT_EQ(planned.at<int32_t>(plan.page_indptr)[row], batch.page_indptr[r]);
    EXPECT_EQ(planned.at<int32_t>(plan.last_page_len)[row],
              last_page_len(batch.seq_lens[r], kBlockSize));
  }
  for (int32_t i = 0; i < batch.page_indptr.back(); ++i) {
    EXPECT_EQ(planned.at<int32_t>(plan.page_indices)[i],
              batch.page_indices[static_cast<size_t>(i)]);
  }
}

TEST(FlashinferPlan, EveryRowIsServedOnce) {
  for (const AttentionSplit split :
       {AttentionSplit::kAuto, AttentionSplit::kUnified, AttentionSplit::kSplit}) {
    for (const char* spec : {"1q1", "1q1s1k", "16q1s8k", "300q1s40", "1q2k", "8q1k",
                             "3q1s2k_q100s900_q300", "5q1s333_q5s90_q33s77_q500s3000_q50_q700_q1",
                             "40q1s100_1q1s16k", "1q2k_63q1s2k", "q16s32k", "2q128s30k_9q1s5"}) {
      SCOPED_TRACE(spec);
      const SyntheticBatch batch = batch_of(spec);
      const PlanShape shape = llama_shape(split);
      expect_valid(Planned(shape, batch.view), shape, batch.view);
    }
  }
}

TEST(FlashinferPlan, RandomBatchesStayWithinTheWorstCase) {
  std::mt19937 random(7);
  const auto draw = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random);
  };
  for (int i = 0; i < 300; ++i) {
    PlanShape shape = llama_shape(static_cast<AttentionSplit>(i % 3));
    const std::pair<int32_t, int32_t> heads[] = {{32, 8}, {8, 8},  {9, 3},
                                                 {14, 2}, {64, 1}, {71, 1}};
    std::tie(shape.num_q_heads, shape.num_kv_heads) = heads[draw(0, 5)];
    shape.cuda_core = shape.group() <= 4;
    shape.fa3 = i % 4 != 0;
    std::vector<BatchSpecRow> rows;
    for (int32_t n = draw(1, 90); n > 0; --n) {
      const int32_t q_len = draw(0, 2) == 0 ? draw(1, 400) : 1;
      rows.push_back({q_len, q_len + (draw(0, 3) == 0 ? draw(0, 9000) : draw(0, 60))});
    }
    const SyntheticBatch batch =
        make_batch(rows, kBlockSize, blocks_needed(rows, kBlockSize), static_cast<uint64_t>(i) + 1);
    SCOPED_TRACE(i);
    expect_valid(Planned(shape, batch.view), shape, batch.view);
    if (HasFailure()) return;
  }
}

TEST(FlashinferPlan, ChoosesKernelsByKindOfRow) {
  const SyntheticBatch batch = batch_of("3q1s2k_q3s900_q400s2k_2q300");
  const Planned planned(llama_shape(), batch.view);
  ASSERT_TRUE(planned.status.ok());
  const Plan& plan = planned.plan();
  ASSERT_EQ(plan.num_block_launches, 2U);  // decode, and the extend that fits one tile
  EXPECT_EQ(plan.blocks[0].num_rows, 3);
  EXPECT_EQ(plan.blocks[0].tile, 16);
  EXPECT_EQ(plan.blocks[1].num_rows, 1);
  ASSERT_EQ(plan.num_fa3_launches, 2U);
  EXPECT_EQ(plan.fa3[0].keys, Fa3Keys::kRagged);
  EXPECT_EQ(plan.fa3[0].num_rows, 2);
  EXPECT_EQ(plan.fa3[1].keys, Fa3Keys::kPaged);

  const Planned unified(llama_shape(AttentionSplit::kUnified), batch.view);
  EXPECT_EQ(unified.plan().num_block_launches, 1U);
  EXPECT_EQ(unified.plan().num_fa3_launches, 0U);
  const Planned split(llama_shape(AttentionSplit::kSplit), batch.view);
  EXPECT_TRUE(split.plan().blocks[0].cuda_core);
  for (size_t i = 0; i < split.plan().num_fa3_launches; ++i) {
    EXPECT_EQ(split.plan().fa3[i].keys, Fa3Keys::kPaged);
  }
  EXPECT_EQ(split.plan().fa3_ahead, 0);
}

TEST(FlashinferPlan, RowsWithoutKeysStayAwayFromFa3) {
  SyntheticBatch batch = batch_of("2q1s40_q300");
  batch.seq_lens[2] = 0;
  batch.page_indptr[3] = batch.page_indptr[2];
  batch.view.max_seq_len = 40;
  ASSERT_TRUE(validate_batch_rows(batch.view, kBlockSize).ok());
  const Planned planned(llama_shape(), batch.view);
  expect_valid(planned, llama_shape(), batch.view);
  EXPECT_EQ(planned.plan().num_fa3_launches, 0U);
}

TEST(FlashinferPlan, PrefillAndDecodeOfAMixedStepRunSideBySide) {
  const SyntheticBatch batch = batch_of("1q2k_63q1s2k");
  const Planned planned(llama_shape(), batch.view);
  EXPECT_GT(planned.plan().fa3_ahead, 0);
  EXPECT_LT(planned.plan().fa3_ahead, 132);
}

// What a captured graph has fixed.
auto frozen(const Plan& plan) {
  const BlockLaunch& l = plan.blocks[0];
  return std::tuple(plan.num_block_launches, plan.num_fa3_launches, l.cuda_core, l.tile, l.split,
                    l.num_blocks, l.num_rows, l.num_tokens, l.block_rows, l.block_tiles,
                    l.block_chunks, l.block_valid, l.chunk_size, l.out_indptr, l.token_begin,
                    plan.q_indptr, plan.page_indptr, plan.last_page_len, plan.page_indices);
}

TEST(FlashinferPlan, GraphsDependOnTheNumberOfRowsAlone) {
  for (const int32_t rows : {1, 2, 16, 17, 33, 48, 200}) {
    SCOPED_TRACE(rows);
    const GraphBounds graph{rows};
    const AttentionLimits limits{rows, rows, 9000};
    std::optional<decltype(frozen(Plan()))> first;
    for (const int32_t seq_len : {1, 5, 700, 1024, 9000}) {
      std::vector<BatchSpecRow> specs(static_cast<size_t>(rows), BatchSpecRow{1, seq_len});
      SyntheticBatch batch = make_batch(specs, kBlockSize, blocks_needed(specs, kBlockSize), 1);
      const Planned planned(llama_shape(), batch.view, limits, &graph);
      expect_valid(planned, llama_shape(), batch.view);
      if (!first) first = frozen(planned.plan());
      EXPECT_EQ(frozen(planned.plan()), *first);
    }
  }
}

TEST(FlashinferPlan, PaddingRowsOfAGraphHaveOneEmptyBlockEach) {
  SyntheticBatch batch = batch_of("4q1s600");
  for (size_t row = 2; row < 4; ++row) batch.seq_lens[row] = 0;
  batch.page_indptr[3] = batch.page_indptr[4] = batch.page_indptr[2];
  const GraphBounds graph{4};
  const Planned planned(llama_shape(), batch.view, &graph);
  expect_valid(planned, llama_shape(), batch.view);
}

TEST(FlashinferPlan, GraphsRefuseWhatTheyWouldSlowDown) {
  const SyntheticBatch even = batch_of("64q1s1k");
  const GraphBounds graph{64};
  const AttentionLimits limits{65, 65, 40000};
  EXPECT_TRUE(Planned(llama_shape(), even.view, limits, &graph).status.ok());
  const SyntheticBatch skewed = batch_of("63q1s1k_1q1s32k");
  const Planned refused(llama_shape(), skewed.view, limits, &graph);
  EXPECT_EQ(refused.status.code(), StatusCode::kFailedPrecondition);
  const Planned eager(llama_shape(), skewed.view);
  EXPECT_TRUE(eager.plan().blocks[0].split);
  // Another number of rows, or rows of more than one token.
  EXPECT_EQ(Planned(llama_shape(), batch_of("63q1s1k").view, limits, &graph).status.code(),
            StatusCode::kFailedPrecondition);
  const SyntheticBatch mixed = batch_of("63q1s1k_q2s9");
  EXPECT_EQ(Planned(llama_shape(), mixed.view, limits, &graph).status.code(),
            StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace tenon::flashinfer
