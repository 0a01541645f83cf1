// A request as the scheduler knows it: token ids, lengths, blocks. No sampling, no text.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kv_cache/index/block_manager.h"
#include "tenon/request.h"

namespace tenon {

// A token that a step in flight samples and that nobody on the host knows yet. Its place in
// ScheduledRequest::tokens is taken when the step is applied and filled when it is committed.
inline constexpr int32_t kPendingToken = -1;

struct NewRequest {
  RequestId id = 0;                  // unique among live requests
  std::vector<int32_t> prompt = {};  // not empty
  int32_t max_total_tokens = 0;      // prompt and output together, at least the prompt
  int32_t priority = 0;              // lower runs earlier; ignored under FCFS
  std::string cache_salt = {};
  // Off when logits of every prompt position are wanted (echo, prompt_logprobs): all of the prompt
  // is computed.
  bool read_prefix_cache = true;
  // Off when a sampled token has to be known on the host before the request's next row can run (its
  // sampling is done there, a grammar follows it): then no row of it covers a pending token,
  // whatever SchedulerConfig::max_steps_in_flight says. Chunks of its prompt still follow each
  // other.
  bool run_ahead = true;
};

enum class RequestState : uint8_t {
  kWaiting,  // no blocks; new, or preempted by recompute
  kRunning,  // owns device blocks for all its tokens
  kSwapped,  // its KV is in host blocks
};

struct ScheduledRequest {
  RequestId id = 0;
  RequestState state = RequestState::kWaiting;
  std::vector<int32_t> tokens;  // prompt, then output; pending tokens, if any, at the end
  int32_t num_prompt_tokens = 0;
  int32_t max_total_tokens = 0;
  // Tokens [0, num_computed) have their KV in block_table (or host_blocks) once all applied steps
  // have run; those before num_committed have it now.
  int32_t num_computed = 0;
  int32_t num_committed = 0;
  int32_t num_cached_tokens =
      -1;  // prompt tokens taken from the prefix cache at first admission; -1: not yet
  std::vector<int32_t> block_table;  // device blocks, kRunning only
  std::vector<int32_t> host_blocks;  // kSwapped only

  int32_t priority = 0;
  uint64_t arrival = 0;  // order of add(); kept through preemptions
  bool read_prefix_cache = true;
  int32_t num_published = 0;  // leading blocks of block_table already given to the prefix index
  int32_t max_computed = 0;   // highest num_committed ever: below it, computing is re-computing
  bool run_ahead = true;
  int32_t rows_in_flight = 0;  // rows in steps that are not committed yet
  int32_t last_row = 0;        // index of its newest row in the plan of that row's step
  StepId last_step = 0;    // last step that touches its blocks; busy until that step is committed
  StepId added_after = 0;  // newest step at its add(): rows of steps up to here are not its own
  std::vector<BlockHash> chain;  // see BlockManager::begin_chain

  [[nodiscard]] int32_t num_tokens() const { return static_cast<int32_t>(tokens.size()); }
  [[nodiscard]] int32_t num_output_tokens() const { return num_tokens() - num_prompt_tokens; }
  // Tokens that wait for a row. 0: all rows of the request are in flight, and it ends with them
  // (the last of max_total_tokens is never computed, unless it is the prompt's).
  [[nodiscard]] int32_t num_uncomputed() const {
    return std::min(num_tokens(), std::max(num_prompt_tokens, max_total_tokens - 1)) - num_computed;
  }
  [[nodiscard]] bool ends_pending() const { return tokens.back() == kPendingToken; }
  [[nodiscard]] std::span<const int32_t> output_tokens() const {
    return std::span(tokens).subspan(static_cast<size_t>(num_prompt_tokens));
  }
};

}  // namespace tenon
