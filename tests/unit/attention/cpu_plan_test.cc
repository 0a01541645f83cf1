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
        pairs(static_cast<size_t>(capacity.pairs)),
        members(static_cast<size_t>(capacity.members)),
        prefix_pages(static_cast<size_t>(capacity.states)) {
    Plan::Memory memory;
    memory.items = items;
    memory.pairs = pairs;
    memory.members = members;
    memory.prefix_pages = prefix_pages;
    memory.tree.reserve(static_cast<int32_t>(capacity.states));
    memory.max_states = capacity.states;
    plan.attach(std::move(memory));
  }
  PlanCapacity capacity;
  std::vector<WorkItem> items;
  std::vector<SplitPair> pairs;
  std::vector<Member> members;
  std::vector<int32_t> prefix_pages;
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
    BatchSpecRow row{query_len, query_len + (random() % 2 == 0 ? context : context % 700)};
    row.term = static_cast<int32_t>(random() % 3);
    // Prefixes as long as the row allows: rows of a term agree as far as the shorter one goes.
    if (random() % 2 == 0) row.term_prefix = (row.seq_len - query_len) / kBlockSize * kBlockSize;
    if (row.term_prefix >= 128) row.root_prefix = 128;
    rows.push_back(row);
    tokens += query_len;
  }
  return rows;
}

// Every query meets every key of its row once for each KV head, in ascending order over the phases,
// in whatever pieces.
void expect_complete(const PlanShape& shape, const BatchView& batch, const Plan& plan) {
  std::vector<int32_t> row_of(static_cast<size_t>(batch.num_tokens()));
  for (int32_t row = 0; row < batch.num_rows(); ++row) {
    for (int32_t i = 0; i < batch.query_len(row); ++i) {
      row_of[static_cast<size_t>(batch.query_start_loc[static_cast<size_t>(row)] + i)] = row;
    }
  }
  // (token, head) -> stretches of keys, by where they begin.
  std::map<std::pair<int32_t, int32_t>, std::map<int32_t, int32_t>> done;
  for (int phase = 0; phase < plan.num_phases(); ++phase) {
    for (const WorkItem& item : plan.phase(phase)) {
      ASSERT_EQ(item.level >= 0, phase + 1 < plan.num_phases());
      ASSERT_EQ(item.key_begin % kTileKeys, 0);
      for (int32_t i = item.query_begin; i < item.query_begin + item.query_count; ++i) {
        const int32_t token = item.level >= 0
                                  ? plan.members()[static_cast<size_t>(i)].token
                                  : batch.query_start_loc[static_cast<size_t>(item.row)] + i;
        const int32_t row = row_of[static_cast<size_t>(token)];
        // The pages read are the row's own.
        const auto* table = batch.page_indices.data() + batch.page_indptr[static_cast<size_t>(row)];
        const auto* used =
            batch.page_indices.data() + batch.page_indptr[static_cast<size_t>(item.row)];
        const int32_t pages = num_pages(item.key_end, shape.block_size);
        ASSERT_TRUE(std::equal(table, table + pages, used));
        for (int32_t head = item.kv_head; head < item.kv_head + item.num_heads; ++head) {
          ASSERT_TRUE((done[{token, head}].insert({item.key_begin, item.key_end}).second));
        }
      }
    }
  }
  for (int32_t token = 0; token < batch.num_tokens(); ++token) {
    const int32_t seq_len = batch.seq_lens[static_cast<size_t>(row_of[static_cast<size_t>(token)])];
    for (int32_t head = 0; head < shape.num_kv_heads; ++head) {
      int32_t reached = 0;
      for (const auto& [begin, end] : done[{token, head}]) {
        ASSERT_EQ(begin, reached) << "token " << token;
        reached = end;
      }
      ASSERT_EQ(reached, seq_len) << "token " << token << " head " << head;
    }
  }
}

TEST(CpuPlan, CoversEveryBatchWithinTheCapacityOfItsLimits) {
  std::mt19937 random(11);
  for (const auto& [kv_heads, group, threads] :
       {std::tuple{3, 3, 2}, {1, 1, 1}, {8, 4, 16}, {2, 40, 3}, {1, 16, 64}, {32, 1, 2}}) {
    PlanShape shape = make_shape(kv_heads, group, threads);
    shape.cascade = random() % 2 == 0 ? CascadeMode::kAuto : CascadeMode::kOn;
    const AttentionLimits limits{24, 300, 9000};
    PlanInMemory memory(shape, limits);
    for (int round = 0; round < 60; ++round) {
      const std::vector<BatchSpecRow> rows = random_rows(random, limits);
      SyntheticBatch batch = make_batch(rows, kBlockSize, blocks_needed(rows, kBlockSize), 0);
      share_prefixes(batch, kBlockSize);
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
  EXPECT_EQ(plan_of("q1s4k"),
            "cpu: 1 direct rows (1 split into 8 segments), 0 packed rows in 0 tiles; 8 work items");
  EXPECT_EQ(
      plan_of("16q1s2k"),
      "cpu: 16 direct rows (0 split into 0 segments), 0 packed rows in 0 tiles; 16 work items");
  // 42 queries a tile: 512 queries are 13 tiles of each of 3 heads.
  EXPECT_EQ(
      plan_of("q512"),
      "cpu: 0 direct rows (0 split into 0 segments), 1 packed rows in 39 tiles; 39 work items");
}

TEST(CpuPlan, CascadeByModeAndByWhatItSaves) {
  PlanShape shape = make_shape(3, 3, 2);
  const AttentionLimits limits{64, 512, 8192};
  const auto groups = [&](const char* spec, CascadeMode mode) {
    shape.cascade = mode;
    PlanInMemory memory(shape, limits);
    const auto rows = parse_batch_spec(spec);
    SyntheticBatch batch = make_batch(*rows, kBlockSize, blocks_needed(*rows, kBlockSize), 0);
    share_prefixes(batch, kBlockSize);
    memory.plan.build(shape, batch.view);
    return memory.plan.cascade().groups;
  };
  EXPECT_EQ(groups("16q1s2112p2048", CascadeMode::kAuto), 1);
  EXPECT_EQ(groups("16q1s2112p2048", CascadeMode::kOff), 0);
  EXPECT_EQ(groups("2q1s80p64", CascadeMode::kAuto), 0);
  EXPECT_EQ(groups("2q1s80p64", CascadeMode::kOn), 1);
  EXPECT_EQ(groups("2q1s80p48", CascadeMode::kOn), 0);  // less than a tile
  EXPECT_EQ(groups("8q1s4kp1k+2k_8q1s4kp1k+2k", CascadeMode::kAuto), 3);
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
