// tenon bench: measurements through the public engine API, in token ids (no text involved).
#include <cstdio>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/clock.h"
#include "base/thread_pool.h"
#include "cli/commands.h"
#include "cli/session.h"
#include "kernels/cpu/probe.h"

namespace tenon::cli {
namespace {

// Ids of ordinary tokens, different for every (request, position), reproducible.
std::vector<int32_t> synthetic_prompt(uint64_t request, int32_t length, int32_t vocab_size) {
  std::vector<int32_t> ids(static_cast<size_t>(length));
  uint64_t state = 0x9E3779B97F4A7C15ULL * (request + 1);
  // The first ids of every vocabulary are control tokens and bytes; keep clear of them when there
  // is room.
  const int32_t first = std::min(1000, vocab_size / 2);
  for (int32_t& id : ids) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    id = first + static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocab_size - first));
  }
  return ids;
}

struct Finished {
  double submitted = 0, first = 0, last = 0;
  int64_t tokens = 0;
  bool ok = false;
};

// Submits requests so that at most `concurrency` run at once and waits for all.
class LoadRun {
 public:
  explicit LoadRun(Engine& engine) : engine_(engine) {}

  Result<std::vector<Finished>> run(std::vector<GenerationRequest> requests, int32_t concurrency) {
    results_.assign(requests.size(), {});
    for (size_t i = 0; i < requests.size(); ++i) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return active_ < concurrency; });
        ++active_;
        results_[i].submitted = now_seconds();
      }
      auto id = engine_.submit(std::move(requests[i]),
                               [this, i](RequestOutput&& output) { on_output(i, output); });
      if (!id.ok()) {
        wait_until_idle(1);
        return id.status();
      }
    }
    wait_until_idle(0);
    return results_;
  }

 private:
  void on_output(size_t index, const RequestOutput& output) {
    std::lock_guard lock(mutex_);
    Finished& result = results_[index];
    if (!output.tokens.empty()) {
      result.last = now_seconds();
      if (result.tokens == 0) result.first = result.last;
      result.tokens += static_cast<int64_t>(output.tokens.size());
    }
    if (output.finish_reason == FinishReason::kNone) return;
    result.ok = output.finish_reason == FinishReason::kLength && output.error.ok();
    --active_;
    changed_.notify_all();
  }
  void wait_until_idle(int32_t left) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return active_ <= left; });
  }

  Engine& engine_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int32_t active_ = 0;
  std::vector<Finished> results_;
};

GenerationRequest bench_request(std::vector<int32_t> prompt, int32_t output_len) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  request.sampling.max_tokens = output_len;
  return request;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

nlohmann::ordered_json model_json(const ModelInfo& info) {
  return {{"architecture", info.architecture},
          {"weights", info.weights},
          {"weight_bytes", info.weight_bytes},
          {"device", info.device},
          {"isa", info.isa},
          {"threads", info.threads},
          {"attention_backend", info.attention_backend},
          {"kv_cache_dtype", info.kv_cache_dtype},
          {"load_seconds", info.load_seconds}};
}

void print_model(const ModelInfo& info) {
  std::printf("%s, %s, %s on %d threads (%s), attention %s, KV %s\n", info.architecture.c_str(),
              info.weights.c_str(), info.device.c_str(), info.threads, info.isa.c_str(),
              info.attention_backend.c_str(), info.kv_cache_dtype.c_str());
}

// One row of the latency table: a rate for every repetition, tok/s.
struct Rate {
  std::string name;
  std::vector<double> samples;
};

}  // namespace

int bench_throughput_command(const ThroughputOptions& options) {
  EngineConfig config = options.engine;
  config.max_queue = std::max(config.max_queue, options.num_prompts);
  auto engine = Engine::create(config, terminal_progress());
  if (!engine.ok()) return fail(engine.status());
  const ModelInfo& info = (*engine)->model_info();

  LoadRun load(**engine);
  // One short request first: it touches every weight and buffer once.
  auto warm = load.run({bench_request(synthetic_prompt(1U << 20, 8, info.vocab_size), 4)}, 1);
  if (!warm.ok()) return fail(warm.status());
  std::vector<GenerationRequest> requests;
  for (int32_t i = 0; i < options.num_prompts; ++i) {
    requests.push_back(bench_request(
        synthetic_prompt(static_cast<uint64_t>(i), options.input_len, info.vocab_size),
        options.output_len));
  }
  const int32_t concurrency =
      options.max_concurrency > 0 ? options.max_concurrency : options.num_prompts;
  const double start = now_seconds();
  auto results = load.run(std::move(requests), concurrency);
  const double seconds = now_seconds() - start;
  if (!results.ok()) return fail(results.status());

  int64_t output_tokens = 0;
  int32_t completed = 0;
  std::vector<double> ttft, tpot;
  for (const Finished& result : *results) {
    output_tokens += result.tokens;
    if (!result.ok || result.tokens != options.output_len) continue;  // cut short by the context
    ++completed;
    ttft.push_back((result.first - result.submitted) * 1e3);
    if (result.tokens > 1) {
      tpot.push_back((result.last - result.first) * 1e3 / static_cast<double>(result.tokens - 1));
    }
  }
  const double input_rate = static_cast<double>(completed) * options.input_len / seconds;
  const double output_rate = static_cast<double>(output_tokens) / seconds;
  const EngineStats stats = (*engine)->stats();
  if (options.json) {
    const nlohmann::ordered_json json = {
        {"model", model_json(info)},
        {"num_prompts", options.num_prompts},
        {"input_len", options.input_len},
        {"output_len", options.output_len},
        {"max_concurrency", concurrency},
        {"completed", completed},
        {"seconds", seconds},
        {"requests_per_second", completed / seconds},
        {"input_tokens_per_second", input_rate},
        {"output_tokens_per_second", output_rate},
        {"ttft_ms", {{"median", median(ttft)}, {"p99", percentile(ttft, 0.99)}}},
        {"tpot_ms", {{"median", median(tpot)}, {"p99", percentile(tpot, 0.99)}}},
        {"preemptions", stats.preemptions}};
    std::printf("%s\n", json.dump(2).c_str());
  } else {
    print_model(info);
    std::printf(
        "%d prompts of %d tokens, %d tokens out, at most %d at once; %d completed in %.2f s\n",
        options.num_prompts, options.input_len, options.output_len, concurrency, completed,
        seconds);
    std::printf("Request throughput (req/s):          %10.2f\n", completed / seconds);
    std::printf("Input token throughput (tok/s):      %10.2f\n", input_rate);
    std::printf("Output token throughput (tok/s):     %10.2f\n", output_rate);
    std::printf("Time to first token (ms):            %10.2f median, %.2f p99\n", median(ttft),
                percentile(ttft, 0.99));
    std::printf("Time per output token (ms):          %10.2f median, %.2f p99\n", median(tpot),
                percentile(tpot, 0.99));
    std::printf("Preemptions:                         %10llu\n",
                static_cast<unsigned long long>(stats.preemptions));
  }
  return completed == options.num_prompts ? 0 : 1;
}

