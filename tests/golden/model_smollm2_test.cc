// SmolLM2-135M against Hugging Face transformers in float32 on the same dequantised weights
// (model_smollm2.json, made by model_smollm2.py).
#include <cmath>
#include <cstdio>

#include "engine/setup.h"
#include "tests/golden/engine_fixture.h"

namespace tenon {
namespace {

using testing::Answer;
using testing::greedy_request;
using testing::load_golden;
using testing::make_engine;
using testing::run_all;
using testing::test_model_path;

struct GoldenPrompt {
  std::string name;
  std::vector<int32_t> ids, greedy;
  nlohmann::json data;
};

std::vector<GoldenPrompt> golden_prompts(const nlohmann::json& golden) {
  std::vector<GoldenPrompt> prompts;
  const auto text_ids = golden["text_ids"].get<std::vector<int32_t>>();
  for (const auto& entry : golden["prompts"]) {
    GoldenPrompt prompt;
    prompt.name = entry["name"];
    prompt.ids = entry["ids"].get<std::vector<int32_t>>();
    if (prompt.name == "raw-long") prompt.ids.assign(text_ids.begin(), text_ids.begin() + 1500);
    prompt.greedy = entry["greedy"].get<std::vector<int32_t>>();
    prompt.data = entry;
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

EngineConfig config_for(ModelDType dtype) {
  EngineConfig config;
  config.model = test_model_path();
  config.dtype = dtype;
  config.max_model_len = 2560;
  return config;
}

TEST(SmolLm2Exact, GreedyTokensEqualTheReferenceOnEveryPrompt) {
  const auto golden = load_golden("model_smollm2.json");
  const auto prompts = golden_prompts(golden);
  ASSERT_GE(prompts.size(), 24U);
  auto engine = make_engine(config_for(ModelDType::kFloat32));
  ASSERT_NE(engine, nullptr);
  std::vector<GenerationRequest> requests;
  for (const auto& prompt : prompts) requests.push_back(greedy_request(prompt.ids, 64));
  const auto answers = run_all(*engine, std::move(requests));
  for (size_t i = 0; i < prompts.size(); ++i) {
    ASSERT_EQ(prompts[i].greedy.size(), 64U);
    ASSERT_TRUE(answers[i].error.ok()) << answers[i].error.message();
    size_t same = 0;
    while (same < 64 && same < answers[i].tokens.size() && answers[i].tokens[same] == prompts[i].greedy[same]) ++same;
    EXPECT_EQ(answers[i].tokens, prompts[i].greedy)
        << prompts[i].name << ": first difference at token " << same << "; smallest lead in the reference "
        << prompts[i].data["smallest_gap"];
  }
}

TEST(SmolLm2Exact, FirstStepLogitsAreWithinTwoThousandths) {
  const auto golden = load_golden("model_smollm2.json");
  EngineConfig config = config_for(ModelDType::kFloat32);
  config.max_num_batched_tokens = 2048;
  auto parts = build_engine(config, {});
  ASSERT_TRUE(parts.ok()) << parts.status().message();
  const int32_t block_size = config.block_size;
  double worst = 0;
  for (const auto& prompt : golden_prompts(golden)) {
    const auto length = static_cast<int32_t>(prompt.ids.size());
    std::vector<int32_t> positions, pages;
    std::vector<int64_t> slots;
    for (int32_t i = 0; i < length; ++i) {
      positions.push_back(i);
      slots.push_back(block_size + i);  // block 0 is the null block
    }
    for (int32_t i = 0; i < (length + block_size - 1) / block_size; ++i) pages.push_back(i + 1);
    const std::vector<int32_t> query_start_loc = {0, length}, seq_lens = {length},
                               page_indptr = {0, static_cast<int32_t>(pages.size())};
    BatchView batch;
    batch.query_start_loc = query_start_loc;
    batch.seq_lens = seq_lens;
    batch.page_indptr = page_indptr;
    batch.page_indices = pages;
    batch.slot_mapping = slots;
    batch.num_prefill_rows = 1;
    batch.num_prefill_tokens = batch.max_query_len = batch.max_seq_len = length;
    auto metadata = parts->attention->build_metadata(batch);
    ASSERT_TRUE(metadata.ok()) << metadata.status().message();
    ModelInput input;
    input.token_ids = prompt.ids;
    input.positions = positions;
    input.slot_mapping = slots;
    input.attention = *metadata;
    parts->model->forward(input);
    std::vector<float> logits(static_cast<size_t>(parts->info.vocab_size));
    parts->model->logits(std::vector<int32_t>{length - 1},
                         TensorView::dense(logits.data(), DType::kF32, {1, parts->info.vocab_size}));
    const auto compare = [&](size_t id, float expected) {
      const double difference = std::abs(logits[id] - expected);
      worst = std::max(worst, difference);
      EXPECT_LT(difference, 2e-3) << prompt.name << " token " << id;
    };
    for (size_t i = 0; i < prompt.data["top_ids"].size(); ++i) {
      compare(prompt.data["top_ids"][i], prompt.data["top_logits"][i]);
    }
    const size_t step = golden["fixed_step"];
    for (size_t i = 0; i < prompt.data["fixed_logits"].size(); ++i) {
      compare(i * step, prompt.data["fixed_logits"][i]);
    }
  }
  std::printf("largest difference of a first-step logit: %.2e\n", worst);
}

// Mean negative log-likelihood of the fixed text.
double text_nll(Engine& engine, const nlohmann::json& golden) {
  GenerationRequest request = greedy_request(golden["text_ids"].get<std::vector<int32_t>>(), 0);
  request.sampling.prompt_logprobs = 0;
  std::vector<GenerationRequest> requests;
  requests.push_back(std::move(request));
  const auto answers = run_all(engine, std::move(requests));
  EXPECT_TRUE(answers[0].error.ok()) << answers[0].error.message();
  double sum = 0;
  for (size_t i = 1; i < answers[0].prompt_logprobs.size(); ++i) sum -= answers[0].prompt_logprobs[i].logprob;
  return sum / static_cast<double>(answers[0].prompt_logprobs.size() - 1);
}

TEST(SmolLm2Exact, PerplexityEqualsTheReference) {
  const auto golden = load_golden("model_smollm2.json");
  auto engine = make_engine(config_for(ModelDType::kFloat32));
  ASSERT_NE(engine, nullptr);
  EXPECT_NEAR(text_nll(*engine, golden), golden["text_mean_nll"].get<double>(), 1e-4);
}

TEST(SmolLm2Fast, TeacherForcedAgreementAndPerplexity) {
  const auto golden = load_golden("model_smollm2.json");
  auto engine = make_engine(config_for(ModelDType::kAuto));
  ASSERT_NE(engine, nullptr);
  const auto prompts = golden_prompts(golden);
  std::vector<GenerationRequest> requests;
  for (const auto& prompt : prompts) {
    std::vector<int32_t> ids = prompt.ids;
    ids.insert(ids.end(), prompt.greedy.begin(), prompt.greedy.end());
    GenerationRequest request = greedy_request(std::move(ids), 0);
    request.sampling.prompt_logprobs = 1;
    requests.push_back(std::move(request));
  }
  const auto answers = run_all(*engine, std::move(requests));
  int agree = 0, total = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    ASSERT_TRUE(answers[i].error.ok()) << answers[i].error.message();
    for (size_t t = 0; t < prompts[i].greedy.size(); ++t) {
      const TokenLogprobs& entry = answers[i].prompt_logprobs.at(prompts[i].ids.size() + t);
      ASSERT_EQ(entry.top.size(), 1U);
      agree += entry.top[0].first == prompts[i].greedy[t] ? 1 : 0;
      ++total;
    }
  }
  const double perplexity = std::exp(text_nll(*engine, golden));
  const double reference = std::exp(golden["text_mean_nll"].get<double>());
  std::printf("teacher-forced agreement %.2f %% of %d, perplexity %.4f (reference %.4f, ratio %.4f)\n",
              100.0 * agree / total, total, perplexity, reference, perplexity / reference);
  EXPECT_GE(agree, 0.97 * total);
  EXPECT_NEAR(perplexity / reference, 1.0, 0.01);
}

}  // namespace
}  // namespace tenon
