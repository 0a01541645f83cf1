// Random load on tiny pools, every combination of the scheduler's options, with a model that
// notices any wrong cell (simulated_engine.h). Properties: tokens never depend on the batch, no
// block is lost or shared by accident, nobody starves, counters only grow and agree with an
// independent count.
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/scheduler/simulated_engine.h"

namespace tenon::testing {
namespace {

struct FuzzCase {
  SchedulingPolicy policy;
  PreemptionMode mode;
  bool prefix_caching;
  bool chunked;
  size_t depth;               // steps in flight at once
  int32_t request_depth = 1;  // of them, with a row of one request
};

std::vector<FuzzCase> cases_of(const std::vector<std::pair<size_t, int32_t>>& depths) {
  std::vector<FuzzCase> cases;
  for (const auto policy : {SchedulingPolicy::kFcfs, SchedulingPolicy::kPriority}) {
    for (const auto mode :
         {PreemptionMode::kAuto, PreemptionMode::kRecompute, PreemptionMode::kSwap}) {
      for (const bool prefix_caching : {true, false}) {
        for (const bool chunked : {true, false}) {
          for (const auto& [depth, request_depth] : depths) {
            cases.push_back({policy, mode, prefix_caching, chunked, depth, request_depth});
          }
        }
      }
    }
  }
  return cases;
}

std::string name_of(const FuzzCase& c) {
  static constexpr const char* kModes[] = {"auto", "recompute", "swap"};
  return std::string(c.policy == SchedulingPolicy::kFcfs ? "fcfs" : "priority") + "_" +
         kModes[static_cast<size_t>(c.mode)] + (c.prefix_caching ? "_cache" : "_nocache") +
         (c.chunked ? "_chunked" : "_whole") + "_depth" + std::to_string(c.depth) +
         (c.request_depth > 1 ? "_ahead" + std::to_string(c.request_depth) : "");
}

void PrintTo(const FuzzCase& c, std::ostream* out) {
  *out << name_of(c);
}

class FuzzDriver {
 public:
  FuzzDriver(const FuzzCase& options, uint32_t seed)
      : random_(seed),
        options_(options),
        engine_(make_config(), {.vocab_size = 30, .end_token = 2}) {}

  void run(int num_steps) {
    for (int i = 0; i < num_steps && !::testing::Test::HasFailure(); ++i) {
      if (chance(30) && engine_.scheduler.num_waiting() < 12) add_request();
      if (chance(3)) abort_request();
      turn();
    }
    for (int i = 0; engine_.scheduler.has_requests() || engine_.num_in_flight() > 0; ++i) {
      if (::testing::Test::HasFailure()) return;
      ASSERT_LT(i, 20000) << "the load does not drain";
      turn();
    }
    check_drained();
  }

  const SchedulerStats& stats() const { return engine_.scheduler.stats(); }
  size_t num_finished() const { return engine_.finished.size(); }
  uint64_t pending_rows() const { return engine_.pending_rows; }
  uint64_t orphans_of_finished() const { return engine_.orphans_of_finished; }

 private:
  uint32_t below(uint32_t limit) { return static_cast<uint32_t>(random_() % limit); }
  bool chance(uint32_t percent) { return below(100) < percent; }

  SchedulerConfig make_config() {
    SchedulerConfig config;
    config.block_size = 1 + static_cast<int32_t>(below(4));
    // The longest request (kMaxTotal) fits, three of them do not.
    config.num_blocks = 1 + (kMaxTotal + config.block_size - 1) / config.block_size +
                        static_cast<int32_t>(below(8));
    config.num_host_blocks =
        options_.mode == PreemptionMode::kRecompute ? 0 : 1 + static_cast<int32_t>(below(24));
    config.prefix_caching = options_.prefix_caching;
    config.policy = options_.policy;
    config.max_steps_in_flight = options_.request_depth;
    config.preemption_mode = options_.mode;
    config.costs = {.seconds_per_token = 1, .seconds_per_block = 1.5};
    config.budget.chunked_prefill = options_.chunked;
    config.budget.max_num_seqs = 1 + static_cast<int32_t>(below(6));
    config.budget.max_num_batched_tokens =
        options_.chunked ? config.budget.max_num_seqs + static_cast<int32_t>(below(8)) : kMaxTotal;
    return config;
  }