int bench_latency_command(const LatencyOptions& options) {
  EngineConfig config = options.engine;
  config.enable_prefix_caching = false;  // every repetition computes everything
  auto engine = Engine::create(config, terminal_progress());
  if (!engine.ok()) return fail(engine.status());
  const ModelInfo& info = (*engine)->model_info();
  LoadRun load(**engine);
  auto warm = load.run({bench_request(synthetic_prompt(1U << 20, 16, info.vocab_size), 4)}, 1);
  if (!warm.ok()) return fail(warm.status());

  std::vector<Rate> rates;
  for (const int32_t prompt_len : options.prompt_lens) {
    Rate rate{fmt::format("pp{}", prompt_len), {}};
    for (int32_t i = 0; i < options.repetitions; ++i) {
      auto result =
          load.run({bench_request(
                       synthetic_prompt(static_cast<uint64_t>(i), prompt_len, info.vocab_size), 1)},
                   1);
      if (!result.ok()) return fail(result.status());
      rate.samples.push_back(prompt_len / ((*result)[0].first - (*result)[0].submitted));
    }
    rates.push_back(std::move(rate));
  }
  for (const int32_t output_len : options.output_lens) {
    Rate rate{fmt::format("tg{}", output_len), {}};
    for (int32_t i = 0; i < options.repetitions; ++i) {
      // The first token belongs to the prompt; the rate is that of the `output_len` decode steps
      // after it.
      auto result =
          load.run({bench_request(synthetic_prompt(static_cast<uint64_t>(i), 1, info.vocab_size),
                                  output_len + 1)},
                   1);
      if (!result.ok()) return fail(result.status());
      const Finished& finished = (*result)[0];
      if (finished.tokens != output_len + 1) {
        return fail(invalid_argument("--output-len {} does not fit into the context of {} tokens",
                                     output_len, info.max_model_len));
      }
      rate.samples.push_back(output_len / (finished.last - finished.first));
    }
    rates.push_back(std::move(rate));
  }

  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  if (!options.json) {
    print_model(info);
    std::printf("| %-8s | %12s | %12s | %12s |\n", "test", "median tok/s", "min", "max");
    std::printf("| -------- | -----------: | -----------: | -----------: |\n");
  }
  for (const Rate& rate : rates) {
    const auto [low, high] = std::minmax_element(rate.samples.begin(), rate.samples.end());
    rows.push_back({{"test", rate.name},
                    {"median", median(rate.samples)},
                    {"min", *low},
                    {"max", *high},
                    {"samples", rate.samples}});
    if (!options.json) {
      std::printf("| %-8s | %12.1f | %12.1f | %12.1f |\n", rate.name.c_str(), median(rate.samples),
                  *low, *high);
    }
  }
  if (options.json) {
    std::printf(
        "%s\n",
        nlohmann::ordered_json{{"model", model_json(info)}, {"rows", rows}}.dump(2).c_str());
  }
  return 0;
}

int bench_probe_command(const ProbeOptions& options) {
  ThreadPool pool(options.threads > 0 ? options.threads : default_num_threads());
  const double bandwidth = cpu::read_bandwidth(pool);
  const double flops = cpu::fma_rate(pool);
  if (options.json) {
    const nlohmann::ordered_json json = {{"threads", pool.num_threads()},
                                         {"read_bytes_per_second", bandwidth},
                                         {"fma_flops_per_second", flops}};
    std::printf("%s\n", json.dump(2).c_str());
  } else {
    std::printf("threads %d | read bandwidth %.1f GB/s | f32 FMA %.1f GFLOP/s\n",
                pool.num_threads(), bandwidth * 1e-9, flops * 1e-9);
  }
  return 0;
}

}  // namespace tenon::cli
