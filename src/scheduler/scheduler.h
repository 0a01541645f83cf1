// Continuous batching: which requests compute how many tokens in the next step, in which blocks.
//
//   add / abort           any time, but not between a plan and its apply (nor may a commit)
//   plan(budget, &plan)   pure: reads the state, decides
//   apply(&plan)          takes and frees the blocks that the plan counted on; never fails
//   ... the engine executes the plan (see step_plan.h) ...
//   commit(plan, results) fills in tokens, publishes full blocks, ends requests
//
// Several steps may be applied before the first is committed; they are committed in the order of
// apply(). A request with a row in an uncommitted step is busy: it is no victim, and when it ends
// (abort, end token) its blocks stay fenced until that step is committed.
//
// Steps in flight (SchedulerConfig::max_steps_in_flight = k)
// - A busy request may have rows in up to k uncommitted steps. With k = 1 its next row waits for
//   the commit. With k = 2 the next step is planned, prepared and queued while one runs.
// - Planning looks at what applied steps will have done: apply() advances num_computed and, for a
//   row with `sample`, appends kPendingToken. The row after it covers that pending token: it has
//   one token, and pending_step and pending_row say who samples it.
// - Chunks of a prompt follow each other in flight; execution order is all they need.
// - Known when planning: a request that reaches max_total_tokens with its pending token gets no
//   further row. Not known: end tokens. When commit(n) ends a request that has a row in n + 1, that
//   row is an orphan, as after an abort: it runs, harmlessly (it writes to fenced blocks that were
//   never published), its result is skipped, its blocks are free after commit(n + 1).
// - A block is published when the step that fills it is committed: by then all its tokens are known
//   and its KV is written. So a prefix hit never depends on a step in flight, and two requests with
//   one new prefix in flight at once both compute it.
// - A victim must not be busy, because its tokens would not be known. When a block is lacking and
//   the last request in order is busy, the plan gives that one no row (one at a time), so that it
//   can be preempted after the next commit, and leaves out the row that lacks the block.
// - A plan may be empty while steps are in flight: commit, then plan again. It is never empty with
//   nothing in flight and requests left.
//
// What the engine does, for k steps in flight
//   loop:
//     take submissions and aborts
//     if fewer than k steps are in flight: plan; if it is not empty: apply, prepare, queue its work
//     if k are in flight, or the plan was empty and some are: wait for the oldest, commit it
// - One StepPlan object a step in flight, kept unchanged from apply() to commit().
// - Read from the request what a step needs (tokens, block_table) right after apply(): a later
//   commit changes it, or removes the request and leaves its slot to another.
// - A pending input is gathered on the device, ids[i] = sampled[pending_step][pending_row], from
//   what the earlier step's sampling left there. With at most k steps in flight, pending_step is
//   one of the k - 1 steps before: the last one for k = 2. (Or keep the newest sampled token by
//   slot: a slot's rows run in order, also across its requests.) tokens[start] may be known by the
//   time the row is prepared; then it is the same value.
// - Before commit(n), only for rows with lives(plan, row): decide token and `finished`. The results
//   of other rows are ignored; nothing may be delivered for them, and the engine's own record of
//   the request may be gone.
// - A request whose next row needs the sampled token on the host: NewRequest::run_ahead = false.
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
//   recompute. Not while fenced blocks are about to become free.
// - At most max_num_seqs requests run, those that only wait for the commit of their last row
//   included.
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
  // results[i] belongs to plan.rows[i]; rows of requests that have ended since are skipped.
  // Requires: the oldest uncommitted plan; results.size() == rows.size(); a row with `sample` set
  // has a token or is finished, and is finished when its token is the last of max_total_tokens.
  void commit(const StepPlan& plan, std::span<const RowResult> results);
  // Whether the row's request still lives. Requires: a row of an uncommitted plan.
  [[nodiscard]] bool lives(const StepPlan& plan, const PlanRow& row) const {
    return state_.requests.holds(row.slot, row.id) && request(row.slot).added_after < plan.step;
  }

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
  void admit(const Admission& admission, StepPlan* plan);
  void start_row(const PlanRow& row, int32_t index);
  void finish_row(const PlanRow& row, const RowResult& result);
  void remove(int32_t slot);

  SchedulerState state_;
};

}  // namespace tenon