  void add_request() {
    NewRequest request;
    request.id = next_id_++;
    // A few letters and two salts, so that prefixes often meet.
    request.prompt.resize(1 + below(chance(70) ? 8 : kMaxTotal - 1));
    const bool common = chance(60);
    for (int32_t& token : request.prompt) token = common ? 0 : static_cast<int32_t>(below(2));
    if (chance(50)) request.prompt.back() = 1;
    const auto prompt = static_cast<int32_t>(request.prompt.size());
    request.max_total_tokens =
        chance(60)
            ? kMaxTotal
            : prompt + static_cast<int32_t>(below(static_cast<uint32_t>(1 + kMaxTotal - prompt)));
    request.priority = static_cast<int32_t>(below(3));
    if (chance(20)) request.cache_salt = "salt";
    request.read_prefix_cache = chance(90);
    if (options_.request_depth > 1) request.run_ahead = chance(85);
    live_.push_back(request.id);
    engine_.add(std::move(request));
  }

  void abort_request() {
    std::erase_if(live_, [this](RequestId id) { return !engine_.lives(id); });
    if (live_.empty()) return;
    engine_.abort(live_[below(static_cast<uint32_t>(live_.size()))]);
  }

  // Issues or commits a step.
  void turn() {
    const bool full = engine_.num_in_flight() >= options_.depth;
    if (full || (engine_.num_in_flight() > 0 && chance(40))) {
      engine_.commit();
    } else {
      check_pure();
      if (engine_.issue(chance(50))) {
        account(engine_.newest_plan());
      } else if (engine_.num_in_flight() > 0) {
        engine_.commit();
      } else {
        ASSERT_FALSE(engine_.scheduler.has_requests()) << "nothing in flight and nothing planned";
      }
    }
    const Status status = engine_.scheduler.check_invariants();
    ASSERT_TRUE(status.ok()) << status.message();
    check_counters();
    check_progress();
  }

  void check_pure() {
    engine_.scheduler.plan(engine_.budget, &first_);
    engine_.scheduler.plan(engine_.budget, &second_);
    ASSERT_EQ(first_.rows.size(), second_.rows.size());
    for (size_t i = 0; i < first_.rows.size(); ++i) {
      ASSERT_EQ(first_.rows[i].id, second_.rows[i].id);
      ASSERT_EQ(first_.rows[i].num_tokens, second_.rows[i].num_tokens);
    }
    ASSERT_EQ(first_.hit_blocks, second_.hit_blocks);
    ASSERT_TRUE(std::ranges::all_of(first_.scratch.ref_deltas, [](int32_t d) { return d == 0; }));
    // What the engine relies on: with nothing in flight there is something to do.
    if (engine_.num_in_flight() == 0 && engine_.scheduler.has_requests()) {
      ASSERT_FALSE(first_.empty());
    }
  }

  void account(const StepPlan& plan) {
    for (const Preemption& preemption : plan.preemptions)
      ++(preemption.swap ? swaps_ : recomputes_);
    for (const Admission& admission : plan.admissions) {
      const ScheduledRequest& request = *engine_.scheduler.find(admission.id);
      EXPECT_EQ(admission.first, admitted_.insert(admission.id).second);
      if (admission.first) prompt_tokens_ += static_cast<uint64_t>(request.num_prompt_tokens);
      EXPECT_LT(admission.num_cached, request.num_tokens());
      EXPECT_TRUE(admission.num_cached == 0 || admission.from_swap || request.read_prefix_cache);
    }
  }

  void check_counters() {
    const SchedulerStats& now = stats();
    EXPECT_EQ(now.preemptions_swap, swaps_);
    EXPECT_EQ(now.preemptions_recompute, recomputes_);
    EXPECT_EQ(now.prompt_tokens, prompt_tokens_);
    EXPECT_GE(now.prompt_tokens_cached, before_.prompt_tokens_cached);
    EXPECT_LE(now.prompt_tokens_cached, now.prompt_tokens);
    EXPECT_EQ(now.recomputed_tokens, engine_.recomputed_tokens);
    EXPECT_GE(now.orphan_rows, before_.orphan_rows);
    EXPECT_EQ(now.orphan_rows, engine_.orphans_of_finished + engine_.orphans_of_aborted);
    EXPECT_GE(now.prefix_queries, before_.prefix_queries);
    EXPECT_GE(now.prefix_hits, before_.prefix_hits);
    EXPECT_LE(now.prefix_hits, now.prefix_queries);
    before_ = now;
    const BlockManager& blocks = engine_.scheduler.blocks();
    EXPECT_LE(blocks.num_cached(), blocks.num_blocks());
  }

