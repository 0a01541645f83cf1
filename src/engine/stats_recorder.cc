#include "engine/stats_recorder.h"

#include <algorithm>

namespace tenon {
namespace {

// Bucket bounds of vLLM's metrics of the same names, so that existing dashboards fit. A few finer
// ones are added in front where a small model on a CPU would fall below the first.
const std::vector<double> kTtftBounds = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                         1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const std::vector<double> kTokenBounds = {.001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3,
                                          .4,   .5,    .75,  1,   2.5,  5,   7.5,  10, 20,  40, 80};
const std::vector<double> kRequestBounds = {.01, .03, .1,  .3,  .5,  .8,  1,    1.5,
                                            2,   2.5, 5,   10,  15,  20,  30,   40,
                                            50,  60,  120, 240, 480, 960, 1920, 7680};
const std::vector<double> kIterationBounds = {1,   8,    16,   32,   64,   128,  256,
                                              512, 1024, 2048, 4096, 8192, 16384};

// 1, 2, 5, 10, 20, 50, ... up to `limit`.
std::vector<double> one_two_five(double limit) {
  std::vector<double> bounds;
  for (double decade = 1;; decade *= 10) {
    for (const double step : {1.0, 2.0, 5.0}) {
      if (step * decade > limit && !bounds.empty()) return bounds;
      bounds.push_back(step * decade);
    }
  }
}

HistogramData make_histogram(std::vector<double> bounds) {
  HistogramData histogram;
  histogram.counts.assign(bounds.size() + 1, 0);
  histogram.bounds = std::move(bounds);
  return histogram;
}

void observe(HistogramData& histogram, double value) {
  const auto bucket = std::lower_bound(histogram.bounds.begin(), histogram.bounds.end(), value);
  ++histogram.counts[static_cast<size_t>(bucket - histogram.bounds.begin())];
  histogram.sum += value;
}

}  // namespace

StatsRecorder::StatsRecorder(int32_t max_model_len, int64_t kv_blocks_total) {
  stats_.kv_blocks_total = kv_blocks_total;
  stats_.time_to_first_token = make_histogram(kTtftBounds);
  stats_.inter_token_latency = make_histogram(kTokenBounds);
  stats_.time_per_output_token = make_histogram(kTokenBounds);
  for (HistogramData* histogram : {&stats_.e2e_latency, &stats_.queue_time, &stats_.prefill_time,
                                   &stats_.decode_time, &stats_.inference_time}) {
    *histogram = make_histogram(kRequestBounds);
  }
  for (HistogramData* histogram :
       {&stats_.prompt_length, &stats_.generation_length, &stats_.max_tokens_param}) {
    *histogram = make_histogram(one_two_five(max_model_len));
  }
  stats_.iteration_tokens = make_histogram(kIterationBounds);
}

void StatsRecorder::record_first_token(const RequestTimings& timings) {
  std::lock_guard lock(mutex_);
  observe(stats_.time_to_first_token, timings.first_token - timings.arrival);
}

void StatsRecorder::record_inter_token(double seconds) {
  std::lock_guard lock(mutex_);
  observe(stats_.inter_token_latency, seconds);
}

void StatsRecorder::record_finish(FinishReason reason,
                                  const RequestTimings& timings,
                                  int64_t prompt_tokens,
                                  int64_t output_tokens,
                                  int32_t max_tokens) {
  std::lock_guard lock(mutex_);
  switch (reason) {
    case FinishReason::kStop: ++stats_.finished_stop; break;
    case FinishReason::kLength: ++stats_.finished_length; break;
    case FinishReason::kAbort: ++stats_.finished_abort; break;
    case FinishReason::kError: ++stats_.finished_error; break;
    case FinishReason::kNone: break;
  }
  observe(stats_.e2e_latency, timings.finished - timings.arrival);
  observe(stats_.prompt_length, static_cast<double>(prompt_tokens));
  observe(stats_.generation_length, static_cast<double>(output_tokens));
  observe(stats_.max_tokens_param, max_tokens);
  if (timings.first_scheduled == 0) return;
  observe(stats_.queue_time, timings.first_scheduled - timings.arrival);
  observe(stats_.inference_time, timings.finished - timings.first_scheduled);
  if (timings.first_token == 0) return;
  observe(stats_.prefill_time, timings.first_token - timings.first_scheduled);
  observe(stats_.decode_time, timings.finished - timings.first_token);
  if (output_tokens > 1) {
    observe(stats_.time_per_output_token,
            (timings.finished - timings.first_token) / static_cast<double>(output_tokens - 1));
  }
}

void StatsRecorder::record_tokens_delivered(int64_t count) {
  std::lock_guard lock(mutex_);
  stats_.generation_tokens += static_cast<uint64_t>(count);
}

void StatsRecorder::record_step(int32_t num_tokens) {
  std::lock_guard lock(mutex_);
  observe(stats_.iteration_tokens, num_tokens);
}

void StatsRecorder::record_times(const StepTimes& times,
                                 uint64_t graph_steps,
                                 const CascadeCounters& cascade) {
  const std::lock_guard lock(mutex_);
  stats_.times = times;
  stats_.graph_steps = graph_steps;
  stats_.cascade = cascade;
}

void StatsRecorder::update(const Scheduler& scheduler, int64_t queued) {
  std::lock_guard lock(mutex_);
  stats_.running = scheduler.num_running();
  stats_.waiting = scheduler.num_waiting() + queued;
  stats_.swapped = scheduler.num_swapped();
  stats_.kv_blocks_used = scheduler.blocks().num_used();
  const SchedulerStats& counters = scheduler.stats();
  stats_.prompt_tokens = counters.prompt_tokens;
  stats_.prompt_tokens_cached = counters.prompt_tokens_cached;
  stats_.recomputed_tokens = counters.recomputed_tokens;
  stats_.prefix_cache_queries = counters.prefix_queries;
  stats_.prefix_cache_hits = counters.prefix_hits;
  stats_.preemptions_swap = counters.preemptions_swap;
  stats_.preemptions_recompute = counters.preemptions_recompute;
  stats_.preemptions = counters.preemptions_swap + counters.preemptions_recompute;
  stats_.steps = counters.steps;
}

EngineStats StatsRecorder::snapshot() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace tenon
