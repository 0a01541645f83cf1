#include "engine/memory_plan.h"

#include <algorithm>
#include <limits>

namespace tenon {
namespace {

// Without a flag the pool holds this many tokens for every sequence that may run, or one request of
// full length.
constexpr int64_t kDefaultTokensPerSequence = 1024;
// The rest stays for activations, other processes and the page cache.
constexpr double kDefaultMemoryShare = 0.5;
constexpr int64_t kMaxBlocks = std::numeric_limits<int32_t>::max();

double mib(int64_t bytes) {
  return static_cast<double>(bytes) / 1048576.0;
}

}  // namespace

Result<MemoryPlan> plan_memory(const EngineConfig& config, const MemoryFacts& facts) {
  const int64_t block_size = config.block_size;
  const auto blocks_for = [&](int64_t tokens) { return (tokens + block_size - 1) / block_size; };
  if (config.max_model_len > facts.model_max_len) {
    return invalid_argument("--max-model-len {} is above the model's limit of {} tokens",
                            config.max_model_len, facts.model_max_len)
        .with_param("max_model_len");
  }
  const int64_t wanted_len = config.max_model_len > 0 ? config.max_model_len : facts.model_max_len;
  const int64_t fitting_blocks = facts.available_bytes / facts.bytes_per_block;
  if (config.num_kv_blocks > std::numeric_limits<int32_t>::max()) {
    return invalid_argument("--num-kv-blocks {} is more than block ids can number",
                            config.num_kv_blocks)
        .with_param("num_kv_blocks");
  }

  int64_t usable = 0;  // blocks without the null block
  if (config.num_kv_blocks > 0) {
    usable = config.num_kv_blocks - 1;
  } else if (config.kv_cache_memory > 0) {
    usable = config.kv_cache_memory / facts.bytes_per_block - 1;
  } else {
    const int64_t per_sequence = std::min(kDefaultTokensPerSequence, wanted_len);
    usable = std::max(blocks_for(wanted_len), config.max_num_seqs * blocks_for(per_sequence));
    const auto share =
        static_cast<int64_t>(kDefaultMemoryShare * static_cast<double>(fitting_blocks)) - 1;
    usable = facts.take_all ? std::min(fitting_blocks, kMaxBlocks) - 1 : std::min(usable, share);
  }
  if (usable < 1 || fitting_blocks < 2) {
    return resource_exhausted(
        "no memory for the KV cache: one block of {} tokens takes {:.2f} MiB and two are the "
        "least; {:.1f} MiB are "
        "available{}",
        block_size, mib(facts.bytes_per_block), mib(facts.available_bytes),
        config.num_kv_blocks > 0 || config.kv_cache_memory > 0
            ? ", and the flags ask for less than two blocks"
            : "");
  }
  if (usable + 1 > fitting_blocks) {
    return resource_exhausted(
        "no memory for the KV cache: {} blocks take {:.0f} MiB, {:.0f} MiB are available; "
        "--num-kv-blocks {} ({} tokens) "
        "would fit",
        usable + 1, mib((usable + 1) * facts.bytes_per_block), mib(facts.available_bytes),
        fitting_blocks, (fitting_blocks - 1) * block_size);
  }
  MemoryPlan plan;
  plan.num_blocks = usable + 1;
  if (plan.num_blocks > std::numeric_limits<int32_t>::max()) {
    return invalid_argument("the KV cache would have {} blocks, more than block ids can number",
                            plan.num_blocks);
  }
  const int64_t capacity = usable * block_size;
  if (capacity < wanted_len) {
    if (config.max_model_len > 0) {
      return invalid_argument(
                 "--max-model-len {} needs {} KV blocks ({:.0f} MiB), the cache has {}; what fits "
                 "is --max-model-len {}",
                 wanted_len, blocks_for(wanted_len) + 1,
                 mib((blocks_for(wanted_len) + 1) * facts.bytes_per_block), plan.num_blocks,
                 capacity)
          .with_param("max_model_len");
    }
    plan.context_reduced = true;
  }
  plan.max_model_len = static_cast<int32_t>(std::min(wanted_len, capacity));
  const int64_t host_blocks = facts.host_bytes >= 0 ? facts.host_bytes / facts.bytes_per_block
                                                    : fitting_blocks - plan.num_blocks;
  plan.num_host_blocks =
      std::min(config.swap_space / facts.bytes_per_block, std::max<int64_t>(0, host_blocks));
  return plan;
}

}  // namespace tenon
