// tenon bench throughput: many requests at once, through the public engine API, in token ids.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/clock.h"
#include "cli/bench_load.h"
#include "cli/commands.h"
#include "cli/session.h"

namespace tenon::cli {

int bench_throughput_command(const ThroughputOptions& options) {
  EngineConfig config = options.engine;
  config.profile = options.profile;
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
  const EngineStats before = (*engine)->stats();
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
  const StepProfile profile = profile_between(before, stats, seconds);
  if (options.json) {
    nlohmann::ordered_json json = {
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
        {"preemptions", stats.preemptions},
        {"graph_steps", stats.graph_steps - before.graph_steps},
        {"profile", profile_json(profile)}};
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
    print_profile(profile, options.profile);
  }
  return completed == options.num_prompts ? 0 : 1;
}

}  // namespace tenon::cli
