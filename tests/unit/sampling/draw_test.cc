#include "sampling/draw.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "sampling/sampler.h"

namespace tenon {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(Draw, WeightIsAPowerOfTwo) {
  const double unit = std::exp2(draw::kWeightBits);
  for (float ratio = -43.99F; ratio <= 0.0F; ratio += 0.00137F) {
    const double want = std::exp2(static_cast<double>(ratio)) * unit;
    EXPECT_NEAR(static_cast<double>(draw::weight(ratio)), want, 1.0 + 3e-7 * want) << ratio;
  }
  EXPECT_EQ(draw::weight(0.0F), uint64_t{1} << draw::kWeightBits);
  EXPECT_EQ(draw::weight(-0.0F), uint64_t{1} << draw::kWeightBits);
  EXPECT_EQ(draw::weight(-10.0F), uint64_t{1} << (draw::kWeightBits - 10));
  EXPECT_EQ(draw::weight(-44.0F), 1U);
  for (const float nothing : {-44.001F, -1e30F, -kInf, std::nanf("")}) {
    EXPECT_EQ(draw::weight(nothing), 0U);
  }
}

TEST(Draw, TopPWeightLeavesAtLeastOneAndAtMostAll) {
  EXPECT_EQ(draw::top_p_weight(1000, 0.0F), 1U);
  EXPECT_EQ(draw::top_p_weight(1000, 0.5F), 500U);
  EXPECT_EQ(draw::top_p_weight(1000, 1.0F), 1000U);
  EXPECT_EQ(draw::top_p_weight(1, 0.3F), 1U);
  const uint64_t large = (uint64_t{1} << 62) + 1;  // not a double
  EXPECT_EQ(draw::top_p_weight(large, 1.0F), large);
}

TEST(Draw, PointsAreUniformAndBelowTheTotal) {
  std::vector<int> counts(10, 0);
  for (uint64_t counter = 0; counter < 10000; ++counter) {
    const uint64_t point = draw::point(42, counter, 10);
    ASSERT_LT(point, 10U);
    ++counts[point];
    EXPECT_EQ(draw::point(42, counter, 1), 0U);
  }
  for (const int count : counts) EXPECT_NEAR(count, 1000, 130);  // over four deviations
}

// The token that the same uniform number gives in double precision, with the distance of the number
// from the nearest boundary between tokens.
struct Expected {
  int32_t token = -1;
  double margin = 1;
};
Expected invert_in_double(const std::vector<float>& logits,
                          const SamplingParams& params,
                          double uniform) {
  std::vector<std::pair<double, int32_t>> order;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isnan(logits[i])) order.emplace_back(-logits[i], static_cast<int32_t>(i));
  }
  std::sort(order.begin(), order.end());
  if (params.top_k > 0 && order.size() > static_cast<size_t>(params.top_k)) {
    order.resize(static_cast<size_t>(params.top_k));
  }
  const double best = order[0].first;
  const auto share = [&](const std::pair<double, int32_t>& item) {
    return std::exp((best - item.first) / params.temperature);
  };
  double total = 0;
  for (const auto& item : order) total += share(item);
  Expected result;
  if (params.top_p < 1.0F) {
    double kept = 0;
    size_t count = 0;
    while (count < order.size() && kept < total * params.top_p) {
      kept += share(order[count++]);
      result.margin = std::min(result.margin, std::abs(kept / total - params.top_p));
    }
    order.resize(std::max<size_t>(1, count));
  }
  std::erase_if(order, [&](const auto& item) { return share(item) < params.min_p; });
  std::sort(order.begin(), order.end(),
            [](const auto& a, const auto& b) { return a.second < b.second; });
  total = 0;
  for (const auto& item : order) total += share(item);
  double passed = 0;
  for (const auto& item : order) {
    passed += share(item);
    result.margin = std::min(result.margin, std::abs(passed / total - uniform));
    if (passed > uniform * total && result.token < 0) result.token = item.second;
  }
  return result;
}

TEST(Draw, SamplerInvertsTheCumulativeDistributionById) {
  std::mt19937_64 rng(11);
  std::normal_distribution<float> normal;
  const auto one_of = [&](std::initializer_list<float> values) {
    return values.begin()[rng() % values.size()];
  };
  int compared = 0;
  SamplerScratch scratch;
  for (int trial = 0; trial < 4000; ++trial) {
    std::vector<float> logits(1 + rng() % 400);
    const float scale = one_of({0.1F, 1.0F, 4.0F, 9.0F});
    for (float& logit : logits) logit = normal(rng) * scale;
    if (trial % 5 == 0) {
      for (float& logit : logits) logit = std::round(logit);
    }
    if (trial % 7 == 0) logits[rng() % logits.size()] = -kInf;
    SamplingParams params;
    params.temperature = one_of({0.3F, 1.0F, 1.7F});
    params.top_k = static_cast<int32_t>(one_of({0.0F, 0.0F, 1.0F, 7.0F, 100.0F}));
    params.top_p = one_of({1.0F, 1.0F, 0.3F, 0.9F, 0.99F});
    params.min_p = one_of({0.0F, 0.0F, 0.037F, 0.41F});
    params.seed = static_cast<int64_t>(rng() >> 1);
    RequestSampler sampler(params, {}, {}, 0);
    const auto token = sampler.sample(logits, scratch);
    ASSERT_TRUE(token.ok() || logits.size() == 1) << token.status().message();
    if (!token.ok()) continue;
    const double uniform = static_cast<double>(draw::point(static_cast<uint64_t>(*params.seed), 0,
                                                           uint64_t{1} << 53)) *
                           0x1.0p-53;
    const Expected expected = invert_in_double(logits, params, uniform);
    if (expected.margin < 2e-6) continue;
    ++compared;
    EXPECT_EQ(*token, expected.token) << "trial " << trial;
  }
  EXPECT_GT(compared, 3800);
}

TEST(Draw, BiasesOfOneTokenAddUpAndABanStays) {
  SamplingParams params;
  params.temperature = 0.0F;
  params.logit_bias = {{1, 3.0F}, {0, -100.0F}, {1, 2.5F}, {0, 100.0F}};
  RequestSampler sampler(params, {}, {}, 0);
  SamplerScratch scratch;
  EXPECT_EQ(*sampler.sample(std::vector<float>{50.0F, 0.0F, 5.0F}, scratch), 1);
  EXPECT_EQ(*sampler.sample(std::vector<float>{50.0F, 0.0F, 6.0F}, scratch), 2);
}

}  // namespace
}  // namespace tenon
