// Continuous batching: which requests compute how many tokens in the next step, in which blocks.
//
//   add / abort           any time, but not between a plan and its apply
//   plan(budget, &plan)   pure: reads the state, decides
//   apply(&plan)          takes and frees the blocks that the plan counted on; never fails
//   ... the engine executes the plan (see step_plan.h) ...
//   commit(plan, results) appends tokens, publishes full blocks, ends requests
//
// Several steps may be applied before the first is committed: a request with a row in an
// uncommitted step is busy, gets no further row and is no victim, and blocks freed meanwhile
// (abort) stay fenced until that step is committed. Steps are committed in the order of apply().
//
// Rules
// - Order: arrival under FCFS; (priority, arrival) under priority. A preempted request keeps its
//   arrival.
// - Running before waiting, rows of one token before chunks, within the token budget.
// - Admission takes blocks for all tokens a request has (so a prompt never stalls half-way) and
//   leaves one free block for every running request that can still grow (so that it does not
//   cause the next preemption). It is strictly in order, head of line first. Swapped and waiting
//   requests form one order, so under FCFS swapped ones come back before new ones. No admission
//   in a step that preempts.
// - When a running request finds no block, the last one in order is preempted, by swap or by
//   recompute.
// - At least one token of a request is always computed: prefix hits cover at most num_tokens - 1.
//
// Ownership:     owns all request state and block ids; no tensors.
// Thread safety: the engine thread only, except check_fits() and blocks_needed().
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "scheduler/planner.h"
#include "scheduler/request.h"
#include "scheduler/state.h"
#include "scheduler/step_plan.h"

namespace tenon {

class Scheduler {
 public:
  // Errors: kInvalidArgument naming the flag.
  static Status validate(const SchedulerConfig& config);
  // Requires: validate(config).ok().
  explicit Scheduler(const SchedulerConfig& config);

  // Blocks that a request of this size needs at its longest.
  [[nodiscard]] int32_t blocks_needed(int32_t num_prompt_tokens, int32_t max_total_tokens) const {
    return state_.blocks_needed(num_prompt_tokens, max_total_tokens);
  }
  // Errors: kInvalidArgument if such a request could never run, alone in the pool. Reads the
  // configuration only, so any thread may ask.
  [[nodiscard]] Status check_fits(int32_t num_prompt_tokens, int32_t max_total_tokens) const;

  // Errors: those of check_fits; kInvalidArgument for an empty prompt, max_total_tokens below it or
  // an id in use.
  Status add(NewRequest request);
  // Ends a request in any state and frees everything it holds; false if there is none with this id.
  bool abort(RequestId id);

  void plan(const StepBudget& budget, StepPlan* plan) const { plan_step(state_, budget, plan); }
  void apply(StepPlan* plan);
  // results[i] belongs to plan.rows[i]; rows of requests aborted since are skipped. Requires: the
  // oldest uncommitted plan; results.size() == rows.size(); a row with `sample` set has a token or
  // is finished, and is finished when its token is the last of max_total_tokens.
  void commit(const StepPlan& plan, std::span<const RowResult> results);

  [[nodiscard]] const SchedulerState& state() const { return state_; }
  [[nodiscard]] const SchedulerStats& stats() const {
    return state_.stats;
  }  // counters: never decrease
  [[nodiscard]] const ScheduledRequest* find(RequestId id) const {
    return state_.requests.find(id);
  }
  // By PlanRow::slot. Requires: the request lives.
  [[nodiscard]] const ScheduledRequest& request(int32_t slot) const {
    return state_.requests.at(slot);
  }
  [[nodiscard]] int32_t num_slots() const { return state_.requests.num_slots(); }
  [[nodiscard]] bool has_requests() const { return state_.requests.size() > 0; }
  [[nodiscard]] int32_t num_running() const { return static_cast<int32_t>(state_.running.size()); }
  [[nodiscard]] int32_t num_waiting() const { return static_cast<int32_t>(state_.waiting.size()); }
  [[nodiscard]] int32_t num_swapped() const { return static_cast<int32_t>(state_.swapped.size()); }
  [[nodiscard]] const BlockManager& blocks() const { return state_.blocks; }

  // First broken invariant of queues, requests and blocks, as kInternal. For tests.
  [[nodiscard]] Status check_invariants() const;

 private:
  void preempt(const Preemption& preemption, StepPlan* plan);
  void take_hits(const Admission& admission, std::span<const int32_t> hits);
  void grow(const PlanRow& row);
  void admit(const Admission& admission, StepPlan* plan);
  void advance(const PlanRow& row, const RowResult& result);
  void remove(int32_t slot);

  SchedulerState state_;
};

}  // namespace tenon
