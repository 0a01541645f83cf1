#include "attention/backends/cpu/plan.h"

#include <gmock/gmock.h>

#include <map>
#include <random>
#include <set>

#include "attention/backends/cpu/kernels.h"
#include "attention/registry.h"
#include "attention/synthetic_batch.h"

namespace tenon::cpu_attention {
namespace {

constexpr int32_t kBlockSize = 16;

PlanShape make_shape(int32_t kv_heads, int32_t group, int32_t threads) {
  PlanShape shape;
  shape.num_kv_heads = kv_heads;
  shape.group = group;
  shape.block_size = kBlockSize;
  shape.threads = threads;
  return shape;
}

// A plan with memory for exactly plan_capacity(), as prepare() gives it.
struct PlanInMemory {
  PlanInMemory(const PlanShape& shape, const AttentionLimits& limits)
      : capacity(plan_capacity(shape, limits)),
        items(static_cast<size_t>(capacity.items)),
        pairs(static_cast<size_t>(capacity.pairs)) {
    plan.attach(items, pairs);
  }
  PlanCapacity capacity;
  std::vector<WorkItem> items;
  std::vector<SplitPair> pairs;
  Plan plan;
};

std::vector<BatchSpecRow> random_rows(std::mt19937& random, const AttentionLimits& limits) {
  std::vector<BatchSpecRow> rows;
  int32_t tokens = 0;
  while (static_cast<int32_t>(rows.size()) < limits.max_num_seqs && random() % 12 != 0) {
    const int32_t left = limits.max_num_batched_tokens - tokens;
    if (left == 0) break;
    const int32_t longest = random() % 3 == 0 ? left : std::min(left, 3);
    const auto query_len = static_cast<int32_t>(random() % static_cast<uint32_t>(longest + 1));
    const int32_t room = limits.max_seq_len - query_len;
    if (room < 0) continue;
    const auto context = static_cast<int32_t>(random() % static_cast<uint32_t>(room + 1));
    rows.push_back({query_len, query_len + (random() % 2 == 0 ? context : context % 700)});
    tokens += query_len;
  }
  return rows;
}

// Every (row, KV head, query, segment) is done exactly once, in whatever pieces.
void expect_complete(const PlanShape& shape, const BatchView& batch, const Plan& plan) {
  std::map<std::pair<int32_t, int32_t>, int64_t> done;  // (row, head) -> queries * segments
  std::set<std::vector<int32_t>> seen;
  for (const WorkItem& item : plan.items()) {
    ASSERT_TRUE(seen.insert({item.row, item.kv_head, item.query_begin, item.segment_begin}).second);
    const int64_t segments = std::max(1, item.segment_end - item.segment_begin);
    done[{item.row, item.kv_head}] += item.query_count * segments;
  }
  for (int32_t row = 0; row < batch.num_rows(); ++row) {
    const int64_t segments =
        std::max(1, (batch.seq_lens[static_cast<size_t>(row)] + kSegmentKeys - 1) / kSegmentKeys);
    for (int32_t head = 0; head < shape.num_kv_heads; ++head) {
      ASSERT_EQ((done[{row, head}]), batch.query_len(row) * segments) << "row " << row;
    }
  }
}

TEST(CpuPlan, CoversEveryBatchWithinTheCapacityOfItsLimits) {
  std::mt19937 random(11);
  for (const auto& [kv_heads, group, threads] :
       {std::tuple{3, 3, 2}, {1, 1, 1}, {8, 4, 16}, {2, 40, 3}, {1, 16, 64}}) {
    const PlanShape shape = make_shape(kv_heads, group, threads);
    const AttentionLimits limits{24, 300, 9000};
    PlanInMemory memory(shape, limits);
    for (int round = 0; round < 60; ++round) {
      const std::vector<BatchSpecRow> rows = random_rows(random, limits);
      const SyntheticBatch batch = make_batch(rows, kBlockSize, blocks_needed(rows, kBlockSize), 0);
      memory.plan.build(shape, batch.view);  // ends the process when it overflows
      EXPECT_LE(memory.plan.num_partials(), memory.capacity.partials);
      expect_complete(shape, batch.view, memory.plan);
    }
  }
}

TEST(CpuPlan, SplitsOneLongRowAndLeavesManyShortOnesWhole) {
  const PlanShape shape = make_shape(3, 3, 2);
  const AttentionLimits limits{64, 512, 8192};
  PlanInMemory memory(shape, limits);
  const auto plan_of = [&](const char* spec) {
    const auto rows = parse_batch_spec(spec);
    const SyntheticBatch batch = make_batch(*rows, kBlockSize, blocks_needed(*rows, kBlockSize), 0);
    memory.plan.build(shape, batch.view);
    return memory.plan.describe();
  };
  EXPECT_EQ(
      plan_of("q1s4k"),
      "cpu: 1 direct rows (3 row-head pairs split into 24 segments), 0 packed rows in 0 tiles; "
      "24 work items");
  EXPECT_EQ(
      plan_of("16q1s2k"),
      "cpu: 16 direct rows (0 row-head pairs split into 0 segments), 0 packed rows in 0 tiles; "
      "48 work items");
  // 42 queries a tile: 512 queries are 13 tiles of each of 3 heads.
  EXPECT_EQ(
      plan_of("q512"),
      "cpu: 0 direct rows (0 row-head pairs split into 0 segments), 1 packed rows in 39 tiles; "
      "39 work items");
}

TEST(CpuPlan, OneThreadNeverSplits) {
  const PlanShape shape = make_shape(1, 1, 1);
  const PlanCapacity capacity = plan_capacity(shape, {4, 16, 100000});
  EXPECT_EQ(capacity.pairs, 0);
  EXPECT_EQ(capacity.partials, 0);
}

TEST(CpuBackend, RefusesBatchesOutsideItsLimitsAndUnknownInstructionSets) {
  AttentionRegistry registry;
  register_attention_backends(registry);
  BackendContext context;
  context.requirements.head_dim_qk = context.requirements.head_dim_v = 64;
  context.requirements.num_q_heads = context.requirements.num_kv_heads = 1;
  auto choice = get_attention_backend(registry, "cpu", context);
  ASSERT_TRUE(choice.ok());
  AttentionBackend& backend = *choice->backend;
  EXPECT_EQ(backend.prepare({0, 1, 1}).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(backend.prepare({2, 8, 64}).ok());
  for (const char* spec : {"3q1s4", "q9", "q1s65"}) {
    const auto rows = parse_batch_spec(spec);
    const SyntheticBatch batch = make_batch(*rows, kBlockSize, 100, 0);
    const Status status = backend.build_metadata(batch.view).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << spec;
    EXPECT_THAT(status.message(), testing::HasSubstr("exceed the limits 2, 8, 64"));
  }
  const auto rows = parse_batch_spec("q1s64_q7s60");
  const SyntheticBatch batch = make_batch(*rows, kBlockSize, 100, 0);
  EXPECT_TRUE(backend.build_metadata(batch.view).ok());

  context.isa = "sse9";
  const Status status = get_attention_backend(registry, "cpu", context).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), testing::HasSubstr("instruction set 'sse9'"));
  EXPECT_THAT(status.message(), testing::HasSubstr("portable"));
}

}  // namespace
}  // namespace tenon::cpu_attention