  // The request first in order gets a row again and again. At worst it waits until all that run
  // have computed their prompts and outputs; two turns a step.
  void check_progress() {
    const SchedulerState& state = engine_.scheduler.state();
    int32_t first = -1;
    for (const auto* queue : {&state.running, &state.waiting, &state.swapped}) {
      if (!queue->empty() && (first < 0 || state.runs_before(queue->front(), first)))
        first = queue->front();
    }
    if (first < 0) return;
    const ScheduledRequest& request = state.requests.at(first);
    if (request.id != first_id_ || state.busy(request)) {
      first_id_ = request.id;
      idle_turns_ = 0;
    }
    ASSERT_LT(++idle_turns_, 4 * kMaxTotal * static_cast<int>(options_.depth))
        << "request " << request.id << " starves";
  }

  void check_drained() {
    const SchedulerState& state = engine_.scheduler.state();
    EXPECT_EQ(state.blocks.num_used(), 0);
    EXPECT_EQ(state.blocks.num_fenced(), 0);
    EXPECT_EQ(state.host_blocks.num_used(), 0);
    for (const RequestId id : live_) EXPECT_FALSE(engine_.lives(id));
  }

  static constexpr int32_t kMaxTotal = 36;
  std::mt19937 random_;
  FuzzCase options_;
  SimulatedEngine engine_;
  RequestId next_id_ = 1;
  std::vector<RequestId> live_;
  StepPlan first_, second_;
  std::set<RequestId> admitted_;
  SchedulerStats before_;
  uint64_t swaps_ = 0, recomputes_ = 0, prompt_tokens_ = 0;
  RequestId first_id_ = 0;
  int idle_turns_ = 0;
};

class SchedulerFuzz : public ::testing::TestWithParam<FuzzCase> {};

TEST_P(SchedulerFuzz, HoldsItsProperties) {
  uint64_t swaps = 0, recomputes = 0, hits = 0, recomputed = 0, orphans = 0, pending = 0;
  size_t finished = 0;
  for (uint32_t seed = 1; seed <= 12 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    FuzzDriver driver(GetParam(), seed);
    driver.run(500);
    swaps += driver.stats().preemptions_swap;
    recomputes += driver.stats().preemptions_recompute;
    hits += driver.stats().prefix_hits;
    recomputed += driver.stats().recomputed_tokens;
    orphans += driver.orphans_of_finished();
    pending += driver.pending_rows();
    finished += driver.num_finished();
  }
  // The load really did what the case is about.
  EXPECT_GT(finished, 300U);
  EXPECT_EQ(hits > 0, GetParam().prefix_caching);
  EXPECT_EQ(swaps > 0, GetParam().mode != PreemptionMode::kRecompute);
  EXPECT_GT(recomputes, 0U);  // also in the other modes, when the host pool is full
  EXPECT_GT(recomputed, 0U);
  EXPECT_EQ(pending > 1000, GetParam().request_depth > 1);
  EXPECT_EQ(pending > 0, GetParam().request_depth > 1);
  EXPECT_EQ(orphans > 0, GetParam().request_depth > 1);
}

INSTANTIATE_TEST_SUITE_P(All,
                         SchedulerFuzz,
                         ::testing::ValuesIn(cases_of({{1, 1}, {2, 1}, {3, 1}})),
                         [](const auto& param) { return name_of(param.param); });
INSTANTIATE_TEST_SUITE_P(RunAhead,
                         SchedulerFuzz,
                         ::testing::ValuesIn(cases_of({{2, 2}, {3, 2}, {3, 3}})),
                         [](const auto& param) { return name_of(param.param); });

}  // namespace
}  // namespace tenon::testing
