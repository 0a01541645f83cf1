#include "server/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <sstream>
#include <utility>
#include <vector>

namespace tenon {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

constexpr double kLongestOutput = 1e6;  // tokens

double ratio(double part, double whole) {
  return whole > 0 ? std::clamp(part / whole, 0.0, 1.0) : 0.0;
}

// Collects families; every series carries the common labels.
class Page {
 public:
  explicit Page(Labels common) : common_(std::move(common)) {}

  void gauge(const char* name, const char* help, double value, const Labels& labels = {}) {
    add(name, help, MetricType::Gauge, labels).gauge.value = value;
  }
  void counter(const char* name, const char* help, uint64_t value, const Labels& labels = {}) {
    add(name, help, MetricType::Counter, labels).counter.value = static_cast<double>(value);
  }
  void histogram(const char* name, const char* help, const HistogramData& data) {
    ClientMetric::Histogram& out = add(name, help, MetricType::Histogram, {}).histogram;
    for (size_t i = 0; i < data.counts.size(); ++i) {
      out.sample_count += data.counts[i];
      if (i < data.bounds.size()) out.bucket.push_back({out.sample_count, data.bounds[i]});
    }
    out.bucket.push_back({out.sample_count, std::numeric_limits<double>::infinity()});
    out.sample_sum = data.sum;
  }

  [[nodiscard]] std::string text() const {
    std::ostringstream out;
    prometheus::TextSerializer().Serialize(out, families_);
    return out.str();
  }

 private:
  ClientMetric& add(const char* name, const char* help, MetricType type, const Labels& labels) {
    if (families_.empty() || families_.back().name != name) {
      families_.push_back({.name = name, .help = help, .type = type, .metric = {}});
    }
    ClientMetric& metric = families_.back().metric.emplace_back();
    metric.label = common_;
    metric.label.insert(metric.label.end(), labels.begin(), labels.end());
    return metric;
  }

  const Labels common_;
  std::vector<MetricFamily> families_;
};

void add_gauges(Page& page, const EngineStats& stats, const ModelInfo& info) {
  page.gauge("vllm:num_requests_running", "Requests in the running batch.",
             static_cast<double>(stats.running));
  page.gauge("vllm:num_requests_waiting", "Requests waiting to run.",
             static_cast<double>(stats.waiting));
  // What waits does so for room in the batch or in the KV cache; nothing is put off otherwise.
  page.gauge("vllm:num_requests_waiting_by_reason", "Requests waiting to run, by the reason.",
             static_cast<double>(stats.waiting), {{"reason", "capacity"}});
  page.gauge("vllm:num_requests_waiting_by_reason", "", 0, {{"reason", "deferred"}});
  page.gauge("vllm:num_requests_swapped", "Requests whose KV cache is in host swap space.",
             static_cast<double>(stats.swapped));
  const double usage =
      ratio(static_cast<double>(stats.kv_blocks_used), static_cast<double>(stats.kv_blocks_total));
  page.gauge("vllm:kv_cache_usage_perc", "Share of KV cache blocks in use, 0 to 1.", usage);
  page.gauge("vllm:gpu_cache_usage_perc",
             "The same as vllm:kv_cache_usage_perc, under its old name.", usage);
  page.gauge("vllm:gpu_prefix_cache_hit_rate",
             "Share of looked-up prompt tokens found in the prefix cache.",
             ratio(static_cast<double>(stats.prefix_cache_hits),
                   static_cast<double>(stats.prefix_cache_queries)));
  page.gauge("vllm:cache_config_info", "KV cache configuration, as labels.", 1,
             {{"block_size", std::to_string(info.block_size)},
              {"num_gpu_blocks", std::to_string(info.num_kv_blocks)},
              {"cache_dtype", info.kv_cache_dtype},
              {"enable_prefix_caching", info.prefix_caching ? "True" : "False"}});
  page.gauge("tenon:attention_backend_info", "The attention backend that runs, as labels.", 1,
             {{"backend", info.attention_backend},
              {"reason", info.attention_reason},
              {"device", info.device}});
}

void add_counters(Page& page, const EngineStats& stats, const ServerCounters::Snapshot& counters) {
  page.counter("vllm:prompt_tokens_total", "Prompt tokens of admitted requests, each prompt once.",
               stats.prompt_tokens);
  page.counter("vllm:prompt_tokens_cached_total", "Prompt tokens taken from the prefix cache.",
               stats.prompt_tokens_cached);
  page.counter("vllm:prompt_tokens_by_source_total", "Prompt tokens by where their KV came from.",
               stats.prompt_tokens - std::min(stats.prompt_tokens_cached, stats.prompt_tokens),
               {{"source", "local_compute"}});
  page.counter("vllm:prompt_tokens_by_source_total", "", stats.prompt_tokens_cached,
               {{"source", "local_cache_hit"}});
  page.counter("vllm:generation_tokens_total", "Tokens generated and delivered.",
               stats.generation_tokens);
  page.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
               stats.prefix_cache_queries);
  page.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
               stats.prefix_cache_hits);
  page.counter("vllm:gpu_prefix_cache_queries_total",
               "vllm:prefix_cache_queries_total under its old name.", stats.prefix_cache_queries);
  page.counter("vllm:gpu_prefix_cache_hits_total",
               "vllm:prefix_cache_hits_total under its old name.", stats.prefix_cache_hits);
  page.counter("vllm:num_preemptions_total", "Preemptions.", stats.preemptions);
  const std::pair<const char*, uint64_t> ends[] = {{"stop", counters.stop},
                                                   {"length", counters.length},
                                                   {"abort", counters.abort},
                                                   {"error", counters.error}};
  for (const auto& [reason, count] : ends) {
    page.counter("vllm:request_success_total", "Requests by how they ended.", count,
                 {{"finished_reason", reason}});
  }
  page.counter("tenon:preemptions_by_mode_total", "Preemptions by what became of the KV cache.",
               stats.preemptions_swap, {{"mode", "swap"}});
  page.counter("tenon:preemptions_by_mode_total", "", stats.preemptions_recompute,
               {{"mode", "recompute"}});
  page.counter("tenon:cascade_steps_total",
               "Steps in which requests read a shared prefix together.", stats.cascade.steps);
  page.counter("tenon:cascade_groups_total", "Levels of shared prefixes in those steps.",
               stats.cascade.groups);
  page.counter("tenon:cascade_tokens_not_read_total",
               "Keys that a layer did not have to read again because of it.",
               stats.cascade.tokens_not_read);
  page.counter("tenon:recomputed_tokens_total", "Tokens computed again after a preemption.",
               stats.recomputed_tokens);
  page.counter("tenon:engine_steps_total", "Steps of the engine.", stats.steps);
}

