// GET /metrics: the engine's statistics under the names that routers and dashboards read (vllm:*),
// in Prometheus' text format. Series that vLLM does not have begin with tenon:.
// Thread safety: ServerCounters may be used from any thread; render_metrics() is a pure function.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>

#include "tenon/engine.h"

namespace tenon {

// What the server itself counts: it alone knows of stop strings and of n. Never decreases.
class ServerCounters {
 public:
  struct Snapshot {
    uint64_t stop = 0, length = 0, abort = 0, error = 0;  // engine requests by how they ended
    HistogramData params_n;
    HistogramData longest_output;  // of the choices of one prompt
    HistogramData prefill_tokens;  // prompt tokens of a choice that were computed, not cached
  };

  ServerCounters();
  void count_finish(FinishReason reason);
  void count_request(int32_t n);
  // For what ended as it should.
  void count_output(int64_t longest);
  void count_prefill(int64_t computed);
  [[nodiscard]] Snapshot snapshot() const;

 private:
  void observe(HistogramData& histogram, int64_t value);

  mutable std::mutex mutex_;
  Snapshot data_;
};

struct MetricsInput {
  std::string version;
  int64_t connections = 0;
  const Engine* engine = nullptr;  // null while loading: only the server's own series
  std::string model_name;
  ServerCounters::Snapshot counters;
};

[[nodiscard]] std::string render_metrics(const MetricsInput& input);

}  // namespace tenon
