// Shared by the tests that run the real model through the public engine API.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tenon/engine.h"
#include "tests/assets.h"

namespace tenon::testing {

inline nlohmann::json load_golden(const std::string& name) {
  std::ifstream file(source_path("tests/golden/" + name));
  EXPECT_TRUE(file.good()) << "cannot read " << name;
  return nlohmann::json::parse(file, nullptr, false);
}

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> logprobs;
  std::vector<TokenLogprobs> prompt_logprobs;
  FinishReason finish_reason = FinishReason::kNone;
  int32_t cached_tokens = 0;
  Status error;
};

// Submits all requests at once and waits for every answer.
inline std::vector<Answer> run_all(Engine& engine, std::vector<GenerationRequest> requests) {
  std::mutex mutex;
  std::condition_variable changed;
  size_t open = requests.size();
  std::vector<Answer> answers(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    auto id = engine.submit(std::move(requests[i]), [&, i](RequestOutput&& output) {
      std::lock_guard lock(mutex);
      Answer& answer = answers[i];
      answer.tokens.insert(answer.tokens.end(), output.tokens.begin(), output.tokens.end());
      for (auto& entry : output.logprobs) answer.logprobs.push_back(std::move(entry));
      if (!output.prompt_logprobs.empty())
        answer.prompt_logprobs = std::move(output.prompt_logprobs);
      answer.cached_tokens = output.num_cached_tokens;
      answer.error = output.error;
      answer.finish_reason = output.finish_reason;
      if (output.finish_reason != FinishReason::kNone) {
        --open;
        changed.notify_all();
      }
    });
    if (!id.ok()) {
      std::lock_guard lock(mutex);
      answers[i].error = id.status();
      answers[i].finish_reason = FinishReason::kError;
      --open;
    }
  }
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return open == 0; });
  return answers;
}

inline GenerationRequest greedy_request(std::vector<int32_t> prompt, int32_t max_tokens) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  return request;
}

inline std::unique_ptr<Engine> make_engine(const EngineConfig& config) {
  auto engine = Engine::create(config);
  EXPECT_TRUE(engine.ok()) << engine.status().message() << "; `make test` fetches the model";
  return engine.ok() ? std::move(*engine) : nullptr;
}

}  // namespace tenon::testing
