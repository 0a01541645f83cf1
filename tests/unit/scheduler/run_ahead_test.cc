// Steps in flight: rows on pending tokens, orphans, what may and may not happen before a commit.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/unit/scheduler/simulated_engine.h"

namespace tenon::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int32_t> iota_tokens(int32_t count, int32_t first) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// A prompt that no other id shares a prefix with.
NewRequest request(RequestId id, int32_t num_prompt, int32_t num_output) {
  return {.id = id,
          .prompt = iota_tokens(num_prompt, static_cast<int32_t>(id) * 1000),
          .max_total_tokens = num_prompt + num_output};
}

// Usable blocks of 4 tokens; the null block comes on top.
SchedulerConfig config_of(int32_t num_blocks, int32_t steps_in_flight = 2) {
  SchedulerConfig config;
  config.num_blocks = num_blocks + 1;
  config.block_size = 4;
  config.budget = {.max_num_batched_tokens = 16, .max_num_seqs = 4, .chunked_prefill = true};
  config.preemption_mode = PreemptionMode::kRecompute;
  config.max_steps_in_flight = steps_in_flight;
  return config;
}

// "id:start+tokens", "!" for a row that samples, "?" for one whose token is pending.
std::vector<std::string> shapes(const StepPlan& plan) {
  std::vector<std::string> out;
  for (const PlanRow& row : plan.rows) {
    out.push_back(fmt::format("{}:{}+{}{}{}", row.id, row.start, row.num_tokens,
                              row.sample ? "!" : "", row.pending_step > 0 ? "?" : ""));
  }
  return out;
}

std::vector<RequestId> ids(const auto& entries) {
  std::vector<RequestId> out;
  for (const auto& entry : entries) out.push_back(entry.id);
  return out;
}

// A model that ends this request with its n-th output token.
SimulatedModel model_ending(const NewRequest& request, size_t n) {
  const std::vector<int32_t> output = SimulatedModel{}.expected_output(request);
  SimulatedModel model;
  model.end_token = output.at(n - 1);
  EXPECT_EQ(std::ranges::find(output, model.end_token) - output.begin(),
            static_cast<std::ptrdiff_t>(n - 1));
  return model;
}

TEST(RunAhead, TheNextRowCoversThePendingToken) {
  SimulatedEngine engine(config_of(100), {});
  engine.add(request(1, 3, 9));
  engine.add(request(2, 2, 9));
  ASSERT_TRUE(engine.issue(true));
  EXPECT_THAT(shapes(engine.newest_plan()), ElementsAre("1:0+3!", "2:0+2!"));
  EXPECT_THAT(engine.scheduler.find(1)->output_tokens(), ElementsAre(kPendingToken));
  EXPECT_EQ(engine.scheduler.find(1)->num_computed, 3);
  EXPECT_EQ(engine.scheduler.find(1)->num_committed, 0);
  ASSERT_TRUE(engine.issue(true));
  EXPECT_THAT(shapes(engine.newest_plan()), ElementsAre("1:3+1!?", "2:2+1!?"));
  for (size_t i : {0U, 1U}) {
    EXPECT_EQ(engine.newest_plan().rows[i].pending_step, 1U);
    EXPECT_EQ(engine.newest_plan().rows[i].pending_row, static_cast<int32_t>(i));
    EXPECT_EQ(engine.newest_plan().rows[i].kind, RowKind::kDecode);
  }
  EXPECT_FALSE(engine.issue());  // two rows in flight are all that a request may have
  engine.commit();
  const ScheduledRequest& first = *engine.scheduler.find(1);
  EXPECT_NE(first.output_tokens()[0], kPendingToken);
  EXPECT_EQ(first.output_tokens()[1], kPendingToken);
  EXPECT_EQ(first.num_committed, 3);
  ASSERT_TRUE(engine.issue(true));
  EXPECT_THAT(shapes(engine.newest_plan()), ElementsAre("1:4+1!?", "2:3+1!?"));
  engine.run_ahead_to_end();
  EXPECT_EQ(engine.finished.size(), 2U);
  EXPECT_EQ(engine.scheduler.stats().orphan_rows, 0U);
}

