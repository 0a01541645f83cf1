// The real model on the GPU: against the reference in float32, and against itself under everything
// that must not change an answer. bf16 decides ties by rounding, so an answer may part from another
// at a near tie; such places are printed.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tests/golden/engine_fixture.h"
#include "tests/golden/smollm2_golden.h"
#include "tests/gpu.h"

namespace tenon {
namespace {

using testing::Answer;
using testing::Golden;
using testing::GoldenPrompt;
using testing::greedy_request;
using testing::make_engine;
using testing::read_golden;
using testing::run_all;
using testing::test_model_path;

// A logit is a dot product of a normalised hidden state that carries the rounding of 30 layers to 8
// bits: relative errors of 2^-9 a rounding add up like noise, to 2^-9 * sqrt(30 * 4) of logits that
// spread over about 6 around their mean. Two of them may move towards each other.
constexpr float kNearTie = 0.25F;
constexpr int32_t kOutput = 40;

EngineConfig gpu_config() {
  EngineConfig config;
  config.model = test_model_path();
  config.device = "cuda";
  config.max_model_len = 2048;
  config.kv_cache_memory = int64_t{1} << 30;
  return config;
}

class GpuEngine : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    TENON_GPU_OR_SKIP(device);
    (void)device;
    config_ = gpu_config();
    config_.attention_backend = GetParam();
  }
  EngineConfig config_;
};

TEST_P(GpuEngine, GreedyTokensOfTheReference) {
  const Golden golden = read_golden();
  const auto engine = make_engine(config_);
  ASSERT_NE(engine, nullptr);
  std::vector<GenerationRequest> requests;
  for (const GoldenPrompt& prompt : golden.prompts) {
    requests.push_back(greedy_request(prompt.ids, static_cast<int32_t>(prompt.greedy.size())));
  }
  const std::vector<Answer> answers = run_all(*engine, std::move(requests));
  size_t whole = 0;
  for (size_t i = 0; i < answers.size(); ++i) {
    const GoldenPrompt& prompt = golden.prompts[i];
    ASSERT_TRUE(answers[i].error.ok()) << answers[i].error.message();
    ASSERT_EQ(answers[i].tokens.size(), prompt.greedy.size());
    const auto [ours, theirs] =
        std::mismatch(answers[i].tokens.begin(), answers[i].tokens.end(), prompt.greedy.begin());
    const auto equal = static_cast<size_t>(ours - answers[i].tokens.begin());
    if (equal == prompt.greedy.size()) {
      ++whole;
      continue;
    }
    std::printf("  %s: parts at token %zu, where the reference chose by %.4f\n",
                prompt.name.c_str(), equal, static_cast<double>(prompt.gaps[equal]));
    if (equal < 60) {
      EXPECT_LT(prompt.gaps[equal], kNearTie) << prompt.name;
    }
  }
  std::printf("  %zu of %zu prompts equal in all tokens\n", whole, answers.size());
}

std::vector<GenerationRequest> requests() {
  static const Golden golden = read_golden();
  std::vector<GenerationRequest> result;
  for (int i = 0; i < 16; ++i) {
    const auto begin = golden.text_ids.begin() + (i % 4 == 3 ? 0 : i * 90);
    result.push_back(greedy_request({begin, begin + 12 + i * 13}, kOutput));
    result.back().sampling.logprobs = 2;
  }
  return result;
}

std::vector<Answer> one_by_one(Engine& engine) {
  std::vector<Answer> answers;
  for (auto& request : requests()) {
    std::vector<GenerationRequest> one;
    one.push_back(std::move(request));
    answers.push_back(run_all(engine, std::move(one))[0]);
  }
  return answers;
}

