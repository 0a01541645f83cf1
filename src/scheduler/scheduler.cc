#include "scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tenon {
namespace {

std::vector<int32_t>& queue_of(SchedulerState& state, RequestState which) {
  switch (which) {
    case RequestState::kRunning: return state.running;
    case RequestState::kSwapped: return state.swapped;
    case RequestState::kWaiting: break;
  }
  return state.waiting;
}

void enqueue(SchedulerState& state, int32_t slot) {
  std::vector<int32_t>& queue = queue_of(state, state.requests.at(slot).state);
  const auto before = [&](int32_t a, int32_t b) { return state.runs_before(a, b); };
  queue.insert(std::ranges::lower_bound(queue, slot, before), slot);
}

void dequeue(SchedulerState& state, int32_t slot) {
  std::vector<int32_t>& queue = queue_of(state, state.requests.at(slot).state);
  queue.erase(std::ranges::find(queue, slot));
}

}  // namespace

Status Scheduler::validate(const SchedulerConfig& config) {
  if (config.block_size < 1)
    return invalid_argument("--block-size {}: must be at least 1", config.block_size);
  if (config.num_blocks < 2) {
    return invalid_argument("--num-kv-blocks {}: must be at least 2, one of them is reserved",
                            config.num_blocks);
  }
  if (config.num_host_blocks < 0) return invalid_argument("--swap-space: must not be negative");
  if (config.preemption_mode == PreemptionMode::kSwap && config.num_host_blocks == 0) {
    return invalid_argument("--preemption-mode swap needs --swap-space for at least one block");
  }
  if (config.max_steps_in_flight < 1) {
    return invalid_argument("{} steps in flight: must be at least 1", config.max_steps_in_flight);
  }
  const StepBudget& budget = config.budget;
  if (budget.max_num_seqs < 1) {
    return invalid_argument("--max-num-seqs {}: must be at least 1", budget.max_num_seqs);
  }
  if (budget.max_num_batched_tokens < budget.max_num_seqs) {
    return invalid_argument("--max-num-batched-tokens {}: must be at least --max-num-seqs ({})",
                            budget.max_num_batched_tokens, budget.max_num_seqs);
  }
  return ok_status();
}

Scheduler::Scheduler(const SchedulerConfig& config) : state_(config) {
  const Status status = validate(config);
  TENON_CHECK_EQ(status.message(), "");
}

Status Scheduler::check_fits(int32_t num_prompt_tokens, int32_t max_total_tokens) const {
  const int32_t needed = blocks_needed(num_prompt_tokens, max_total_tokens);
  if (needed > state_.blocks.num_blocks()) {
    return invalid_argument(
        "a request of up to {} tokens needs {} KV blocks of {} tokens, the cache has {}",
        max_total_tokens, needed, state_.blocks.block_size(), state_.blocks.num_blocks());
  }
  const StepBudget& budget = state_.config.budget;
  const int32_t max_computed = std::max(num_prompt_tokens, max_total_tokens - 1);
  if (!budget.chunked_prefill && max_computed > budget.max_num_batched_tokens) {
    return invalid_argument(
        "a request of up to {} tokens exceeds --max-num-batched-tokens {}, and chunked prefill is "
        "off",
        max_total_tokens, budget.max_num_batched_tokens);
  }
  return ok_status();
}