TEST(RunAhead, WithOneStepInFlightTheNextRowWaitsForTheCommit) {
  SimulatedEngine engine(config_of(100, 1), {});
  engine.add(request(1, 20, 9));
  ASSERT_TRUE(engine.issue(true));
  EXPECT_FALSE(engine.issue());
  engine.commit();
  ASSERT_TRUE(engine.issue(true));
  EXPECT_THAT(shapes(engine.newest_plan()), ElementsAre("1:16+4!"));
  EXPECT_FALSE(engine.issue());
  engine.run_ahead_to_end();
}

TEST(RunAhead, ThePendingRowIsNamedByItsPlaceInThatPlan) {
  SimulatedEngine engine(config_of(100), {});
  engine.add(request(1, 9, 9));
  ASSERT_TRUE(engine.step());
  engine.add(request(2, 3, 9));
  ASSERT_TRUE(engine.issue(true));
  EXPECT_THAT(shapes(engine.newest_plan()), ElementsAre("1:9+1!", "2:0+3!"));
  engine.abort(1);
  ASSERT_TRUE(engine.issue(true));
  EXPECT_THAT(shapes(engine.newest_plan()), ElementsAre("2:3+1!?"));
  EXPECT_EQ(engine.newest_plan().rows[0].pending_step, 2U);
  EXPECT_EQ(engine.newest_plan().rows[0].pending_row, 1);
  engine.run_ahead_to_end();
}

TEST(RunAhead, ChunksOfAPromptFollowEachOther) {
  SimulatedEngine engine(config_of(100, 3), {});
  engine.add(request(1, 40, 3));
  for (const char* shape : {"1:0+16", "1:16+16", "1:32+8!"}) {
    ASSERT_TRUE(engine.issue(true));
    EXPECT_THAT(shapes(engine.newest_plan()), ElementsAre(shape));
  }
  EXPECT_FALSE(engine.issue());
  EXPECT_EQ(engine.scheduler.blocks().num_cached(), 0);
  engine.commit();
  EXPECT_EQ(engine.scheduler.blocks().num_cached(), 4);  // of the chunk that is done
  ASSERT_TRUE(engine.issue(true));
  EXPECT_THAT(shapes(engine.newest_plan()), ElementsAre("1:40+1!?"));
  engine.run_ahead_to_end();
}

TEST(RunAhead, NoRowBeyondTheLastToken) {
  SimulatedEngine engine(config_of(100, 3), {});
  engine.add(request(1, 3, 2));
  engine.add(request(2, 3, 1));
  engine.add(request(3, 8, 0));  // only scores
  ASSERT_TRUE(engine.issue(true));
  EXPECT_THAT(shapes(engine.newest_plan()), ElementsAre("1:0+3!", "2:0+3!", "3:0+8!"));
  EXPECT_EQ(engine.scheduler.find(2)->num_tokens(), 4);
  EXPECT_EQ(engine.scheduler.find(3)->num_tokens(), 8);  // no place for a token
  ASSERT_TRUE(engine.issue(true));
  EXPECT_THAT(shapes(engine.newest_plan()), ElementsAre("1:3+1!?"));
  EXPECT_FALSE(engine.issue());
  EXPECT_EQ(engine.scheduler.num_running(), 3);
  ASSERT_TRUE(engine.scheduler.check_invariants().ok());
  engine.commit();
  EXPECT_EQ(engine.scheduler.num_running(), 1);
  engine.commit();
  EXPECT_FALSE(engine.scheduler.has_requests());
  EXPECT_EQ(engine.scheduler.stats().orphan_rows, 0U);
}

