// How many KV blocks to take, and the longest context that fits. Pure: the caller brings the facts.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "tenon/config.h"

namespace tenon {

struct MemoryFacts {
  int64_t bytes_per_block = 0;  // over all layers
  int32_t model_max_len = 0;    // trained context, tokens
  int64_t available_bytes = 0;  // memory that may still be taken
  int64_t host_bytes = -1;      // host memory for swapped-out blocks; -1: what the pool leaves
  bool take_all = false;        // without flags the pool takes all that is available
};

struct MemoryPlan {
  int64_t num_blocks = 0;  // the null block included
  int32_t max_model_len = 0;
  int64_t num_host_blocks = 0;   // swap space
  bool context_reduced = false;  // the pool holds less than the model's own limit
};

// Errors: kInvalidArgument (--max-model-len above the model's limit, or above what an explicit pool
// holds), kResourceExhausted (not enough memory); the message says what would fit.
Result<MemoryPlan> plan_memory(const EngineConfig& config, const MemoryFacts& facts);

}  // namespace tenon
