// Everything a plan depends on, as plain data: configuration, requests, queues, block ids.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "kv_cache/index/block_manager.h"
#include "scheduler/request.h"
#include "scheduler/request_table.h"
#include "tenon/config.h"

namespace tenon {

// Limits of one step.
struct StepBudget {
  int32_t max_num_batched_tokens = 512;
  int32_t max_num_seqs = 64;  // requests running at once
  bool chunked_prefill = true;
};

// What `auto` preemption compares, in seconds: tokens computed again against blocks copied out and
// back in.
struct PreemptionCosts {
  double seconds_per_token = 1e-3;  // prefill time of one token
  double seconds_per_block = 1e-5;  // one copy of one block
};

struct SchedulerConfig {
  int32_t num_blocks = 0;       // blocks of the device pool, the null block 0 included
  int32_t num_host_blocks = 0;  // blocks of the swap pool; 0: preemption is always by recompute
  int32_t block_size = 16;
  bool prefix_caching = true;
  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  PreemptionMode preemption_mode = PreemptionMode::kAuto;
  PreemptionCosts costs = {};
  // Uncommitted steps in which one request may have a row. 1: a request's next row waits for the
  // commit of the one before. 2: step n + 1 is planned and prepared while n runs. See scheduler.h.
  int32_t max_steps_in_flight = 1;
  StepBudget budget =
      {};  // the largest that plan() will be given; add() refuses what cannot run within it
  std::optional<HashKey> hash_key = std::nullopt;  // of the prefix index; random if not set
};

// Counters since start. They only grow.
struct SchedulerStats {
  uint64_t prompt_tokens = 0;         // of requests at their first admission: each prompt once
  uint64_t prompt_tokens_cached = 0;  // of those, found in the prefix cache
  uint64_t recomputed_tokens = 0;  // computed although the request had their KV before a preemption
  uint64_t prefix_queries = 0;  // prompt tokens looked up in the prefix cache, at first admission
  uint64_t prefix_hits = 0;     // of those, found
  uint64_t preemptions_swap = 0;
  uint64_t preemptions_recompute = 0;
  uint64_t orphan_rows = 0;  // computed for requests that had ended by then
  uint64_t steps = 0;        // committed
};

struct SchedulerState {
  explicit SchedulerState(const SchedulerConfig& settings);

  SchedulerConfig config;
  BlockManager blocks;
  BlockAllocator host_blocks;
  RequestTable requests;
  // Slots, each queue sorted by runs_before().
  std::vector<int32_t> running, waiting, swapped;
  StepId last_applied = 0;
  StepId last_committed = 0;
  uint64_t num_arrivals = 0;
  SchedulerStats stats;

  // Blocks that a request of this size holds at its longest. Its last token is never computed,
  // unless it is the prompt's.
  [[nodiscard]] int32_t blocks_needed(int32_t num_prompt_tokens, int32_t max_total_tokens) const {
    return blocks.blocks_for(std::max(num_prompt_tokens, max_total_tokens - 1));
  }
  // The one order of requests: who is served first and preempted last.
  [[nodiscard]] bool runs_before(int32_t slot_a, int32_t slot_b) const;
  // In a step that was applied and not yet committed.
  [[nodiscard]] bool busy(const ScheduledRequest& request) const {
    return request.last_step > last_committed;
  }
  // Whether a running request with uncomputed tokens may have a row in the next step.
  [[nodiscard]] bool may_run(const ScheduledRequest& request) const {
    if (request.rows_in_flight == 0) return true;
    if (request.rows_in_flight >= config.max_steps_in_flight) return false;
    return request.run_ahead || !request.ends_pending();
  }
};

}  // namespace tenon