TEST(RunAhead, AScoredPromptMayBeChunkedInFlight) {
  SimulatedEngine engine(config_of(100), {});
  engine.add(request(1, 20, 0));
  ASSERT_TRUE(engine.issue(true));
  ASSERT_TRUE(engine.issue(true));
  EXPECT_THAT(shapes(engine.newest_plan()), ElementsAre("1:16+4!"));
  engine.commit();
  EXPECT_FALSE(engine.issue());
  engine.commit();
  EXPECT_FALSE(engine.scheduler.has_requests());
}

// Request 1 ends with its first token while its second row is in flight.
TEST(RunAhead, AnOrphanRowIsSkippedAndItsBlocksStayFenced) {
  const NewRequest first = request(1, 4, 9);
  SimulatedEngine engine(config_of(3), model_ending(first, 1));
  engine.add(first);
  ASSERT_TRUE(engine.issue(true));
  ASSERT_TRUE(engine.issue(true));
  EXPECT_THAT(shapes(engine.newest_plan()), ElementsAre("1:4+1!?"));
  engine.commit();
  EXPECT_EQ(engine.finished[1].size(), 1U);
  EXPECT_FALSE(engine.scheduler.has_requests());
  EXPECT_EQ(engine.scheduler.blocks().num_fenced(), 2);
  EXPECT_FALSE(engine.scheduler.lives(engine.newest_plan(), engine.newest_plan().rows[0]));
  engine.add(request(2, 8, 1));  // takes its slot, and needs its blocks
  EXPECT_EQ(engine.scheduler.find(2), &engine.scheduler.request(0));
  EXPECT_FALSE(engine.issue());
  engine.commit();
  EXPECT_EQ(engine.scheduler.stats().orphan_rows, 1U);
  EXPECT_EQ(engine.scheduler.blocks().num_free(), 3);
  engine.run_ahead_to_end();
  EXPECT_EQ(engine.scheduler.blocks().num_used(), 0);
}

// The orphan writes the key of the end token behind the request's known tokens; a block that others
// find is never written to.
TEST(RunAhead, BlocksPublishedByAnEndedRequestAreFoundWhileItsOrphanRuns) {
  const NewRequest first = request(1, 7, 9);
  SimulatedEngine engine(config_of(8), model_ending(first, 2));
  engine.add(first);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(engine.issue(true));
  engine.commit();
  ASSERT_TRUE(engine.issue(true));
  EXPECT_THAT(shapes(engine.newest_plan()), ElementsAre("1:8+1!?"));
  engine.commit();  // the end token; the orphan of step 3 is in flight
  ASSERT_TRUE(engine.finished.contains(1));
  NewRequest second = first;
  second.id = 2;
  second.prompt.push_back(engine.finished[1][0]);
  second.prompt.push_back(5);
  second.max_total_tokens = 12;
  engine.add(second);
  ASSERT_TRUE(engine.issue(true));
  EXPECT_EQ(engine.newest_plan().admissions[0].num_cached, 8);
  engine.run_ahead_to_end();
  EXPECT_EQ(engine.scheduler.blocks().num_used(), 0);
}

TEST(RunAhead, TheRowsOfAnEndedRequestDoNotTouchOneWithTheSameIdAndSlot) {
  Scheduler scheduler(config_of(8));
  const StepBudget budget = scheduler.state().config.budget;
  ASSERT_TRUE(scheduler.add(request(1, 4, 9)).ok());
  StepPlan first, second, third;
  for (StepPlan* plan : {&first, &second}) {
    scheduler.plan(budget, plan);
    scheduler.apply(plan);
  }
  const RowResult end{.token = 7, .finished = true};
  scheduler.commit(first, {&end, 1});
  ASSERT_TRUE(scheduler.add(request(1, 6, 9)).ok());
  EXPECT_FALSE(scheduler.lives(second, second.rows[0]));
  scheduler.plan(budget, &third);
  ASSERT_THAT(shapes(third), ElementsAre("1:4+2!"));  // after a hit on the first one's block
  scheduler.apply(&third);
  EXPECT_TRUE(scheduler.lives(third, third.rows[0]));
  const RowResult orphan{.token = 8};
  scheduler.commit(second, {&orphan, 1});
  EXPECT_EQ(scheduler.stats().orphan_rows, 1U);
  const RowResult token{.token = 9};
  scheduler.commit(third, {&token, 1});
  EXPECT_THAT(scheduler.find(1)->output_tokens(), ElementsAre(9));
  EXPECT_TRUE(scheduler.check_invariants().ok());
}