Status Scheduler::add(NewRequest incoming) {
  if (incoming.prompt.empty()) return invalid_argument("the prompt is empty");
  if (std::cmp_less(incoming.max_total_tokens, incoming.prompt.size())) {
    return invalid_argument("a prompt of {} tokens exceeds the request's limit of {}",
                            incoming.prompt.size(), incoming.max_total_tokens);
  }
  const auto num_prompt_tokens = static_cast<int32_t>(incoming.prompt.size());
  TENON_RETURN_IF_ERROR(check_fits(num_prompt_tokens, incoming.max_total_tokens));
  if (find(incoming.id) != nullptr) return invalid_argument("request id {} is in use", incoming.id);

  const int32_t slot = state_.requests.insert(incoming.id);
  ScheduledRequest& request = state_.requests.at(slot);
  request.tokens.assign(incoming.prompt.begin(), incoming.prompt.end());
  request.num_prompt_tokens = num_prompt_tokens;
  request.max_total_tokens = incoming.max_total_tokens;
  request.priority = incoming.priority;
  request.read_prefix_cache = incoming.read_prefix_cache;
  request.run_ahead = incoming.run_ahead;
  request.added_after = state_.last_applied;
  request.arrival = state_.num_arrivals++;
  state_.blocks.begin_chain(incoming.cache_salt, request.chain);
  state_.blocks.extend_chain(request.tokens, request.chain);
  enqueue(state_, slot);
  return ok_status();
}

bool Scheduler::abort(RequestId id) {
  const int32_t slot = state_.requests.slot_of(id);
  if (slot < 0) return false;
  remove(slot);
  return true;
}

void Scheduler::remove(int32_t slot) {
  const ScheduledRequest& request = state_.requests.at(slot);
  dequeue(state_, slot);
  state_.blocks.release(request.block_table, request.last_step);
  state_.host_blocks.release(request.host_blocks, request.last_step);
  state_.requests.erase(slot);
}

void Scheduler::apply(StepPlan* plan) {
  TENON_CHECK_EQ(plan->step, state_.last_applied + 1);
  state_.last_applied = plan->step;
  for (const Preemption& preemption : plan->preemptions) preempt(preemption, plan);
  // Hits of all admissions before any allocation, which could otherwise evict them.
  auto hits = std::span<const int32_t>(plan->hit_blocks);
  for (const Admission& admission : plan->admissions) {
    take_hits(admission, hits.first(static_cast<size_t>(admission.num_hits)));
    hits = hits.subspan(static_cast<size_t>(admission.num_hits));
  }
  for (const Admission& admission : plan->admissions) admit(admission, plan);
  int32_t index = 0;
  for (const PlanRow& row : plan->rows) start_row(row, index++);
}

void Scheduler::preempt(const Preemption& preemption, StepPlan* plan) {
  ScheduledRequest& victim = state_.requests.at(preemption.slot);
  TENON_CHECK(victim.state == RequestState::kRunning && !state_.busy(victim));
  dequeue(state_, preemption.slot);
  if (preemption.swap) {
    for (int32_t i = 0; i < preemption.num_copies; ++i) {
      const int32_t host_block = state_.host_blocks.allocate();
      victim.host_blocks.push_back(host_block);
      plan->swap_out_copies.push_back({victim.block_table[static_cast<size_t>(i)], host_block});
    }
    victim.last_step = plan->step;
    victim.state = RequestState::kSwapped;
    ++state_.stats.preemptions_swap;
  } else {
    victim.num_computed = victim.num_committed = 0;
    victim.state = RequestState::kWaiting;
    ++state_.stats.preemptions_recompute;
  }
  // Free at once: no uncommitted step has a row of a victim, and copies go out before this step
  // writes.
  state_.blocks.release(victim.block_table);
  victim.block_table.clear();
  victim.num_published = 0;
  enqueue(state_, preemption.slot);
}

void Scheduler::take_hits(const Admission& admission, std::span<const int32_t> hits) {
  state_.blocks.acquire(hits);
  state_.requests.at(admission.slot).block_table.assign(hits.begin(), hits.end());
}

