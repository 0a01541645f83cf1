// tenon bench latency: prefill and decode rates of a single request, or the steps of a steady
// batch.
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cli/bench_load.h"
#include "cli/commands.h"
#include "cli/session.h"

namespace tenon::cli {
namespace {

// One row of the latency table: a rate for every repetition, tok/s.
struct Rate {
  std::string name;
  std::vector<double> samples;
};

struct StartUp {
  double first_token = 0;  // seconds from the start of the process
  double load = 0;         // of those, for loading the model
};

nlohmann::ordered_json start_up_json(const StartUp& start_up) {
  return {{"first_token_seconds", start_up.first_token}, {"load_seconds", start_up.load}};
}

void print_start_up(const StartUp& start_up) {
  std::printf("First token %.2f s after the start of the process, %.2f s of them loading\n",
              start_up.first_token, start_up.load);
}

// A batch while all of its requests decode: from the first token of the last request to the last
// token of the first one.
struct SteadyDecode {
  double prefill_seconds = 0;        // from the submission to the last request's first token
  std::vector<double> step_seconds;  // between tokens of one request
  double tokens_per_second = 0;
  double context = 0;  // keys of a request, on average
  StepProfile profile;
};

class BatchRun {
 public:
  BatchRun(Engine& engine, int32_t batch_size, int32_t output_len)
      : engine_(engine), output_len_(output_len), times_(static_cast<size_t>(batch_size)) {}

  Result<SteadyDecode> run(int32_t input_len) {
    const double start = now_seconds();
    for (size_t i = 0; i < times_.size(); ++i) {
      auto id = engine_.submit(
          bench_request(synthetic_prompt(i, input_len, engine_.model_info().vocab_size),
                        output_len_),
          [this, i](RequestOutput&& output) { on_output(i, output); });
      if (!id.ok()) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return finished_ == i; });
        return id.status();
      }
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return started_ == times_.size() || finished_ > 0; });
    const EngineStats before = engine_.stats();
    const double begin = now_seconds();
    changed_.wait(lock, [&] { return finished_ > 0; });
    const EngineStats after = engine_.stats();
    const double end = now_seconds();
    changed_.wait(lock, [&] { return finished_ == times_.size(); });
    if (!error_.ok()) return error_;
    return evaluate(input_len, start, profile_between(before, after, end - begin));
  }

 private:
  void on_output(size_t index, const RequestOutput& output) {
    std::lock_guard lock(mutex_);
    if (!output.tokens.empty()) {
      if (times_[index].empty()) ++started_;
      times_[index].insert(times_[index].end(), output.tokens.size(), now_seconds());
    }
    if (output.finish_reason != FinishReason::kNone) {
      ++finished_;
      if (!output.error.ok()) error_ = output.error;
    }
    changed_.notify_all();
  }

  Result<SteadyDecode> evaluate(int32_t input_len, double start, const StepProfile& profile) {
    double begin = 0;
    double end = times_[0].back();
    for (const std::vector<double>& times : times_) {
      if (static_cast<int32_t>(times.size()) != output_len_) {
        return invalid_argument("--output-len {} does not fit into the context of {} tokens",
                                output_len_, engine_.model_info().max_model_len);
      }
      begin = std::max(begin, times.front());
      end = std::min(end, times.back());
    }
    SteadyDecode result;
    result.prefill_seconds = begin - start;
    result.profile = profile;
    double seconds = 0, keys = 0, tokens = 0;
    for (const std::vector<double>& times : times_) {
      for (size_t i = 1; i < times.size(); ++i) {
        if (times[i - 1] < begin || times[i] > end) continue;
        keys += input_len + static_cast<double>(i);
        ++tokens;
        if (&times != times_.data()) continue;
        result.step_seconds.push_back(times[i] - times[i - 1]);
        seconds += result.step_seconds.back();
      }
    }
    if (result.step_seconds.size() < 2) {
      return invalid_argument(
          "--output-len {} is too short: the first of {} requests ends before all of them decode",
          output_len_, times_.size());
    }
    result.context = keys / tokens;
    // Every step gives every request a token.
    result.tokens_per_second =
        static_cast<double>(times_.size() * result.step_seconds.size()) / seconds;
    return result;
  }

  Engine& engine_;
  const int32_t output_len_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<double>> times_;  // of every token, by request
  size_t started_ = 0, finished_ = 0;
  Status error_;
};

