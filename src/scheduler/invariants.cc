// Scheduler::check_invariants: what must hold between any two calls. For tests; reads everything.
#include <algorithm>
#include <vector>

#include "scheduler/scheduler.h"

namespace tenon {
namespace {

// Of tokens and of rows in flight.
Status check_progress(const SchedulerState& state, const ScheduledRequest& request) {
  const RequestId id = request.id;
  const int32_t in_flight = request.rows_in_flight;
  const auto num_pending = static_cast<int32_t>(std::ranges::count(request.tokens, kPendingToken));
  if (in_flight < 0 || in_flight > state.config.max_steps_in_flight) {
    return internal_error("request {}: {} rows in flight", id, in_flight);
  }
  if (in_flight > 0 && (request.state != RequestState::kRunning || !state.busy(request))) {
    return internal_error("request {}: has rows in flight but is not busy", id);
  }
  if (num_pending > in_flight) {
    return internal_error("request {}: {} pending tokens, {} rows in flight", id, num_pending,
                          in_flight);
  }
  if (std::ranges::count(request.tokens.end() - num_pending, request.tokens.end(), kPendingToken) !=
      num_pending) {
    return internal_error("request {}: a pending token before a known one", id);
  }
  if (num_pending > 0 && request.num_computed != request.num_tokens() - 1) {
    return internal_error("request {}: pending tokens, but the known ones are not computed", id);
  }
  if (request.num_tokens() > request.max_total_tokens) {
    return internal_error("request {}: more tokens than it may have", id);
  }
  if (in_flight == 0 && request.num_committed != request.num_computed) {
    return internal_error("request {}: {} tokens computed, {} committed, nothing in flight", id,
                          request.num_computed, request.num_committed);
  }
  if (request.num_committed > request.num_computed ||
      request.num_published > request.num_committed / state.blocks.block_size()) {
    return internal_error("request {}: published or committed before it was computed", id);
  }
  if (request.num_uncomputed() < (in_flight > 0 ? 0 : 1)) {
    return internal_error("request {}: nothing left to compute", id);
  }
  return ok_status();
}

Status check_request(const SchedulerState& state, const ScheduledRequest& request) {
  const RequestId id = request.id;
  const int32_t num_blocks = static_cast<int32_t>(request.block_table.size());
  const int32_t num_host = static_cast<int32_t>(request.host_blocks.size());
  const bool running = request.state == RequestState::kRunning;
  const bool swapped = request.state == RequestState::kSwapped;
  if (!running && num_blocks > 0)
    return internal_error("request {}: does not run but has blocks", id);
  if (!swapped && num_host > 0)
    return internal_error("request {}: not swapped but on the host", id);
  // The newest token's block comes with the row that computes it.
  if (running && num_blocks < state.blocks.blocks_for(request.num_tokens() - 1)) {
    return internal_error("request {}: {} blocks for {} tokens", id, num_blocks,
                          request.num_tokens());
  }
  if (swapped && num_host != state.blocks.blocks_for(request.num_computed)) {
    return internal_error("request {}: {} host blocks for {} tokens", id, num_host,
                          request.num_computed);
  }
  TENON_RETURN_IF_ERROR(check_progress(state, request));
  if (num_blocks > state.blocks_needed(request.num_prompt_tokens, request.max_total_tokens)) {
    return internal_error("request {}: more blocks than it can need", id);
  }
  for (int32_t i = request.num_committed / state.blocks.block_size(); i < num_blocks; ++i) {
    const int32_t block = request.block_table[static_cast<size_t>(i)];
    if (state.blocks.ref_count(block) != 1) {
      return internal_error("request {}: block {} is not full but shared", id, block);
    }
  }
  return ok_status();
}

Status check_queue(const SchedulerState& state,
                   const std::vector<int32_t>& queue,
                   RequestState which) {
  for (size_t i = 0; i < queue.size(); ++i) {
    const ScheduledRequest& request = state.requests.at(queue[i]);
    if (!state.requests.holds(queue[i], request.id))
      return internal_error("slot {}: queued but unused", queue[i]);
    if (request.state != which) return internal_error("request {}: in the wrong queue", request.id);
    if (i > 0 && !state.runs_before(queue[i - 1], queue[i])) {
      return internal_error("request {}: out of order", request.id);
    }
    TENON_RETURN_IF_ERROR(check_request(state, request));
  }
  return ok_status();
}

// Every reference is held by a request or by a fence, and the other way round.
Status check_references(const SchedulerState& state) {
  std::vector<int32_t> refs(static_cast<size_t>(state.config.num_blocks));
  std::vector<int32_t> host_refs(static_cast<size_t>(state.config.num_host_blocks));
  for (const auto* queue : {&state.running, &state.waiting, &state.swapped}) {
    for (const int32_t slot : *queue) {
      for (const int32_t block : state.requests.at(slot).block_table)
        ++refs.at(static_cast<size_t>(block));
      for (const int32_t block : state.requests.at(slot).host_blocks)
        ++host_refs.at(static_cast<size_t>(block));
    }
  }
  state.blocks.allocator().for_each_fenced(
      [&](int32_t block) { ++refs.at(static_cast<size_t>(block)); });
  state.host_blocks.for_each_fenced(
      [&](int32_t block) { ++host_refs.at(static_cast<size_t>(block)); });
  if (refs[kNullBlock] != 0) return internal_error("the null block is in a block table");
  for (int32_t block = 1; block < state.config.num_blocks; ++block) {
    if (refs[static_cast<size_t>(block)] != state.blocks.ref_count(block)) {
      return internal_error("block {}: {} holders, {} references", block,
                            refs[static_cast<size_t>(block)], state.blocks.ref_count(block));
    }
  }
  for (int32_t block = 0; block < state.config.num_host_blocks; ++block) {
    if (host_refs[static_cast<size_t>(block)] != state.host_blocks.ref_count(block)) {
      return internal_error("host block {}: {} holders, {} references", block,
                            host_refs[static_cast<size_t>(block)],
                            state.host_blocks.ref_count(block));
    }
  }
  return ok_status();
}

}  // namespace

Status Scheduler::check_invariants() const {
  TENON_RETURN_IF_ERROR(state_.blocks.check_invariants());
  TENON_RETURN_IF_ERROR(state_.host_blocks.check_invariants());
  TENON_RETURN_IF_ERROR(check_queue(state_, state_.running, RequestState::kRunning));
  TENON_RETURN_IF_ERROR(check_queue(state_, state_.waiting, RequestState::kWaiting));
  TENON_RETURN_IF_ERROR(check_queue(state_, state_.swapped, RequestState::kSwapped));
  const size_t num_queued = state_.running.size() + state_.waiting.size() + state_.swapped.size();
  if (num_queued != static_cast<size_t>(state_.requests.size())) {
    return internal_error("{} requests, {} in queues", state_.requests.size(), num_queued);
  }
  return check_references(state_);
}

}  // namespace tenon
