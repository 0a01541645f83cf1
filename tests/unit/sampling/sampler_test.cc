#include "sampling/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "sampling/logprobs.h"

namespace tenon {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

int32_t sample_once(const SamplingParams& params,
                    const std::vector<float>& logits,
                    std::vector<int32_t> accepted = {},
                    std::vector<int32_t> prompt = {1},
                    uint64_t fallback_seed = 0) {
  RequestSampler sampler(params, prompt, std::vector<int32_t>{0}, fallback_seed);
  for (const int32_t token : accepted) sampler.accept(token);
  SamplerScratch scratch;
  auto token = sampler.sample(logits, scratch);
  return token.ok() ? *token : -1;
}

// Frequencies over many positions of one seeded request.
std::map<int32_t, double> distribution(const SamplingParams& params,
                                       const std::vector<float>& logits,
                                       int draws = 20000) {
  RequestSampler sampler(params, {}, {}, 7);
  SamplerScratch scratch;
  std::map<int32_t, double> counts;
  for (int i = 0; i < draws; ++i) {
    const int32_t token = *sampler.sample(logits, scratch);
    counts[token] += 1.0 / draws;
    sampler.accept(token);
  }
  return counts;
}

TEST(Argmax, LowestIndexAmongEqualsAndNaNIsNothing) {
  std::vector<float> values(100, 1.0F);
  EXPECT_EQ(argmax(values), 0);
  values[70] = 2.0F;
  values[99] = 2.0F;
  EXPECT_EQ(argmax(values), 70);
  values[3] = std::nanf("");
  EXPECT_EQ(argmax(values), 70);
  EXPECT_EQ(argmax(std::vector<float>{-kInf, -kInf}), -1);
  EXPECT_EQ(argmax(std::vector<float>{std::nanf("")}), -1);
  EXPECT_EQ(argmax(std::vector<float>{-3.0F, -2.0F}), 1);
}

TEST(Sampler, TemperatureZeroIsGreedyWhateverElseIsSet) {
  const std::vector<float> logits = {0.5F, 3.0F, 3.0F, 1.0F};
  for (const float temperature : {0.0F, 1e-9F, 1e-45F}) {
    SamplingParams params;
    params.temperature = temperature;
    params.top_k = 40;
    params.top_p = 0.0001F;
    params.min_p = 1.0F;
    params.seed = 3;
    EXPECT_EQ(sample_once(params, logits), 1);
  }
}

TEST(Sampler, SoftmaxFrequencies) {
  SamplingParams params;
  params.seed = 1;
  const std::vector<float> logits = {std::log(0.5F), std::log(0.3F), std::log(0.2F)};
  auto counts = distribution(params, logits);
  EXPECT_NEAR(counts[0], 0.5, 0.015);
  EXPECT_NEAR(counts[1], 0.3, 0.015);
  EXPECT_NEAR(counts[2], 0.2, 0.015);
  params.temperature = 0.5F;  // squares the ratios: 25 : 9 : 4
  counts = distribution(params, logits);
  EXPECT_NEAR(counts[0], 25.0 / 38, 0.015);
  EXPECT_NEAR(counts[2], 4.0 / 38, 0.015);
}

TEST(Sampler, TopKTopPMinP) {
  std::vector<float> logits;
  for (const float p : {0.05F, 0.4F, 0.3F, 0.2F, 0.05F}) logits.push_back(std::log(p));
  SamplingParams params;
  params.seed = 5;
  const auto support = [&] {
    std::set<int32_t> ids;
    for (const auto& [id, share] : distribution(params, logits, 4000)) ids.insert(id);
    return ids;
  };
  params.top_k = 2;
  EXPECT_EQ(support(), (std::set<int32_t>{1, 2}));
  params.top_k = -1;
  EXPECT_EQ(support().size(), 5U);
  params.top_k = 1000;
  EXPECT_EQ(support().size(), 5U);
  params.top_k = 0;
  params.top_p = 0.69F;
  EXPECT_EQ(support(), (std::set<int32_t>{1, 2}));
  params.top_p = 0.71F;
  EXPECT_EQ(support(), (std::set<int32_t>{1, 2, 3}));
  params.top_p = 0.0F;
  EXPECT_EQ(support(), (std::set<int32_t>{1}));
  params.top_p = 1.0F;
  params.min_p = 0.49F;
  EXPECT_EQ(support(), (std::set<int32_t>{1, 2, 3}));
  params.min_p = 1.0F;
  EXPECT_EQ(support(), (std::set<int32_t>{1}));
  params.min_p = 0.0F;
  params.top_k = 3;  // the tie at 0.05 is not reached; top_p then refers to what top_k left (0.9)
  params.top_p = 0.5F;
  EXPECT_EQ(support(), (std::set<int32_t>{1, 2}));
}

// min_p comes last: it must not change the mass that top_p refers to.
TEST(Sampler, TopPRefersToWhatTopKLeavesWhateverMinPIs) {
  std::vector<float> logits;
  for (const float p : {0.5F, 0.15F, 0.12F}) logits.push_back(std::log(p));
  for (int i = 0; i < 10; ++i) logits.push_back(std::log(0.023F));
  SamplingParams params;
  params.seed = 5;
  params.top_k = 12;
  params.top_p = 0.8F;
  params.min_p = 0.2F;
  std::set<int32_t> ids;
  for (const auto& [id, share] : distribution(params, logits, 4000)) ids.insert(id);
  EXPECT_EQ(ids, (std::set<int32_t>{0, 1, 2}));
}

TEST(Sampler, FlatDistributionReachesTopPBeyondTheShortList) {
  // Far below the best one there are many tokens that together carry half of the mass.
  std::vector<float> logits(60000, -11.0F);
  logits[17] = 0.0F;
  SamplingParams params;
  params.seed = 2;
  params.temperature = 0.5F;  // scaled distance 22 is past the first cut
  params.top_p = 0.99999999F;
  EXPECT_EQ(distribution(params, logits, 300).count(17), 1U);
}

TEST(Sampler, PenaltiesAndBias) {
  SamplingParams params;
  params.temperature = 0.0F;
  const std::vector<float> logits = {-5.0F, 2.0F, 1.9F, -1.0F};
  params.repetition_penalty = 2.0F;
  EXPECT_EQ(sample_once(params, logits, {}, {1}), 2);   // token 1 halved by the prompt
  EXPECT_EQ(sample_once(params, logits, {2}, {1}), 1);  // both halved
  params.repetition_penalty = 1.0F;
  params.presence_penalty = 0.2F;
  EXPECT_EQ(sample_once(params, logits, {}, {1}), 1);      // prompt does not count
  EXPECT_EQ(sample_once(params, logits, {1, 1}, {1}), 2);  // once, however often
  params.presence_penalty = 0.0F;
  params.frequency_penalty = 0.06F;
  EXPECT_EQ(sample_once(params, logits, {1}, {}), 1);
  EXPECT_EQ(sample_once(params, logits, {1, 1}, {}), 2);
  params.frequency_penalty = 0.0F;
  params.logit_bias = {{1, -100.0F}};
  EXPECT_EQ(sample_once(params, logits), 2);
  params.logit_bias = {{3, 100.0F}};
  EXPECT_EQ(sample_once(params, logits), 3);
  params.logit_bias = {{0, -100.0F}, {1, -100.0F}, {2, -100.0F}, {3, -100.0F}};
  EXPECT_EQ(sample_once(params, logits), -1);
}

TEST(Sampler, MinTokensMasksEndTokens) {
  SamplingParams params;
  params.temperature = 0.0F;
  params.max_tokens = 10;
  params.min_tokens = 2;
  params.stop_token_ids = {3};
  const std::vector<float> logits = {9.0F, 1.0F, 2.0F, 8.0F};  // 0 is EOS
  EXPECT_EQ(sample_once(params, logits), 2);
  EXPECT_EQ(sample_once(params, logits, {2}), 2);
  EXPECT_EQ(sample_once(params, logits, {2, 2}), 0);
  params.ignore_eos = true;
  EXPECT_EQ(sample_once(params, logits), 0);
}

TEST(Sampler, SeedAndPositionDecideTheDraw) {
  SamplingParams params;
  std::vector<float> logits(1000, 0.0F);
  params.seed = 42;
  const int32_t first = sample_once(params, logits, {}, {1}, 1);
  EXPECT_EQ(sample_once(params, logits, {}, {1}, 2), first);  // the fallback seed does not matter
  EXPECT_NE(sample_once(params, logits, {first}, {1}), first);
  params.seed = 43;
  EXPECT_NE(sample_once(params, logits), first);
  params.seed.reset();
  EXPECT_NE(sample_once(params, logits, {}, {1}, 1), sample_once(params, logits, {}, {1}, 2));
}

TEST(Sampler, NaNLogitsAreAnErrorNotAToken) {
  SamplingParams params;
  EXPECT_EQ(sample_once(params, {std::nanf(""), std::nanf("")}), -1);
}

TEST(Logprobs, SortedConsistentAndNeverPositive) {
  const std::vector<float> logits = {1.0F, 4.0F, 4.0F, 2.0F};
  float sum = 0;
  for (const float logit : logits) sum += std::exp(logit);
  const TokenLogprobs result = make_logprobs(logits, std::log(sum), 3, 3);
  EXPECT_EQ(result.token, 3);
  ASSERT_EQ(result.top.size(), 3U);
  EXPECT_EQ(result.top[0].first, 1);
  EXPECT_EQ(result.top[1].first, 2);
  EXPECT_EQ(result.top[2].first, 3);
  EXPECT_FLOAT_EQ(result.top[2].second, result.logprob);
  EXPECT_EQ(make_logprobs(logits, std::log(sum), 3, 100).top.size(), 4U);
  EXPECT_TRUE(make_logprobs(logits, std::log(sum), 3, 0).top.empty());
  EXPECT_LE(make_logprobs({logits.data(), 1}, 0.9999F, 0, 0).logprob, 0.0F);
}

TEST(SamplingParams, ValidationNamesTheField) {
  const auto param_of = [](auto change) {
    SamplingParams params;
    change(params);
    return params.validate(10).param();
  };
  EXPECT_EQ(param_of([](auto&) {}), "");
  EXPECT_EQ(param_of([](auto& p) { p.temperature = 3; }), "temperature");
  EXPECT_EQ(param_of([](auto& p) { p.temperature = std::nanf(""); }), "temperature");
  EXPECT_EQ(param_of([](auto& p) { p.top_p = 1.5F; }), "top_p");
  EXPECT_EQ(param_of([](auto& p) { p.min_p = -0.1F; }), "min_p");
  EXPECT_EQ(param_of([](auto& p) { p.top_k = -2; }), "top_k");
  EXPECT_EQ(param_of([](auto& p) { p.repetition_penalty = 0; }), "repetition_penalty");
  EXPECT_EQ(param_of([](auto& p) { p.presence_penalty = 2.5F; }), "presence_penalty");
  EXPECT_EQ(param_of([](auto& p) { p.frequency_penalty = -2.5F; }), "frequency_penalty");
  EXPECT_EQ(param_of([](auto& p) { p.logit_bias = {{10, 1.0F}}; }), "logit_bias");
  EXPECT_EQ(param_of([](auto& p) { p.logit_bias = {{5, 101.0F}}; }), "logit_bias");
  EXPECT_EQ(param_of([](auto& p) { p.stop_token_ids = {-1}; }), "stop_token_ids");
  EXPECT_EQ(param_of([](auto& p) { p.max_tokens = -1; }), "max_tokens");
  EXPECT_EQ(param_of([](auto& p) { p.min_tokens = 17; }), "min_tokens");
  EXPECT_EQ(param_of([](auto& p) { p.logprobs = 21; }), "logprobs");
}

}  // namespace
}  // namespace tenon