void Scheduler::admit(const Admission& admission, StepPlan* plan) {
  ScheduledRequest& request = state_.requests.at(admission.slot);
  dequeue(state_, admission.slot);
  // All memory it will need, so that the steps of a running request do not allocate.
  const auto max_blocks =
      static_cast<size_t>(blocks_needed(request.num_prompt_tokens, request.max_total_tokens));
  request.tokens.reserve(static_cast<size_t>(request.max_total_tokens));
  request.block_table.reserve(max_blocks);
  request.chain.reserve(max_blocks + 1);
  state_.blocks.allocate(admission.num_new_blocks, request.block_table);
  request.num_published = admission.num_hits;
  if (admission.from_swap) {
    for (size_t i = static_cast<size_t>(admission.num_hits),
                end = i + static_cast<size_t>(admission.num_copies);
         i < end; ++i) {
      plan->swap_in_copies.push_back({request.host_blocks[i], request.block_table[i]});
    }
    state_.host_blocks.release(request.host_blocks, plan->step);
    request.host_blocks.clear();
  } else {
    request.num_computed = request.num_committed = admission.num_cached;
  }
  if (admission.first) {
    request.num_cached_tokens = admission.num_cached;
    const auto prompt = static_cast<uint64_t>(request.num_prompt_tokens);
    const auto cached = static_cast<uint64_t>(admission.num_cached);
    state_.stats.prompt_tokens += prompt;
    state_.stats.prompt_tokens_cached += cached;
    if (state_.blocks.prefix_caching() && request.read_prefix_cache) {
      state_.stats.prefix_queries += prompt;
      state_.stats.prefix_hits += cached;
    }
  }
  request.state = RequestState::kRunning;
  enqueue(state_, admission.slot);
}

void Scheduler::start_row(const PlanRow& row, int32_t index) {
  TENON_CHECK(state_.requests.holds(row.slot, row.id));  // else the plan is older than the state
  ScheduledRequest& request = state_.requests.at(row.slot);
  TENON_CHECK_EQ(request.num_computed, row.start);
  const int32_t have = static_cast<int32_t>(request.block_table.size());
  state_.blocks.allocate(state_.blocks.blocks_for(request.num_tokens()) - have,
                         request.block_table);
  request.num_computed += row.num_tokens;
  // A request that only scores its prompt has no room for another token.
  if (row.sample && request.num_tokens() < request.max_total_tokens) {
    request.tokens.push_back(kPendingToken);
  }
  ++request.rows_in_flight;
  request.last_row = index;
  request.last_step = state_.last_applied;
}

void Scheduler::commit(const StepPlan& plan, std::span<const RowResult> results) {
  TENON_CHECK_EQ(plan.step, state_.last_committed + 1);
  TENON_CHECK_LE(plan.step, state_.last_applied);
  TENON_CHECK_EQ(results.size(), plan.rows.size());
  state_.last_committed = plan.step;
  state_.blocks.complete(plan.step);
  state_.host_blocks.complete(plan.step);
  for (size_t i = 0; i < results.size(); ++i) {
    if (lives(plan, plan.rows[i])) {
      finish_row(plan.rows[i], results[i]);
    } else {
      ++state_.stats.orphan_rows;
    }
  }
  ++state_.stats.steps;
}

void Scheduler::finish_row(const PlanRow& row, const RowResult& result) {
  ScheduledRequest& request = state_.requests.at(row.slot);
  TENON_CHECK_EQ(request.num_committed, row.start);
  const int32_t end = row.start + row.num_tokens;
  const int32_t again = std::min(end, request.max_computed) - row.start;
  if (again > 0) state_.stats.recomputed_tokens += static_cast<uint64_t>(again);
  request.num_committed = end;
  request.max_computed = std::max(request.max_computed, end);
  --request.rows_in_flight;

  // Their KV is computed and their tokens are known now, so others may find the blocks that are
  // full.
  const int32_t num_full = end / state_.blocks.block_size();
  if (num_full > request.num_published) {
    const auto known = std::span<const int32_t>(request.tokens).first(static_cast<size_t>(end));
    state_.blocks.extend_chain(known, request.chain);
    for (; request.num_published < num_full; ++request.num_published) {
      const auto position = static_cast<size_t>(request.num_published);
      state_.blocks.publish(request.block_table[position], request.num_published, known,
                            request.chain);
    }
  }

  if (!row.sample) return;
  if (result.finished) return remove(row.slot);
  TENON_CHECK_GE(result.token, 0);
  TENON_CHECK_LT(end + 1, request.max_total_tokens);
  request.tokens[static_cast<size_t>(end)] = result.token;
}

}  // namespace tenon
