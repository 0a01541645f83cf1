// A request as the scheduler knows it: token ids, lengths, blocks. No sampling, no text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kv_cache/index/block_manager.h"
#include "tenon/request.h"

namespace tenon {

struct NewRequest {
  RequestId id = 0;                  // unique among live requests
  std::vector<int32_t> prompt = {};  // not empty
  int32_t max_total_tokens = 0;      // prompt and output together, at least the prompt
  int32_t priority = 0;              // lower runs earlier; ignored under FCFS
  std::string cache_salt = {};
  // Off when logits of every prompt position are wanted (echo, prompt_logprobs): all of the prompt
  // is computed.
  bool read_prefix_cache = true;
};

enum class RequestState : uint8_t {
  kWaiting,  // no blocks; new, or preempted by recompute
  kRunning,  // owns device blocks for all its tokens
  kSwapped,  // its KV is in host blocks
};

struct ScheduledRequest {
  RequestId id = 0;
  RequestState state = RequestState::kWaiting;
  std::vector<int32_t> tokens;  // prompt, then output
  int32_t num_prompt_tokens = 0;
  int32_t max_total_tokens = 0;
  int32_t num_computed =
      0;  // tokens [0, num_computed) have their KV in block_table (or host_blocks)
  int32_t num_cached_tokens =
      -1;  // prompt tokens taken from the prefix cache at first admission; -1: not yet
  std::vector<int32_t> block_table;  // device blocks, kRunning only
  std::vector<int32_t> host_blocks;  // kSwapped only

  int32_t priority = 0;
  uint64_t arrival = 0;  // order of add(); kept through preemptions
  bool read_prefix_cache = true;
  int32_t num_published = 0;  // leading blocks of block_table already given to the prefix index
  int32_t max_computed = 0;   // highest num_computed ever: below it, computing is re-computing
  StepId last_step = 0;  // last step that touches its blocks; busy until that step is committed
  std::vector<BlockHash> chain;  // see BlockManager::begin_chain

  [[nodiscard]] int32_t num_tokens() const { return static_cast<int32_t>(tokens.size()); }
  [[nodiscard]] int32_t num_output_tokens() const { return num_tokens() - num_prompt_tokens; }
  [[nodiscard]] int32_t num_uncomputed() const { return num_tokens() - num_computed; }
  [[nodiscard]] std::span<const int32_t> output_tokens() const {
    return std::span(tokens).subspan(static_cast<size_t>(num_prompt_tokens));
  }
};

}  // namespace tenon
