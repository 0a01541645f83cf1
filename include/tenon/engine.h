// The engine: loads a model and serves generation requests in token ids.
//
// Ownership:     create() returns the only owner. The destructor ends the engine thread; requests
// that
//                still run get a last output with FinishReason::kAbort.
// Thread safety: every member may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tenon/config.h"
#include "tenon/request.h"
#include "tenon/status.h"

namespace tenon {

struct ModelInfo {
  std::string architecture;  // "LlamaForCausalLM"
  std::string weights;       // short description of the weight types: "Q4_1 (211), F32 (61)"
  int32_t vocab_size = 0;
  int32_t max_model_len = 0;
  std::vector<int32_t> eos_token_ids;
  std::string device;  // "cpu"
  std::string isa;     // "avx512"
  int32_t threads = 0;
  std::string attention_backend;  // name of the chosen one
  std::string attention_reason;   // one line: why this one and not the others
  int32_t block_size = 0;
  int64_t num_kv_blocks = 0;
  std::string kv_cache_dtype;
  int64_t kv_cache_bytes = 0;
  int64_t weight_bytes = 0;
  bool prefix_caching = false;
  double load_seconds = 0;
};

// Fixed-bucket histogram; bounds are upper limits, counts has one more entry for +Inf. Not
// cumulative.
struct HistogramData {
  std::vector<double> bounds;
  std::vector<uint64_t> counts;
  double sum = 0;
};

// Where the time of the steps went. Seconds since the start; their sums never decrease.
struct StepTimes {
  // The engine thread: deciding, input arrays and the attention plan, enqueueing, results.
  double schedule = 0, prepare = 0, launch = 0, commit = 0;
  double device = 0;  // from the first to the last piece of work of each step
  // Only with EngineConfig::profile, of the device.
  double attention = 0, linear = 0, sampling = 0, other = 0;
};

// How often requests read a shared prefix together. Counters since the start.
struct CascadeCounters {
  uint64_t steps = 0;            // with at least one group
  uint64_t groups = 0;           // levels of prefix trees, of all steps
  uint64_t rows = 0;             // requests in them
  uint64_t tokens_not_read = 0;  // keys less than without, a layer
};

// A consistent snapshot, taken at the end of the last step. Counters never decrease.
struct EngineStats {
  int64_t running = 0, waiting = 0, swapped = 0;    // requests
  int64_t kv_blocks_total = 0, kv_blocks_used = 0;  // used: referenced by a request
  uint64_t prompt_tokens = 0;                       // of admitted requests, each prompt once
  uint64_t prompt_tokens_cached = 0;                // of those, taken from the prefix cache
  uint64_t generation_tokens = 0;                   // delivered
  uint64_t recomputed_tokens = 0;                   // computed again after a preemption
  uint64_t prefix_cache_queries = 0, prefix_cache_hits = 0;  // tokens
  uint64_t preemptions = 0, preemptions_swap = 0, preemptions_recompute = 0;
  uint64_t finished_stop = 0, finished_length = 0, finished_abort = 0, finished_error = 0;
  uint64_t steps = 0;
  uint64_t graph_steps = 0;  // of those, run by a captured graph
  CascadeCounters cascade;
  StepTimes times;
  HistogramData time_to_first_token, inter_token_latency, time_per_output_token, e2e_latency,
      queue_time, prefill_time, decode_time, inference_time, prompt_length, generation_length,
      iteration_tokens, max_tokens_param;
};

// done in [0, 1]; called from the loading thread.
using LoadProgress = std::function<void(double done, const std::string& what)>;

class Engine {
 public:
  // Loads the model, sizes the KV pool, chooses the attention backend and starts the engine thread.
  // Errors say what was wrong and, for memory, what would fit.
  static Result<std::unique_ptr<Engine>> create(const EngineConfig& config,
                                                const LoadProgress& progress = {});
  virtual ~Engine() = default;

  // Queues a request. Errors: kInvalidArgument (parameters, prompt longer than the context: message
  // contains "maximum context length is N tokens"), kResourceExhausted (queue full), kUnavailable
  // (shutting down). After an error the callback is never called.
  virtual Result<RequestId> submit(GenerationRequest request, OutputCallback on_output) = 0;

  // Ends a request within one step, wherever it is; unknown ids are ignored. The callback gets a
  // last output with FinishReason::kAbort unless the request had already finished.
  virtual void abort(RequestId id) = 0;

  [[nodiscard]] virtual const ModelInfo& model_info() const = 0;
  [[nodiscard]] virtual EngineStats stats() const = 0;
  // False once the engine thread has stopped because of a failure.
  [[nodiscard]] virtual bool healthy() const = 0;
};

// Which attention backends can serve a model under a configuration, and why not the others. Reads
// the model's header only.
struct AttentionVerdict {
  std::string name;
  std::string summary;
  int32_t preference = 0;
  std::vector<std::string> reasons;  // why not; empty: it can
};
struct AttentionReport {
  std::string wanted;  // what the model asks for, one line
  std::vector<AttentionVerdict> backends;
  std::string chosen;
  std::string reason;
};
Result<AttentionReport> report_attention_backends(const EngineConfig& config);

}  // namespace tenon
