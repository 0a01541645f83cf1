// What the measurements that go through an engine share: made-up prompts, a run of many requests,
// and how results are summed up.
//
// Thread safety: one thread an object, but for the engine's callbacks.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "base/status.h"
#include "tenon/engine.h"

namespace tenon::cli {

// Ids of ordinary tokens, different for every (request, position), reproducible.
std::vector<int32_t> synthetic_prompt(uint64_t request, int32_t length, int32_t vocab_size);

// Greedy, exactly output_len tokens.
GenerationRequest bench_request(std::vector<int32_t> prompt, int32_t output_len);

struct Finished {
  double submitted = 0, first = 0, last = 0;
  int64_t tokens = 0;
  bool ok = false;
};

// Submits requests so that at most `concurrency` run at once and waits for all.
class LoadRun {
 public:
  explicit LoadRun(Engine& engine) : engine_(engine) {}
  Result<std::vector<Finished>> run(std::vector<GenerationRequest> requests, int32_t concurrency);

 private:
  void on_output(size_t index, const RequestOutput& output);
  void wait_until_idle(int32_t left);

  Engine& engine_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int32_t active_ = 0;
  std::vector<Finished> results_;
};

double median(std::vector<double> values);
double percentile(std::vector<double> values, double share);

nlohmann::ordered_json model_json(const ModelInfo& info);
void print_model(const ModelInfo& info);

// Where the steps between two snapshots spent their time; `seconds` is the time between them.
struct StepProfile {
  uint64_t steps = 0;
  double seconds = 0;
  StepTimes times;
};
StepProfile profile_between(const EngineStats& before, const EngineStats& after, double seconds);
nlohmann::ordered_json profile_json(const StepProfile& profile);
// The host's part and how busy the device was; with `sections` the device's part by section, and
// what faster attention would bring.
void print_profile(const StepProfile& profile, bool sections);

// Seconds since this process was started.
double process_age_seconds();

}  // namespace tenon::cli