int measure_batches(const LatencyOptions& options, Engine& engine, const StartUp& start_up) {
  const int32_t output_len = options.output_lens.front();
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  if (!options.json) {
    print_model(engine.model_info());
    print_start_up(start_up);
    std::printf("| %6s | %7s | %12s | %8s | %12s | %14s |\n", "batch", "context", "ms/step (p50)",
                "p99", "tok/s out", "prefill tok/s");
    std::printf(
        "| -----: | ------: | ------------: | -------: | -----------: | -------------: |\n");
  }
  for (const int32_t batch_size : options.batch_sizes) {
    for (const int32_t input_len : options.input_lens) {
      auto decode = BatchRun(engine, batch_size, output_len).run(input_len);
      if (!decode.ok()) return fail(decode.status());
      const double p50 = median(decode->step_seconds) * 1e3;
      const double p99 = percentile(decode->step_seconds, 0.99) * 1e3;
      const double prefill = double{1} * batch_size * input_len / decode->prefill_seconds;
      rows.push_back({{"batch_size", batch_size},
                      {"input_len", input_len},
                      {"output_len", output_len},
                      {"context", decode->context},
                      {"ms_per_step", p50},
                      {"ms_per_step_p99", p99},
                      {"output_tokens_per_second", decode->tokens_per_second},
                      {"prefill_tokens_per_second", prefill},
                      {"profile", profile_json(decode->profile)}});
      if (options.json) continue;
      std::printf("| %6d | %7.0f | %13.3f | %8.3f | %12.1f | %14.1f |\n", batch_size,
                  decode->context, p50, p99, decode->tokens_per_second, prefill);
      print_profile(decode->profile, options.profile);
      std::fflush(stdout);
    }
  }
  if (options.json) {
    std::printf("%s\n", nlohmann::ordered_json{{"model", model_json(engine.model_info())},
                                               {"start_up", start_up_json(start_up)},
                                               {"rows", rows}}
                            .dump(2)
                            .c_str());
  }
  return 0;
}

}  // namespace

int bench_latency_command(const LatencyOptions& options) {
  EngineConfig config = options.engine;
  config.enable_prefix_caching = false;  // every repetition computes everything
  config.profile = options.profile;
  if (!options.batch_sizes.empty()) {
    const int32_t largest =
        *std::max_element(options.batch_sizes.begin(), options.batch_sizes.end());
    config.max_num_seqs = std::max(config.max_num_seqs, largest);
    config.max_queue = std::max(config.max_queue, largest);
  }
  auto engine = Engine::create(config, terminal_progress());
  if (!engine.ok()) return fail(engine.status());
  const ModelInfo& info = (*engine)->model_info();
  LoadRun load(**engine);
  auto warm = load.run({bench_request(synthetic_prompt(1U << 20, 16, info.vocab_size), 4)}, 1);
  if (!warm.ok()) return fail(warm.status());
  const StartUp start_up = {process_age_seconds() - (now_seconds() - (*warm)[0].first),
                            info.load_seconds};
  if (!options.batch_sizes.empty()) return measure_batches(options, **engine, start_up);

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
    print_start_up(start_up);
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
    std::printf("%s\n", nlohmann::ordered_json{{"model", model_json(info)},
                                               {"start_up", start_up_json(start_up)},
                                               {"rows", rows}}
                            .dump(2)
                            .c_str());
  }
  return 0;
}

}  // namespace tenon::cli
