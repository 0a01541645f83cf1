// Counts what happens to requests, for EngineStats.
//
// Thread safety: record_* and update() from the engine thread, snapshot() from any.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "scheduler/scheduler.h"
#include "tenon/engine.h"

namespace tenon {

class StatsRecorder {
 public:
  StatsRecorder(int32_t max_model_len, int64_t kv_blocks_total);

  void record_first_token(const RequestTimings& timings);
  void record_inter_token(double seconds);
  void record_finish(FinishReason reason,
                     const RequestTimings& timings,
                     int64_t prompt_tokens,
                     int64_t output_tokens,
                     int32_t max_tokens);
  void record_tokens_delivered(int64_t count);
  void record_step(int32_t num_tokens);
  void record_times(const StepTimes& times, uint64_t graph_steps, const CascadeCounters& cascade);
  // Takes gauges and the scheduler's counters over.
  void update(const Scheduler& scheduler, int64_t queued);

  [[nodiscard]] EngineStats snapshot() const;

 private:
  mutable std::mutex mutex_;
  EngineStats stats_;
};

}  // namespace tenon
