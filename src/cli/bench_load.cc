#include "cli/bench_load.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>

#include "base/clock.h"

namespace tenon::cli {

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

Result<std::vector<Finished>> LoadRun::run(std::vector<GenerationRequest> requests,
                                           int32_t concurrency) {
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

void LoadRun::on_output(size_t index, const RequestOutput& output) {
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

void LoadRun::wait_until_idle(int32_t left) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return active_ <= left; });
}

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

StepProfile profile_between(const EngineStats& before, const EngineStats& after, double seconds) {
  StepProfile profile;
  profile.steps = after.steps - before.steps;
  profile.seconds = seconds;
  const auto difference = [&](double StepTimes::*member) {
    profile.times.*member = after.times.*member - before.times.*member;
  };
  for (double StepTimes::*member : {&StepTimes::schedule, &StepTimes::prepare, &StepTimes::launch,
                                    &StepTimes::commit, &StepTimes::device, &StepTimes::attention,
                                    &StepTimes::linear, &StepTimes::sampling, &StepTimes::other}) {
    difference(member);
  }
  return profile;
}

namespace {

// How much faster everything would be if attention, `share` of the time, took 1/1.3 of it.
double gain_of_faster_attention(double share) {
  return 1 / (1 - share + share / 1.3);
}

}  // namespace

nlohmann::ordered_json profile_json(const StepProfile& profile) {
  const StepTimes& times = profile.times;
  const double steps = static_cast<double>(std::max<uint64_t>(1, profile.steps));
  nlohmann::ordered_json json = {{"steps", profile.steps},
                                 {"seconds", profile.seconds},
                                 {"host_us_per_step",
                                  {{"schedule", times.schedule / steps * 1e6},
                                   {"prepare", times.prepare / steps * 1e6},
                                   {"launch", times.launch / steps * 1e6},
                                   {"commit", times.commit / steps * 1e6}}},
                                 {"device_seconds", times.device},
                                 {"device_idle_share", 1 - times.device / profile.seconds}};
  const double sections = times.attention + times.linear + times.sampling + times.other;
  if (sections > 0) {
    json["sections_seconds"] = {{"attention", times.attention},
                                {"linear", times.linear},
                                {"sampling", times.sampling},
                                {"other", times.other}};
    json["attention_share"] = times.attention / profile.seconds;
    json["gain_if_attention_30_percent_faster"] =
        gain_of_faster_attention(times.attention / profile.seconds);
  }
  return json;
}

void print_profile(const StepProfile& profile, bool sections) {
  const StepTimes& times = profile.times;
  const double steps = static_cast<double>(std::max<uint64_t>(1, profile.steps));
  std::printf(
      "Host a step (us): schedule %.0f, prepare %.0f, launch %.0f, commit %.0f; %llu steps\n",
      times.schedule / steps * 1e6, times.prepare / steps * 1e6, times.launch / steps * 1e6,
      times.commit / steps * 1e6, static_cast<unsigned long long>(profile.steps));
  std::printf("Device idle:      %.1f %%\n", 100 * (1 - times.device / profile.seconds));
  if (!sections) return;
  const double idle =
      profile.seconds - times.attention - times.linear - times.sampling - times.other;
  std::printf("| %-9s | %9s | %9s | %6s |\n", "section", "seconds", "ms/step", "share");
  std::printf("| --------- | --------: | --------: | -----: |\n");
  const std::pair<const char*, double> rows[] = {{"attention", times.attention},
                                                 {"linear", times.linear},
                                                 {"sampling", times.sampling},
                                                 {"other", times.other},
                                                 {"host, idle", idle}};
  for (const auto& [name, seconds] : rows) {
    std::printf("| %-10s| %9.3f | %9.3f | %5.1f%% |\n", name, seconds, seconds / steps * 1e3,
                100 * seconds / profile.seconds);
  }
  std::printf("Attention 30 %% faster would make the whole %.3f times as fast.\n",
              gain_of_faster_attention(times.attention / profile.seconds));
}

double process_age_seconds() {
  // Field 22 of /proc/self/stat is the start in clock ticks since boot; the name in field 2 may
  // contain spaces, but ends with the last parenthesis.
  std::string text;
  std::getline(std::ifstream("/proc/self/stat"), text);
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  double ticks = 0;
  fields >> ticks;
  double uptime = 0;
  std::ifstream("/proc/uptime") >> uptime;
  return uptime - ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

}  // namespace tenon::cli
