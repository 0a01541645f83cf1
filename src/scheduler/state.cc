#include "scheduler/state.h"

namespace tenon {

SchedulerState::SchedulerState(const SchedulerConfig& settings)
    : config(settings),
      blocks({.num_blocks = settings.num_blocks,
              .block_size = settings.block_size,
              .prefix_caching = settings.prefix_caching,
              .hash_key = settings.hash_key}),
      host_blocks(settings.num_host_blocks, BlockAllocator::NullBlock::kNone) {}

bool SchedulerState::runs_before(int32_t slot_a, int32_t slot_b) const {
  const ScheduledRequest& a = requests.at(slot_a);
  const ScheduledRequest& b = requests.at(slot_b);
  if (config.policy == SchedulingPolicy::kPriority && a.priority != b.priority) {
    return a.priority < b.priority;
  }
  return a.arrival < b.arrival;
}

}  // namespace tenon
