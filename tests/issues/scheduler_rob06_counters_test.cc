// ROB-06: metrics after preemption, abort and cache hits (vllm-project/vllm PR #36812 and others).
// Accounting that subtracts one estimate from another went negative after a preemption and ended
// the serving loop; here every counter is a sum of what happened, each prompt counts once, and
// recomputation has its own counter.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/unit/scheduler/simulated_engine.h"

namespace tenon::testing {
namespace {

std::vector<int32_t> iota_tokens(int32_t count, int32_t first = 1) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

void expect_not_below(const SchedulerStats& now, const SchedulerStats& before) {
  EXPECT_GE(now.prompt_tokens, before.prompt_tokens);
  EXPECT_GE(now.prompt_tokens_cached, before.prompt_tokens_cached);
  EXPECT_GE(now.recomputed_tokens, before.recomputed_tokens);
  EXPECT_GE(now.prefix_queries, before.prefix_queries);
  EXPECT_GE(now.prefix_hits, before.prefix_hits);
  EXPECT_GE(now.preemptions_swap, before.preemptions_swap);
  EXPECT_GE(now.preemptions_recompute, before.preemptions_recompute);
  EXPECT_GE(now.steps, before.steps);
}

class Rob06 : public ::testing::TestWithParam<PreemptionMode> {};

TEST_P(Rob06, CountersOnlyGrowAndEveryPromptCountsOnce) {
  SchedulerConfig config;
  config.num_blocks = 9 + 1;
  config.num_host_blocks = 9;
  config.block_size = 16;
  config.preemption_mode = GetParam();
  SimulatedEngine engine(config, {});
  const Scheduler& scheduler = engine.scheduler;
  SchedulerStats before;
  uint64_t delivered = 0;
  const auto run = [&] {
    while (scheduler.has_requests()) {
      ASSERT_TRUE(engine.step());
      expect_not_below(scheduler.stats(), before);
      before = scheduler.stats();
      EXPECT_LE(scheduler.blocks().num_used(), scheduler.blocks().num_blocks());
      EXPECT_LE(before.prompt_tokens_cached, before.prompt_tokens);
    }
  };

  for (RequestId id = 1; id <= 3; ++id) {
    engine.add({.id = id,
                .prompt = iota_tokens(40, static_cast<int32_t>(id) * 100),
                .max_total_tokens = 70});
  }
  run();
  for (RequestId id = 1; id <= 3; ++id) delivered += engine.finished[id].size();
  EXPECT_EQ(delivered, 90U);
  EXPECT_EQ(before.prompt_tokens, 120U);
  EXPECT_EQ(before.prefix_queries, 120U);
  const bool swap = GetParam() == PreemptionMode::kSwap;
  EXPECT_EQ(before.preemptions_swap > 0, swap);
  EXPECT_EQ(before.preemptions_recompute > 0, !swap);
  if (swap) {
    EXPECT_EQ(before.recomputed_tokens, 0U);
  }
  EXPECT_EQ(before.recomputed_tokens, engine.recomputed_tokens);

  for (RequestId id = 4; id <= 5; ++id) {  // cold, then warm
    engine.add({.id = id, .prompt = iota_tokens(32, 7000), .max_total_tokens = 40});
    run();
  }
  EXPECT_EQ(before.prompt_tokens, 184U);
  EXPECT_EQ(before.prompt_tokens_cached, 16U);
  EXPECT_EQ(before.prefix_hits, 16U);

  for (RequestId id = 10; id < 20; ++id) {
    engine.add({.id = id,
                .prompt = iota_tokens(40, static_cast<int32_t>(id) * 100),
                .max_total_tokens = 70});
  }
  for (RequestId id = 10; id < 20; ++id) {
    ASSERT_TRUE(engine.step());
    expect_not_below(scheduler.stats(), before);
    before = scheduler.stats();
    engine.abort(id);
  }
  EXPECT_EQ(scheduler.num_running() + scheduler.num_waiting() + scheduler.num_swapped(), 0);
  EXPECT_EQ(scheduler.blocks().num_used(), 0);
  EXPECT_EQ(scheduler.state().host_blocks.num_used(), 0);
  EXPECT_EQ(scheduler.check_invariants().message(), "");
}

INSTANTIATE_TEST_SUITE_P(Modes,
                         Rob06,
                         ::testing::Values(PreemptionMode::kRecompute, PreemptionMode::kSwap),
                         [](const auto& param) {
                           return param.param == PreemptionMode::kSwap ? "swap" : "recompute";
                         });

// A long prompt with 768 tokens cached is preempted after 8448 more, and finds far more than 768
// when it returns.
TEST(Rob06, HitsAfterAPreemptionDoNotCountAsCachedPromptTokens) {
  SchedulerConfig config;
  config.block_size = 16;
  config.num_blocks = 1 + 1066 + 2;
  config.preemption_mode = PreemptionMode::kRecompute;
  config.budget.max_num_batched_tokens = 8449;
  SimulatedEngine engine(config, {});
  const std::vector<int32_t> prompt = iota_tokens(17050);
  engine.add({.id = 1, .prompt = {prompt.begin(), prompt.begin() + 768}, .max_total_tokens = 768});
  engine.run_to_end();
  engine.add({.id = 2, .prompt = iota_tokens(8, 50000), .max_total_tokens = 48});
  ASSERT_TRUE(engine.step());
  engine.add({.id = 3, .prompt = prompt, .max_total_tokens = 17051});
  ASSERT_TRUE(engine.step());
  EXPECT_EQ(engine.scheduler.find(3)->num_computed, 768 + 8448);
  const SchedulerStats before = engine.scheduler.stats();
  EXPECT_EQ(before.prompt_tokens, 768U + 8U + 17050U);
  EXPECT_EQ(before.prompt_tokens_cached, 768U);

  engine.budget.max_num_batched_tokens = 1;  // the decode goes on until it needs a block
  while (engine.scheduler.stats().preemptions_recompute == 0) ASSERT_TRUE(engine.step());
  engine.budget.max_num_batched_tokens = 8449;
  while (engine.scheduler.num_waiting() > 0) ASSERT_TRUE(engine.step());
  ASSERT_EQ(engine.last_plan.admissions.size(), 1U);
  EXPECT_GT(engine.last_plan.admissions[0].num_cached, 768);
  engine.run_to_end();
  const SchedulerStats& after = engine.scheduler.stats();
  EXPECT_EQ(after.prompt_tokens, before.prompt_tokens);
  EXPECT_EQ(after.prompt_tokens_cached, 768U);
  EXPECT_EQ(after.prefix_queries, before.prefix_queries);
  EXPECT_EQ(after.prefix_hits, 768U);
}

}  // namespace
}  // namespace tenon::testing