// Sampling failed: finished, and no token.
TEST(RunAhead, ARequestMayEndWithoutATokenWhileItsNextRowRuns) {
  Scheduler scheduler(config_of(8));
  ASSERT_TRUE(scheduler.add(request(1, 4, 9)).ok());
  StepPlan first, second;
  for (StepPlan* plan : {&first, &second}) {
    scheduler.plan(scheduler.state().config.budget, plan);
    scheduler.apply(plan);
  }
  const RowResult failed{.finished = true};
  scheduler.commit(first, {&failed, 1});
  EXPECT_FALSE(scheduler.has_requests());
  scheduler.commit(second, {&failed, 1});
  EXPECT_EQ(scheduler.blocks().num_used(), 0);
}

TEST(RunAhead, AbortBetweenApplyAndCommitFreesAfterTheLastStep) {
  SimulatedEngine engine(config_of(3), {});
  engine.add(request(1, 4, 5));
  ASSERT_TRUE(engine.issue(true));
  ASSERT_TRUE(engine.issue(true));
  engine.abort(1);
  EXPECT_EQ(engine.scheduler.blocks().num_fenced(), 2);
  engine.commit();
  EXPECT_EQ(engine.scheduler.blocks().num_fenced(), 2);  // the second step writes to them
  engine.commit();
  EXPECT_EQ(engine.scheduler.blocks().num_used(), 0);
  EXPECT_EQ(engine.scheduler.stats().orphan_rows, 2U);
}

TEST(RunAhead, ARequestMayAskToWaitForItsTokens) {
  SimulatedEngine engine(config_of(100), {});
  NewRequest waits = request(1, 20, 4);
  waits.run_ahead = false;
  engine.add(waits);
  engine.add(request(2, 3, 6));
  ASSERT_TRUE(engine.issue(true));
  EXPECT_THAT(shapes(engine.newest_plan()), ElementsAre("1:0+16"));
  ASSERT_TRUE(engine.issue(true));  // its prompt is known
  EXPECT_THAT(shapes(engine.newest_plan()), ElementsAre("1:16+4!", "2:0+3!"));
  engine.commit();
  ASSERT_TRUE(engine.issue(true));
  EXPECT_THAT(shapes(engine.newest_plan()), ElementsAre("2:3+1!?"));
  engine.commit();
  ASSERT_TRUE(engine.issue(true));
  EXPECT_THAT(shapes(engine.newest_plan()), ElementsAre("1:20+1!", "2:4+1!?"));
  engine.run_ahead_to_end();
}

TEST(RunAhead, BlocksAreFoundAfterTheirStepIsCommitted) {
  SimulatedEngine engine(config_of(40), {});
  engine.add({.id = 1, .prompt = iota_tokens(9, 0), .max_total_tokens = 20});
  ASSERT_TRUE(engine.issue(true));
  engine.add({.id = 2, .prompt = iota_tokens(9, 0), .max_total_tokens = 20});
  ASSERT_TRUE(engine.issue(true));
  EXPECT_THAT(shapes(engine.newest_plan()), ElementsAre("1:9+1!?", "2:0+9!"));
  engine.commit();
  engine.add({.id = 3, .prompt = iota_tokens(9, 0), .max_total_tokens = 20});
  ASSERT_TRUE(engine.issue(true));
  EXPECT_THAT(shapes(engine.newest_plan()), ElementsAre("1:10+1!?", "2:9+1!?", "3:8+1!"));
  engine.run_ahead_to_end();
}