void add_histograms(Page& page,
                    const EngineStats& stats,
                    const ServerCounters::Snapshot& counters) {
  page.histogram("vllm:time_to_first_token_seconds", "From arrival to the first token.",
                 stats.time_to_first_token);
  page.histogram("vllm:inter_token_latency_seconds", "Between two tokens of a request.",
                 stats.inter_token_latency);
  page.histogram("vllm:time_per_output_token_seconds",
                 "vllm:inter_token_latency_seconds under its old name.", stats.inter_token_latency);
  page.histogram("vllm:request_time_per_output_token_seconds",
                 "Mean time per token after the first, by request.", stats.time_per_output_token);
  page.histogram("vllm:e2e_request_latency_seconds", "From arrival to the last token.",
                 stats.e2e_latency);
  page.histogram("vllm:request_queue_time_seconds", "From arrival to the first step.",
                 stats.queue_time);
  page.histogram("vllm:request_inference_time_seconds", "From the first step to the last token.",
                 stats.inference_time);
  page.histogram("vllm:request_prefill_time_seconds", "From the first step to the first token.",
                 stats.prefill_time);
  page.histogram("vllm:request_decode_time_seconds", "From the first token to the last.",
                 stats.decode_time);
  page.histogram("vllm:request_prompt_tokens", "Prompt length in tokens.", stats.prompt_length);
  page.histogram("vllm:request_generation_tokens", "Generated tokens of a request.",
                 stats.generation_length);
  page.histogram("vllm:request_max_num_generation_tokens",
                 "Generated tokens of the longest of a prompt's n choices.",
                 counters.longest_output);
  page.histogram("vllm:request_prefill_kv_computed_tokens",
                 "Prompt tokens of a request that were computed, not cached.",
                 counters.prefill_tokens);
  page.histogram("vllm:request_params_max_tokens", "max_tokens of a request.",
                 stats.max_tokens_param);
  page.histogram("vllm:request_params_n", "n of a request.", counters.params_n);
  page.histogram("vllm:iteration_tokens_total", "Tokens computed in a step.",
                 stats.iteration_tokens);
}

}  // namespace

ServerCounters::ServerCounters() {
  data_.params_n.bounds = {1, 2, 5, 10, 20};
  for (double decade = 1; decade <= kLongestOutput; decade *= 10) {
    for (const double step : {1, 2, 5}) data_.longest_output.bounds.push_back(decade * step);
  }
  data_.prefill_tokens = data_.longest_output;
  for (HistogramData* histogram : {&data_.params_n, &data_.longest_output, &data_.prefill_tokens}) {
    histogram->counts.assign(histogram->bounds.size() + 1, 0);
  }
}

void ServerCounters::count_finish(FinishReason reason) {
  std::lock_guard lock(mutex_);
  switch (reason) {
    case FinishReason::kNone: break;
    case FinishReason::kStop: ++data_.stop; break;
    case FinishReason::kLength: ++data_.length; break;
    case FinishReason::kAbort: ++data_.abort; break;
    case FinishReason::kError: ++data_.error; break;
  }
}

void ServerCounters::observe(HistogramData& histogram, int64_t value) {
  std::lock_guard lock(mutex_);
  const auto& bounds = histogram.bounds;
  const auto bucket =
      std::lower_bound(bounds.begin(), bounds.end(), static_cast<double>(value)) - bounds.begin();
  ++histogram.counts[static_cast<size_t>(bucket)];
  histogram.sum += static_cast<double>(value);
}

void ServerCounters::count_request(int32_t n) {
  observe(data_.params_n, n);
}
void ServerCounters::count_output(int64_t longest) {
  observe(data_.longest_output, longest);
}
void ServerCounters::count_prefill(int64_t computed) {
  observe(data_.prefill_tokens, computed);
}

ServerCounters::Snapshot ServerCounters::snapshot() const {
  std::lock_guard lock(mutex_);
  return data_;
}

std::string render_metrics(const MetricsInput& input) {
  Page server(Labels{});
  server.gauge("tenon:build_info", "Version of the server.", 1, {{"version", input.version}});
  server.gauge("tenon:http_connections", "Open connections.",
               static_cast<double>(input.connections));
  if (input.engine == nullptr) return server.text();
  Page page({{"model_name", input.model_name}, {"engine", "0"}});
  const EngineStats stats = input.engine->stats();
  add_gauges(page, stats, input.engine->model_info());
  add_counters(page, stats, input.counters);
  add_histograms(page, stats, input.counters);
  return server.text() + page.text();
}

}  // namespace tenon
