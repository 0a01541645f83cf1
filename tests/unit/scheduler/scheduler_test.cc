// The rules of scheduler.h, one by one.
#include "scheduler/scheduler.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/unit/scheduler/simulated_engine.h"

namespace tenon::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<int32_t> iota_tokens(int32_t count, int32_t first) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// A prompt that no other id shares a prefix with.
NewRequest request(RequestId id, int32_t num_prompt, int32_t num_output, int32_t priority = 0) {
  return {.id = id,
          .prompt = iota_tokens(num_prompt, static_cast<int32_t>(id) * 1000),
          .max_total_tokens = num_prompt + num_output,
          .priority = priority};
}

// Usable blocks; the null block comes on top.
SchedulerConfig config_of(int32_t num_blocks, int32_t block_size = 4) {
  SchedulerConfig config;
  config.num_blocks = num_blocks + 1;
  config.block_size = block_size;
  config.budget = {.max_num_batched_tokens = 16, .max_num_seqs = 4, .chunked_prefill = true};
  config.preemption_mode = PreemptionMode::kRecompute;
  return config;
}

std::vector<RequestId> ids(const auto& entries) {
  std::vector<RequestId> out;
  for (const auto& entry : entries) out.push_back(entry.id);
  return out;
}

std::vector<std::string> shapes(const StepPlan& plan) {
  std::vector<std::string> out;
  for (const PlanRow& row : plan.rows) {
    out.push_back(
        fmt::format("{}:{}+{}{}", row.id, row.start, row.num_tokens, row.sample ? "!" : ""));
  }
  return out;
}

TEST(Scheduler, DecodesFirstThenChunksWithinTheBudget) {
  SimulatedEngine engine(config_of(100), {});
  engine.add(request(1, 3, 9));
  engine.add(request(2, 40, 9));
  ASSERT_TRUE(engine.step());
  EXPECT_THAT(shapes(engine.last_plan), ElementsAre("1:0+3!", "2:0+13"));
  engine.add(request(3, 2, 9));
  ASSERT_TRUE(
      engine
          .step());  // the long prompt takes what the decode leaves; nothing is left for the third
  EXPECT_THAT(shapes(engine.last_plan), ElementsAre("1:3+1!", "2:13+15"));
  ASSERT_TRUE(engine.step());
  EXPECT_THAT(shapes(engine.last_plan), ElementsAre("1:4+1!", "2:28+12!", "3:0+2!"));
  EXPECT_EQ(engine.last_plan.num_decode_rows, 1);
  EXPECT_EQ(engine.last_plan.num_extend_rows, 1);
  EXPECT_EQ(engine.last_plan.num_prefill_rows, 1);
  engine.run_to_end();
}

TEST(Scheduler, ShortExtendsComeBeforeLongOnes) {
  SchedulerConfig config = config_of(100);
  config.budget.max_num_batched_tokens = 20;
  SimulatedEngine engine(config, {});
  engine.add({.id = 1, .prompt = iota_tokens(14, 0), .max_total_tokens = 15});
  engine.run_to_end();
  engine.add({.id = 2,
              .prompt = iota_tokens(20, 0),
              .max_total_tokens = 21});  // 8 to compute after 12 cached
  engine.add({.id = 3, .prompt = iota_tokens(14, 0), .max_total_tokens = 15});  // 2 to compute
  ASSERT_TRUE(engine.step());
  EXPECT_THAT(shapes(engine.last_plan), ElementsAre("3:12+2!", "2:12+8!"));
}

TEST(Scheduler, WithoutChunkingAPromptWaitsForAStepThatTakesItWhole) {
  SchedulerConfig config = config_of(100);
  config.budget.chunked_prefill = false;
  SimulatedEngine engine(config, {});
  engine.add(request(1, 10, 2));
  engine.add(request(2, 10, 2));
  ASSERT_TRUE(engine.step());
  EXPECT_THAT(shapes(engine.last_plan), ElementsAre("1:0+10!"));
  ASSERT_TRUE(engine.step());
  EXPECT_THAT(shapes(engine.last_plan), ElementsAre("1:10+1!", "2:0+10!"));
  EXPECT_THAT(engine.scheduler.check_fits(17, 17).message(),
              HasSubstr("--max-num-batched-tokens 16"));
}