// Two requests fill 4 blocks together; then the first wants another.
TEST(RunAhead, ABusyVictimIsHeldBackAndPreemptedAfterTheNextCommit) {
  SimulatedEngine engine(config_of(4), {});
  engine.add(request(1, 4, 10));
  engine.add(request(2, 4, 10));
  ASSERT_TRUE(engine.issue(true));
  for (int32_t start = 4; start < 8; ++start) {
    ASSERT_TRUE(engine.issue(true));
    EXPECT_EQ(shapes(engine.newest_plan()),
              (std::vector{fmt::format("1:{}+1!?", start), fmt::format("2:{}+1!?", start)}));
    engine.commit();
  }
  EXPECT_FALSE(engine.issue());  // no block for the first, and the second is held back for it
  engine.commit();
  EXPECT_EQ(engine.scheduler.stats().preemptions_recompute, 0U);
  ASSERT_TRUE(engine.issue(true));
  EXPECT_THAT(ids(engine.newest_plan().preemptions), ElementsAre(2));
  EXPECT_THAT(shapes(engine.newest_plan()), ElementsAre("1:8+1!"));
  EXPECT_EQ(engine.scheduler.find(2)->num_tokens(), 9);  // all of them known
  EXPECT_FALSE(engine.scheduler.find(2)->ends_pending());
  engine.run_ahead_to_end();
  EXPECT_EQ(engine.scheduler.stats().preemptions_recompute, 1U);
}

// The first two lack a block in the same step. Only the last in order loses a step for them; the
// one in between goes on.
TEST(RunAhead, OneRequestAtATimeIsHeldBack) {
  SimulatedEngine engine(config_of(8), {});
  for (RequestId id = 1; id <= 4; ++id) engine.add(request(id, id <= 2 ? 4 : 2, 12));
  ASSERT_TRUE(engine.issue(true));
  while (engine.scheduler.find(1)->num_tokens() < 9) {
    ASSERT_TRUE(engine.issue(true));
    EXPECT_EQ(engine.newest_plan().rows.size(), 4U);
    engine.commit();
  }
  ASSERT_EQ(engine.scheduler.blocks().num_free(), 0);
  ASSERT_TRUE(engine.issue(true));
  EXPECT_THAT(shapes(engine.newest_plan()), ElementsAre("3:6+1!?"));
  engine.commit();
  ASSERT_TRUE(engine.issue(true));
  EXPECT_THAT(ids(engine.newest_plan().preemptions), ElementsAre(4));
  EXPECT_THAT(shapes(engine.newest_plan()), ElementsAre("1:8+1!", "2:8+1!", "3:7+1!?"));
  engine.run_ahead_to_end();
  EXPECT_EQ(engine.finished.size(), 4U);
}

TEST(RunAhead, SwapsWithStepsInFlight) {
  SchedulerConfig config = config_of(4);
  config.preemption_mode = PreemptionMode::kSwap;
  config.num_host_blocks = 4;
  config.prefix_caching = false;
  SimulatedEngine engine(config, {});
  engine.add(request(1, 4, 10));
  engine.add(request(2, 4, 10));
  engine.run_ahead_to_end();
  EXPECT_EQ(engine.finished.size(), 2U);
  EXPECT_EQ(engine.scheduler.stats().preemptions_swap, 1U);
  EXPECT_EQ(engine.scheduler.stats().recomputed_tokens, 0U);
  EXPECT_EQ(engine.scheduler.blocks().num_used(), 0);
  EXPECT_EQ(engine.scheduler.state().host_blocks.num_used(), 0);
}

TEST(RunAhead, ValidateRefusesNoStepsInFlight) {
  EXPECT_THAT(Scheduler::validate(config_of(8, 0)).message(), HasSubstr("steps in flight"));
  EXPECT_TRUE(Scheduler::validate(config_of(8, 2)).ok());
}

}  // namespace
}  // namespace tenon::testing
