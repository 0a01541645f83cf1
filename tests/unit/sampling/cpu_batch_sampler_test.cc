#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "sampling/batch_sampler.h"
#include "sampling/logprobs.h"

namespace tenon {
namespace {

constexpr int32_t kVocab = 61;
constexpr float kInf = std::numeric_limits<float>::infinity();

class CpuBatchSamplerTest : public ::testing::Test {
 protected:
  CpuBatchSamplerTest()
      : pool_(3),
        ops_(make_cpu_ops(&pool_, "portable").value()),
        sampler_(make_cpu_batch_sampler({16, 16, kVocab, 1}, ops_.get(), &pool_)) {
    std::mt19937 rng(4);
    std::normal_distribution<float> normal(0.0F, 3.0F);
    logits_.resize(16 * static_cast<size_t>(kVocab));
    for (float& value : logits_) value = normal(rng);
  }
  std::span<float> row(size_t r) {
    return std::span<float>(logits_).subspan(r * static_cast<size_t>(kVocab), kVocab);
  }
  TensorView view(int64_t first, int64_t count) {
    return TensorView::dense(logits_.data(), DType::kF32, {16, kVocab}).slice(first, count);
  }
  float log_sum_exp(size_t r) {
    double sum = 0;
    for (const float value : row(r)) sum += std::exp(static_cast<double>(value));
    return static_cast<float>(std::log(sum));
  }

  ThreadPool pool_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<BatchSampler> sampler_;
  std::vector<float> logits_;
};

TEST_F(CpuBatchSamplerTest, EachRowAsItsRequestAlone) {
  std::vector<RequestSampler> requests;
  for (int32_t i = 0; i < 16; ++i) {
    SamplingParams params;
    params.temperature = i % 3 == 0 ? 0.0F : 1.0F;
    params.top_p = i % 2 == 0 ? 0.8F : 1.0F;
    params.presence_penalty = 0.5F;
    if (i % 4 == 1) params.logprobs = 3;
    if (i == 6) {
      for (int32_t t = 0; t < kVocab; ++t) params.logit_bias.emplace_back(t, -100.0F);
    }
    requests.emplace_back(params, std::vector<int32_t>{1, 2}, std::vector<int32_t>{0},
                          static_cast<uint64_t>(i));
    requests.back().accept(i);
  }
  std::fill(row(9).begin(), row(9).end(), std::nanf(""));
  std::vector<SamplingRow> rows;
  for (int32_t i = 0; i < 16; ++i) rows.push_back({i, &requests[static_cast<size_t>(i)], 1});
  for (int step = 0; step < 2; ++step) {
    sampler_->begin();
    sampler_->sample(view(0, 5), std::span<const SamplingRow>(rows).first(5));
    sampler_->sample(view(5, 11), std::span<const SamplingRow>(rows).subspan(5));
    sampler_->end();
    const auto results = sampler_->collect();
    ASSERT_TRUE(results.ok());
    ASSERT_EQ(results->size(), 16U);
    SamplerScratch scratch;
    for (size_t i = 0; i < 16; ++i) {
      const SampledToken& got = (*results)[i];
      const auto want = requests[i].sample(row(i), scratch);
      EXPECT_EQ(got.token, want.ok() ? *want : -1) << i;
      EXPECT_EQ(got.error.code(), want.status().code()) << i;
      if (i % 4 != 1 || i == 9) {
        EXPECT_EQ(got.logprobs.token, -1);
        continue;
      }
      const TokenLogprobs logprobs = make_logprobs(row(i), log_sum_exp(i), got.token, 3);
      EXPECT_EQ(got.logprobs.token, got.token);
      EXPECT_NEAR(got.logprobs.logprob, logprobs.logprob, 1e-5);
      ASSERT_EQ(got.logprobs.top.size(), 3U);
      EXPECT_EQ(got.logprobs.top[2].first, logprobs.top[2].first);
    }
    EXPECT_EQ((*results)[6].error.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ((*results)[9].error.code(), StatusCode::kInternal);
  }
}

TEST_F(CpuBatchSamplerTest, ScoresGivenTokens) {
  std::vector<TokenLogprobs> results(4);
  const std::vector<int32_t> targets = {0, 60, 17, 5};
  row(2)[17] = -kInf;
  ASSERT_TRUE(sampler_->score(view(0, 4), targets, 2, results).ok());
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(results[i].token, targets[i]);
    ASSERT_EQ(results[i].top.size(), 2U);
    EXPECT_GE(results[i].top[0].second, results[i].top[1].second);
    if (i != 2) {
      EXPECT_NEAR(results[i].logprob, row(i)[static_cast<size_t>(targets[i])] - log_sum_exp(i),
                  1e-5);
    }
  }
  EXPECT_EQ(results[2].logprob, -kInf);
}

}  // namespace
}  // namespace tenon
