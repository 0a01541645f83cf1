// The real model against Hugging Face transformers in float32 (model_smollm2.json, made by
// model_smollm2.py).
#include <gtest/gtest.h>

#include <cmath>

#include "base/thread_pool.h"
#include "tenon/engine.h"
#include "tests/golden/engine_fixture.h"
#include "tests/golden/smollm2_golden.h"
#include "tests/unit/models/model_runner.h"

namespace tenon {
namespace {

using testing::Answer;
using testing::Golden;
using testing::GoldenPrompt;
using testing::read_golden;
using testing::run_all;
using testing::test_model_path;

std::unique_ptr<Engine> make_engine(ModelDType dtype) {
  EngineConfig config;
  config.model = test_model_path();
  config.dtype = dtype;
  config.max_model_len = 3072;
  config.num_kv_blocks = 400;
  config.max_num_seqs = 32;
  return testing::make_engine(config);
}

GenerationRequest greedy_request(const GoldenPrompt& prompt) {
  GenerationRequest request;
  request.prompt = prompt.ids;
  request.sampling.temperature = 0.0F;
  request.sampling.max_tokens = static_cast<int32_t>(prompt.greedy.size());
  request.sampling.ignore_eos = true;
  return request;
}

GenerationRequest scoring_request(const std::vector<int32_t>& ids, int32_t alternatives) {
  GenerationRequest request;
  request.prompt = ids;
  request.sampling.temperature = 0.0F;
  request.sampling.max_tokens = 0;
  request.sampling.prompt_logprobs = alternatives;
  return request;
}

double mean_nll(Engine& engine, const std::vector<int32_t>& ids) {
  const std::vector<Answer> answers = run_all(engine, {scoring_request(ids, 0)});
  const std::vector<TokenLogprobs>& logprobs = answers[0].prompt_logprobs;
  EXPECT_EQ(logprobs.size(), ids.size());
  double sum = 0.0;
  for (size_t i = 1; i < logprobs.size(); ++i) {
    EXPECT_EQ(logprobs[i].token, ids[i]);
    sum -= static_cast<double>(logprobs[i].logprob);
  }
  return sum / static_cast<double>(ids.size() - 1);
}

TEST(SmolLm2, GoldenFileCoversWhatItShould) {
  const Golden golden = read_golden();
  ASSERT_EQ(golden.prompts.size(), 24U);
  EXPECT_GE(golden.text_ids.size(), 2000U);
  for (const GoldenPrompt& prompt : golden.prompts)
    EXPECT_EQ(prompt.greedy.size(), 64U) << prompt.name;
}

TEST(SmolLm2, ExactModeEqualsTransformersTokenForToken) {
  const Golden golden = read_golden();
  const auto engine = make_engine(ModelDType::kFloat32);
  ASSERT_NE(engine, nullptr);
  std::vector<GenerationRequest> requests;
  for (const GoldenPrompt& prompt : golden.prompts) requests.push_back(greedy_request(prompt));
  const std::vector<Answer> answers = run_all(*engine, requests);
  for (size_t i = 0; i < answers.size(); ++i) {
    const GoldenPrompt& prompt = golden.prompts[i];
    EXPECT_EQ(answers[i].finish_reason, FinishReason::kLength)
        << prompt.name << ": " << answers[i].error.message();
    ASSERT_EQ(answers[i].tokens.size(), prompt.greedy.size()) << prompt.name;
    for (size_t step = 0; step < prompt.greedy.size(); ++step) {
      ASSERT_EQ(answers[i].tokens[step], prompt.greedy[step])
          << prompt.name << ": first difference at token " << step << "; the reference chose it by "
          << prompt.gaps[step];
    }
  }
}

TEST(SmolLm2, ExactModePerplexity) {
  const Golden golden = read_golden();
  const auto engine = make_engine(ModelDType::kFloat32);
  ASSERT_NE(engine, nullptr);
  EXPECT_NEAR(mean_nll(*engine, golden.text_ids), golden.text_mean_nll, 1e-4);
}

// The logits themselves, which the engine does not hand out: through model, operators and
// attention.
TEST(SmolLm2, ExactModeFirstStepLogits) {
  const Golden golden = read_golden();
  ThreadPool pool(default_num_threads());
  const auto ops = make_cpu_ops(&pool, "auto");
  ASSERT_TRUE(ops.ok()) << ops.status().message();
  ModelLoadOptions options;
  options.path = test_model_path();
  options.exact = true;
  options.max_position = 2048;
  tiny::ModelRunner runner(options, ops->get(), "auto", &pool);
  ASSERT_TRUE(runner.status.ok()) << runner.status.message() << "; `make test` fetches the model";
  float worst = 0.0F;
  for (const GoldenPrompt& prompt : golden.prompts) {
    const auto logits = runner.logits(prompt.ids, 2048, tiny::ModelRunner::Rows::kLast);
    ASSERT_EQ(logits.size(), 1U);
    const auto compare = [&](int32_t id, float expected) {
      const float difference = std::abs(logits[0][static_cast<size_t>(id)] - expected);
      EXPECT_LE(difference, 2e-3F) << prompt.name << ": id " << id;
      worst = std::max(worst, difference);
    };
    for (size_t i = 0; i < prompt.top_ids.size(); ++i)
      compare(prompt.top_ids[i], prompt.top_logits[i]);
    for (size_t i = 0; i < prompt.fixed_logits.size(); ++i) {
      compare(golden.fixed_step * static_cast<int32_t>(i), prompt.fixed_logits[i]);
    }
  }
  RecordProperty("worst_difference", std::to_string(worst));
  std::printf("largest logit difference %g\n", static_cast<double>(worst));
}

// Teacher-forced: at every step of the golden answers, the most probable next token.
TEST(SmolLm2, FastModeAgreesAndKeepsPerplexity) {
  const Golden golden = read_golden();
  const auto engine = make_engine(ModelDType::kAuto);
  ASSERT_NE(engine, nullptr);
  std::vector<GenerationRequest> requests;
  for (const GoldenPrompt& prompt : golden.prompts) {
    std::vector<int32_t> ids = prompt.ids;
    ids.insert(ids.end(), prompt.greedy.begin(), prompt.greedy.end());
    requests.push_back(scoring_request(ids, 1));
  }
  const std::vector<Answer> answers = run_all(*engine, requests);
  int agreed = 0;
  int total = 0;
  for (size_t i = 0; i < answers.size(); ++i) {
    const GoldenPrompt& prompt = golden.prompts[i];
    ASSERT_EQ(answers[i].prompt_logprobs.size(), prompt.ids.size() + prompt.greedy.size())
        << prompt.name << ": " << answers[i].error.message();
    for (size_t step = 0; step < prompt.greedy.size(); ++step, ++total) {
      const TokenLogprobs& logprobs = answers[i].prompt_logprobs[prompt.ids.size() + step];
      ASSERT_FALSE(logprobs.top.empty()) << prompt.name;
      agreed += logprobs.top[0].first == prompt.greedy[step] ? 1 : 0;
    }
  }
  const double ratio = std::exp(mean_nll(*engine, golden.text_ids) - golden.text_mean_nll);
  std::printf("agreement %d of %d, perplexity ratio %.5f\n", agreed, total, ratio);
  EXPECT_EQ(total, 24 * 64);
  // 16-bit activations reach all of them; what is asked of the fast mode is 97 % and 1 %.
  EXPECT_GE(agreed, 0.99 * total);
  EXPECT_NEAR(ratio, 1.0, 0.002);
}

}  // namespace
}  // namespace tenon