TEST(Scheduler, NeverRunsMoreThanMaxNumSeqs) {
  SimulatedEngine engine(config_of(100), {});
  for (RequestId id = 1; id <= 6; ++id) engine.add(request(id, 1, 3));
  ASSERT_TRUE(engine.step());
  EXPECT_THAT(ids(engine.last_plan.rows), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(engine.scheduler.num_waiting(), 2);
}

TEST(Scheduler, FcfsIgnoresPrioritiesAndPriorityIgnoresArrival) {
  for (const auto policy : {SchedulingPolicy::kFcfs, SchedulingPolicy::kPriority}) {
    SchedulerConfig config = config_of(100);
    config.policy = policy;
    config.budget.max_num_seqs = 2;
    SimulatedEngine engine(config, {});
    engine.add(request(1, 2, 3, 5));
    engine.add(request(2, 2, 3, 1));
    engine.add(request(3, 2, 3, 0));
    engine.add(request(4, 2, 3, 1));
    ASSERT_TRUE(engine.step());
    if (policy == SchedulingPolicy::kFcfs) {
      EXPECT_THAT(ids(engine.last_plan.admissions), ElementsAre(1, 2));
    } else {
      EXPECT_THAT(ids(engine.last_plan.admissions), ElementsAre(3, 2));
    }
    engine.run_to_end();
  }
}

// 4 tokens a block, 6 blocks. Two requests of one block each grow to three; the third cannot start.
TEST(Scheduler, AdmissionLeavesABlockForEveryRequestThatCanStillGrow) {
  SimulatedEngine engine(config_of(6), {});
  engine.add(request(1, 4, 8));
  engine.add(request(2, 4, 8));
  engine.add(request(3, 4, 8));
  engine.add(request(4, 1, 1));  // would fit, but the line is strict
  ASSERT_TRUE(engine.step());
  EXPECT_THAT(ids(engine.last_plan.admissions), ElementsAre(1, 2, 3));  // 3 taken, 3 in reserve
  engine.run_to_end();

  SimulatedEngine smaller(config_of(5), {});
  for (RequestId id = 1; id <= 3; ++id) smaller.add(request(id, 4, 8));
  smaller.add(request(4, 1, 1));
  ASSERT_TRUE(smaller.step());
  EXPECT_THAT(ids(smaller.last_plan.admissions), ElementsAre(1, 2));
  smaller.run_to_end();
}

TEST(Scheduler, ARequestAloneMayTakeTheWholePool) {
  SimulatedEngine engine(config_of(3), {});
  engine.add(request(1, 9, 4));  // 12 tokens computed at most
  engine.run_to_end(20);
  EXPECT_EQ(engine.scheduler.stats().preemptions_recompute, 0U);
}

TEST(Scheduler, TheLastInOrderIsPreemptedAndKeepsItsPlace) {
  SimulatedEngine engine(config_of(4), {});
  engine.add(request(1, 4, 10));
  engine.add(request(2, 4, 10));
  engine.add(request(3, 1, 1));
  std::vector<RequestId> preempted;
  std::vector<RequestId> admitted;
  while (engine.scheduler.has_requests()) {
    ASSERT_TRUE(engine.step());
    for (const RequestId id : ids(engine.last_plan.preemptions)) preempted.push_back(id);
    for (const RequestId id : ids(engine.last_plan.admissions)) admitted.push_back(id);
  }
  EXPECT_THAT(preempted, ElementsAre(2));
  EXPECT_THAT(admitted,
              ElementsAre(1, 2, 2, 3));  // the third is later and has to wait, small as it is
  EXPECT_EQ(engine.scheduler.stats().preemptions_recompute, 1U);
  EXPECT_GT(engine.scheduler.stats().recomputed_tokens, 0U);
}

TEST(Scheduler, PriorityPreemptsTheLeastUrgent) {
  SchedulerConfig config = config_of(4);
  config.policy = SchedulingPolicy::kPriority;
  SimulatedEngine engine(config, {});
  engine.add(request(1, 4, 10, 7));
  engine.add(request(2, 4, 10, 3));
  while (engine.scheduler.stats().preemptions_recompute == 0) ASSERT_TRUE(engine.step());
  EXPECT_THAT(ids(engine.last_plan.preemptions), ElementsAre(1));
  engine.run_to_end();
}

TEST(Scheduler, ASwappedRequestComesBackBeforeNewOnesWithItsKv) {
  SchedulerConfig config = config_of(4);
  config.preemption_mode = PreemptionMode::kSwap;
  config.num_host_blocks = 4;
  config.prefix_caching = false;
  SimulatedEngine engine(config, {});
  engine.add(request(1, 4, 10));
  engine.add(request(2, 4, 10));
  engine.add(request(3, 1, 1));
  while (engine.scheduler.num_swapped() == 0) ASSERT_TRUE(engine.step());
  const StepPlan out = engine.last_plan;
  EXPECT_THAT(ids(out.preemptions), ElementsAre(2));
  EXPECT_EQ(out.swap_out_copies.size(), 2U);
  EXPECT_THAT(out.admissions, IsEmpty());
  EXPECT_EQ(engine.scheduler.state().host_blocks.num_used(), 2);
  const int32_t computed = engine.scheduler.find(2)->num_computed;
  EXPECT_EQ(computed, 8);
  while (engine.scheduler.num_swapped() > 0) ASSERT_TRUE(engine.step());
  EXPECT_THAT(ids(engine.last_plan.admissions), ElementsAre(2));
  EXPECT_TRUE(engine.last_plan.admissions[0].from_swap);
  EXPECT_EQ(engine.last_plan.swap_in_copies.size(), 2U);
  EXPECT_EQ(engine.last_plan.rows[0].start, computed);
  EXPECT_EQ(engine.scheduler.state().host_blocks.num_used(), 0);
  engine.run_to_end();
  EXPECT_EQ(engine.scheduler.stats().recomputed_tokens, 0U);
}

TEST(Scheduler, SwapInTakesFromThePrefixIndexWhatIsStillThere) {
  SchedulerConfig config = config_of(5);
  config.preemption_mode = PreemptionMode::kSwap;
  config.num_host_blocks = 4;
  SimulatedEngine engine(config, {});
  // Both start with the same block; the first keeps it alive while the second is out.
  engine.add({.id = 1, .prompt = iota_tokens(5, 0), .max_total_tokens = 18});
  ASSERT_TRUE(engine.step());
  engine.add({.id = 2, .prompt = iota_tokens(6, 0), .max_total_tokens = 16});
  while (engine.scheduler.num_swapped() == 0) ASSERT_TRUE(engine.step());
  EXPECT_EQ(engine.last_plan.preemptions[0].num_copies, 3);
  while (engine.scheduler.num_swapped() > 0) ASSERT_TRUE(engine.step());
  EXPECT_GE(engine.last_plan.admissions[0].num_hits, 1);
  EXPECT_EQ(engine.last_plan.admissions[0].num_hits + engine.last_plan.admissions[0].num_copies, 3);
  engine.run_to_end();
}

TEST(Scheduler, AutoPreemptionTakesTheCheaperWay) {
  // The victim has 8 tokens in 2 blocks: 8 tokens again against 4 block copies.
  for (const double per_block : {1.9, 2.1}) {
    SchedulerConfig config = config_of(4);
    config.preemption_mode = PreemptionMode::kAuto;
    config.num_host_blocks = 4;
    config.costs = {.seconds_per_token = 1, .seconds_per_block = per_block};
    SimulatedEngine engine(config, {});
    engine.add(request(1, 4, 10));
    engine.add(request(2, 4, 10));
    engine.run_to_end();
    EXPECT_EQ(engine.scheduler.stats().preemptions_swap, per_block < 2 ? 1U : 0U);
    EXPECT_EQ(engine.scheduler.stats().preemptions_recompute, per_block < 2 ? 0U : 1U);
  }
}

TEST(Scheduler, WithoutHostBlocksLeftSwapBecomesRecompute) {
  SchedulerConfig config = config_of(9);
  config.preemption_mode = PreemptionMode::kSwap;
  config.num_host_blocks = 2;
  config.prefix_caching = false;
  SimulatedEngine engine(config, {});
  for (RequestId id = 1; id <= 3; ++id) engine.add(request(id, 8, 12));  // 2 blocks each, soon 5
  engine.run_to_end();
  EXPECT_GT(engine.scheduler.stats().preemptions_recompute, 0U);
  EXPECT_EQ(engine.scheduler.stats().preemptions_swap, 0U);  // 3 blocks each by then
}

TEST(Scheduler, OneStepNeverSwapsMoreThanTheHostHolds) {
  SchedulerConfig config = config_of(6);
  config.preemption_mode = PreemptionMode::kSwap;
  config.num_host_blocks = 1;
  SimulatedEngine engine(config, {});
  engine.add(request(1, 4, 10));
  engine.add(request(2, 4, 10));
  engine.add(request(3, 2, 2));
  engine.add(request(4, 2, 2));
  ASSERT_TRUE(engine.step());
  engine.budget.max_num_batched_tokens =
      2;  // only the first two go on, and use up the pool together
  while (engine.last_plan.preemptions.empty()) ASSERT_TRUE(engine.step());
  ASSERT_THAT(ids(engine.last_plan.preemptions), ElementsAre(4, 3));
  EXPECT_TRUE(engine.last_plan.preemptions[0].swap);
  EXPECT_FALSE(engine.last_plan.preemptions[1].swap);
  engine.run_to_end();
}

TEST(Scheduler, BlocksAreFoundAfterTheCommitNotBefore) {
  SimulatedEngine engine(config_of(20), {});
  engine.add({.id = 1, .prompt = iota_tokens(9, 0), .max_total_tokens = 12});
  engine.add({.id = 2, .prompt = iota_tokens(9, 0), .max_total_tokens = 12});
  ASSERT_TRUE(engine.issue());  // both compute the same prompt in one step
  EXPECT_THAT(shapes(engine.newest_plan()), ElementsAre("1:0+9!", "2:0+7"));
  engine.add({.id = 3, .prompt = iota_tokens(9, 0), .max_total_tokens = 12});
  ASSERT_TRUE(engine.issue(true));
  EXPECT_THAT(shapes(engine.newest_plan()), ElementsAre("3:0+9!"));  // nothing to be found yet
  EXPECT_EQ(engine.scheduler.blocks().num_cached(), 0);
  engine.commit();
  EXPECT_EQ(engine.scheduler.blocks().num_cached(), 2);  // the first of two equal blocks
  engine.add({.id = 4, .prompt = iota_tokens(9, 0), .max_total_tokens = 12});
  ASSERT_TRUE(engine.issue());
  EXPECT_EQ(engine.newest_plan().admissions[0].num_cached, 8);
  engine.commit();
  engine.commit();
  engine.run_to_end();
}

TEST(Scheduler, GeneratedTokensBecomeFindable) {
  SimulatedEngine engine(config_of(20), {});
  const NewRequest first{.id = 1, .prompt = iota_tokens(3, 0), .max_total_tokens = 14};
  engine.add(first);
  engine.run_to_end();
  std::vector<int32_t> conversation = first.prompt;
  conversation.insert(conversation.end(), engine.finished[1].begin(), engine.finished[1].end());
  conversation.push_back(7);
  engine.add({.id = 2, .prompt = conversation, .max_total_tokens = 20});
  ASSERT_TRUE(engine.step());
  EXPECT_EQ(engine.last_plan.admissions[0].num_cached, 12);
}

TEST(Scheduler, RequestsThatNeedAllLogitsReadNothingFromTheCache) {
  SimulatedEngine engine(config_of(20), {});
  engine.add({.id = 1, .prompt = iota_tokens(9, 0), .max_total_tokens = 10});
  engine.run_to_end();
  engine.add(
      {.id = 2, .prompt = iota_tokens(9, 0), .max_total_tokens = 10, .read_prefix_cache = false});
  ASSERT_TRUE(engine.step());
  EXPECT_EQ(engine.last_plan.admissions[0].num_cached, 0);
  EXPECT_EQ(engine.scheduler.stats().prefix_queries, 9U);  // of the first alone
}

TEST(Scheduler, SaltsNeverShare) {
  SimulatedEngine engine(config_of(20), {});
  const auto run = [&](RequestId id, std::string salt) {
    engine.add({.id = id,
                .prompt = iota_tokens(9, 0),
                .max_total_tokens = 10,
                .cache_salt = std::move(salt)});
    engine.run_to_end();
    return engine.last_plan.admissions[0].num_cached;
  };
  EXPECT_EQ(run(1, "a"), 0);
  EXPECT_EQ(run(2, "b"), 0);
  EXPECT_EQ(run(3, ""), 0);
  EXPECT_EQ(run(4, "a"), 8);
}

TEST(Scheduler, ARequestMayOnlyScoreItsPrompt) {
  SimulatedEngine engine(config_of(20), {});
  engine.add(request(1, 8, 0));
  EXPECT_EQ(engine.scheduler.blocks_needed(8, 8), 2);
  ASSERT_TRUE(engine.step());
  EXPECT_THAT(shapes(engine.last_plan), ElementsAre("1:0+8!"));
  EXPECT_FALSE(engine.scheduler.has_requests());
}

TEST(Scheduler, AbortFreesWithinTheStepInEveryState) {
  SchedulerConfig config = config_of(4);
  config.preemption_mode = PreemptionMode::kSwap;
  config.num_host_blocks = 4;
  SimulatedEngine engine(config, {});
  engine.add(request(1, 4, 10));
  engine.add(request(2, 4, 10));
  engine.add(request(3, 4, 1));
  while (engine.scheduler.num_swapped() == 0) ASSERT_TRUE(engine.step());
  engine.abort(2);  // swapped
  EXPECT_EQ(engine.scheduler.state().host_blocks.num_used(), 0);
  engine.abort(3);  // waiting
  EXPECT_EQ(engine.scheduler.num_waiting(), 0);
  engine.abort(1);  // running
  EXPECT_EQ(engine.scheduler.blocks().num_used(), 0);
  EXPECT_FALSE(engine.scheduler.abort(1));
  EXPECT_FALSE(engine.scheduler.has_requests());
}

TEST(Scheduler, BlocksOfAnAbortedRowStayFencedUntilItsStepIsCommitted) {
  SimulatedEngine engine(config_of(3), {});
  engine.add(request(1, 8, 4));
  ASSERT_TRUE(engine.issue(true));
  engine.abort(1);
  EXPECT_EQ(engine.scheduler.blocks().num_free(), 1);
  EXPECT_EQ(engine.scheduler.blocks().num_fenced(), 2);
  engine.add(request(2, 8, 4));
  EXPECT_FALSE(engine.issue());  // cannot start before the blocks are really free
  engine.commit();
  EXPECT_EQ(engine.scheduler.blocks().num_free(), 3);
  engine.run_to_end();
  EXPECT_EQ(engine.finished.count(1), 0U);
}

// Two requests, the second one token ahead; the pool is full and the second wants a block. A step
// with a row of the first alone is in flight.
void fill_pool(SimulatedEngine& engine) {
  ASSERT_TRUE(engine.step());
  engine.budget.max_num_batched_tokens = 2;
  while (engine.scheduler.find(2)->num_tokens() < 9) ASSERT_TRUE(engine.step());
  ASSERT_EQ(engine.scheduler.blocks().num_free(), 0);
  engine.budget.max_num_batched_tokens = 1;
  ASSERT_TRUE(engine.issue(true));
  ASSERT_THAT(ids(engine.newest_plan().rows), ElementsAre(1));
  engine.budget.max_num_batched_tokens = 16;
}

// Preempting for blocks that the next commit frees anyway would empty the engine step by step.
TEST(Scheduler, WaitsForFencedBlocksInsteadOfPreempting) {
  SimulatedEngine engine(config_of(5), {});
  engine.add(request(1, 3, 10));
  engine.add(request(2, 4, 10));
  engine.add(request(3, 2, 3));
  ASSERT_NO_FATAL_FAILURE(fill_pool(engine));
  engine.abort(1);
  ASSERT_TRUE(engine.issue());
  EXPECT_THAT(ids(engine.newest_plan().preemptions), IsEmpty());
  EXPECT_THAT(ids(engine.newest_plan().rows), ElementsAre(3));  // it has room in its block
  engine.commit();
  engine.commit();
  ASSERT_TRUE(engine.step());
  EXPECT_THAT(ids(engine.last_plan.rows), ElementsAre(2, 3));
  engine.run_to_end();
}

TEST(Scheduler, ARequestDoesNotPreemptItselfWhileOthersAreBusy) {
  SimulatedEngine engine(config_of(4), {});
  engine.add(request(1, 3, 10));
  engine.add(request(2, 4, 10));
  ASSERT_NO_FATAL_FAILURE(fill_pool(engine));
  EXPECT_FALSE(engine.issue());
  engine.commit();
  EXPECT_EQ(engine.scheduler.num_running(), 2);
  engine.run_to_end();
}

// Copies to and from the host may lag behind the step that ordered them. Here request 3 is being
// swapped out by a step in flight, and the block of request 2 is free.
void swap_out_in_flight(SimulatedEngine& engine) {
  engine.add(request(1, 4, 6));
  engine.add(request(2, 2, 3));
  engine.add(request(3, 2, 3));
  ASSERT_TRUE(engine.step());
  engine.budget.max_num_batched_tokens = 1;  // only the first goes on
  while (engine.scheduler.find(1)->num_tokens() < 9) ASSERT_TRUE(engine.step());
  ASSERT_TRUE(engine.issue(true));
  ASSERT_THAT(ids(engine.newest_plan().preemptions), ElementsAre(3));
  ASSERT_EQ(engine.scheduler.num_swapped(), 1);
  engine.abort(2);
  ASSERT_EQ(engine.scheduler.blocks().num_free(), 1);
}

SchedulerConfig swap_config() {
  SchedulerConfig config = config_of(4);
  config.preemption_mode = PreemptionMode::kSwap;
  config.num_host_blocks = 1;
  return config;
}

TEST(Scheduler, ARequestComesBackOnlyAfterItIsReallyOut) {
  SimulatedEngine engine(swap_config(), {});
  ASSERT_NO_FATAL_FAILURE(swap_out_in_flight(engine));
  EXPECT_FALSE(engine.issue());
  engine.commit();
  const BlockAllocator& host = engine.scheduler.state().host_blocks;
  ASSERT_TRUE(engine.issue(true));
  EXPECT_THAT(ids(engine.newest_plan().admissions), ElementsAre(3));
  EXPECT_EQ(host.num_free(), 0);  // still being read
  engine.commit();
  EXPECT_EQ(host.num_free(), 1);
  EXPECT_EQ(engine.scheduler.blocks().num_cached(), 2);  // of request 1, still to be found
  engine.run_to_end();
}

TEST(Scheduler, HostBlocksOfAnAbortedRequestStayFencedUntilItIsOut) {
  SimulatedEngine engine(swap_config(), {});
  ASSERT_NO_FATAL_FAILURE(swap_out_in_flight(engine));
  engine.abort(3);
  EXPECT_EQ(engine.scheduler.state().host_blocks.num_free(), 0);
  engine.commit();
  EXPECT_EQ(engine.scheduler.state().host_blocks.num_free(), 1);
}

TEST(Scheduler, RefusesWhatCanNeverRun) {
  Scheduler scheduler(config_of(3));
  EXPECT_EQ(scheduler.blocks_needed(9, 13), 3);
  EXPECT_EQ(scheduler.blocks_needed(9, 14), 4);
  EXPECT_TRUE(scheduler.check_fits(9, 13).ok());
  EXPECT_EQ(scheduler.check_fits(9, 14).code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(scheduler.check_fits(9, 14).message(),
              HasSubstr("needs 4 KV blocks of 4 tokens, the cache has 3"));
  EXPECT_FALSE(scheduler.add(request(1, 9, 5)).ok());
  EXPECT_THAT(scheduler.add({.id = 1, .max_total_tokens = 3}).message(), HasSubstr("empty"));
  EXPECT_THAT(scheduler.add(request(1, 4, -1)).message(), HasSubstr("limit of 3"));
  EXPECT_TRUE(scheduler.add(request(1, 4, 1)).ok());
  EXPECT_THAT(scheduler.add(request(1, 4, 1)).message(), HasSubstr("in use"));
  EXPECT_EQ(scheduler.num_waiting(), 1);
}

TEST(Scheduler, ValidateNamesTheFlag) {
  const auto message = [](auto change) {
    SchedulerConfig config = config_of(8);
    change(config);
    return Scheduler::validate(config).message();
  };
  EXPECT_EQ(message([](SchedulerConfig&) {}), "");
  EXPECT_THAT(message([](SchedulerConfig& c) { c.block_size = 0; }), HasSubstr("--block-size"));
  EXPECT_THAT(message([](SchedulerConfig& c) { c.num_blocks = 1; }), HasSubstr("--num-kv-blocks"));
  EXPECT_THAT(message([](SchedulerConfig& c) { c.budget.max_num_seqs = 0; }),
              HasSubstr("--max-num-seqs"));
  EXPECT_THAT(message([](SchedulerConfig& c) { c.budget.max_num_batched_tokens = 3; }),
              HasSubstr("--max-num-batched-tokens"));
  EXPECT_THAT(message([](SchedulerConfig& c) { c.preemption_mode = PreemptionMode::kSwap; }),
              HasSubstr("--swap-space"));
}

}  // namespace
}  // namespace tenon::testing