void expect_same(const char* what,
                 const std::vector<Answer>& expected,
                 const std::vector<Answer>& answers) {
  size_t parted = 0;
  for (size_t i = 0; i < answers.size(); ++i) {
    ASSERT_TRUE(answers[i].error.ok()) << what << ": " << answers[i].error.message();
    ASSERT_EQ(answers[i].tokens.size(), static_cast<size_t>(kOutput)) << what;
    const auto at = std::mismatch(answers[i].tokens.begin(), answers[i].tokens.end(),
                                  expected[i].tokens.begin());
    const auto equal = static_cast<size_t>(at.first - answers[i].tokens.begin());
    if (equal == static_cast<size_t>(kOutput)) continue;
    ++parted;
    const TokenLogprobs& step = expected[i].logprobs[equal];
    ASSERT_GE(step.top.size(), 2U);
    const float gap = step.top[0].second - step.top[1].second;
    std::printf("  %s, request %zu: parts at token %zu, a gap of %.4f\n", what, i, equal,
                static_cast<double>(gap));
    EXPECT_LT(gap, kNearTie) << what << ", request " << i;
    EXPECT_EQ(*at.first, step.top[1].first) << what << ": neither the first nor the second choice";
  }
  std::printf("  %s: %zu of %zu equal\n", what, answers.size() - parted, answers.size());
}

TEST_P(GpuEngine, SameAnswersWhateverHappensAround) {
  config_.enable_prefix_caching = false;
  const std::vector<Answer> expected = one_by_one(*make_engine(config_));
  const auto with = [&](const char* what, const EngineConfig& config) {
    const auto engine = make_engine(config);
    ASSERT_NE(engine, nullptr) << what;
    expect_same(what, expected, run_all(*engine, requests()));
    const EngineStats stats = engine->stats();
    EXPECT_EQ(stats.kv_blocks_used, 0) << what;
    EXPECT_EQ(stats.running + stats.waiting + stats.swapped, 0) << what;
    if (config.preemption_mode == PreemptionMode::kSwap) {
      EXPECT_GT(stats.preemptions_swap, 0U);
    }
    if (config.preemption_mode == PreemptionMode::kRecompute) {
      EXPECT_GT(stats.preemptions_recompute, 0U);
    }
    const bool graphs = !config.enforce_eager;
    EXPECT_EQ(stats.graph_steps > 0, graphs) << what;
  };
  with("a batch of sixteen", config_);
  EngineConfig config = config_;
  config.enforce_eager = true;
  with("without graphs", config);
  config = config_;
  config.async_scheduling = false;
  with("one step in flight", config);
  config = config_;
  config.max_num_batched_tokens = 23;
  config.max_num_seqs = 16;
  with("chunks of 23 tokens", config);
  for (const PreemptionMode mode : {PreemptionMode::kSwap, PreemptionMode::kRecompute}) {
    config = config_;
    config.max_model_len = 0;
    config.kv_cache_memory = 0;
    config.num_kv_blocks = 24;
    config.preemption_mode = mode;
    with(mode == PreemptionMode::kSwap ? "preempted by swap" : "preempted by recompute", config);
  }
  config = config_;
  config.enable_prefix_caching = true;
  const auto engine = make_engine(config);
  expect_same("cold prefix cache", expected, run_all(*engine, requests()));
  const std::vector<Answer> warm = run_all(*engine, requests());
  expect_same("prefix hits", expected, warm);
  for (size_t i = 0; i < warm.size(); ++i) {
    EXPECT_EQ(warm[i].cached_tokens, (12 + static_cast<int32_t>(i) * 13 - 1) / 16 * 16);
  }
  EXPECT_GT(engine->stats().prefix_cache_hits, 0U);
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         GpuEngine,
                         ::testing::Values("flash", "flashinfer"),
                         [](const auto& backend) { return std::string(backend.param); });

TEST(GpuEngineErrors, WhatTheGpuCannotDoIsRefusedAtStart) {
  TENON_GPU_OR_SKIP(device);
  (void)device;
  EngineConfig config = gpu_config();
  config.dtype = ModelDType::kFloat32;
  EXPECT_EQ(Engine::create(config).status().code(), StatusCode::kUnsupported);
  config = gpu_config();
  config.attention_backend = "cpu";
  EXPECT_NE(Engine::create(config).status().message().find("does not run on device cuda"),
            std::string::npos);
  config = gpu_config();
  config.kv_cache_memory = int64_t{1} << 40;
  const Status too_much = Engine::create(config).status();
  EXPECT_EQ(too_much.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(too_much.message().find("would fit"), std::string::npos) << too_much.message();
}

}  // namespace
}  // namespace tenon
