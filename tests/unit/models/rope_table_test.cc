#include "models/rope_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

namespace tenon {
namespace {

ModelConfig config_with(int32_t rotary_dim, float theta) {
  ModelConfig config;
  config.head_dim = config.rotary_dim = rotary_dim;
  config.rope_theta = theta;
  return config;
}

// At position 1 the angle is the frequency itself.
double frequency(const RopeTable& table, size_t index) {
  const size_t at = static_cast<size_t>(table.rotary_dim / 2) + index;
  return std::atan2(static_cast<double>(table.sin[at]), static_cast<double>(table.cos[at]));
}

TEST(RopeTable, Default) {
  const RopeTable table = make_rope_table(config_with(8, 10000.0F), 3);
  ASSERT_EQ(table.cos.size(), 12U);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(table.cos[i], 1.0F);
    EXPECT_EQ(table.sin[i], 0.0F);
    const double angle = 2.0 * std::pow(10000.0, -static_cast<double>(i) / 4.0);
    EXPECT_NEAR(table.cos[8 + i], std::cos(angle), 1e-6);
    EXPECT_NEAR(table.sin[8 + i], std::sin(angle), 1e-6);
  }
}

// Reference values: transformers 5.24, ROPE_INIT_FUNCTIONS["linear"], factor 4.
TEST(RopeTable, Linear) {
  ModelConfig config = config_with(64, 10000.0F);
  config.rope_scaling.kind = RopeScaling::Kind::kLinear;
  config.rope_scaling.factor = 4.0F;
  const RopeTable table = make_rope_table(config, 2);
  EXPECT_NEAR(frequency(table, 0), 0.25, 1e-7);
  EXPECT_NEAR(frequency(table, 1), 0.18747355043888092, 1e-7);
  EXPECT_NEAR(frequency(table, 7), 0.0333380363881588, 1e-8);
  EXPECT_NEAR(frequency(table, 31), 3.333803761051968e-05, 1e-11);
}

// Reference values: transformers 5.24, ROPE_INIT_FUNCTIONS["llama3"], Llama 3.1's parameters, head
// size 64. The indices cover frequencies that are kept (0..14), mixed (15, 16) and stretched
// (17..31).
TEST(RopeTable, Llama3) {
  ModelConfig config = config_with(64, 500000.0F);
  config.rope_scaling.kind = RopeScaling::Kind::kLlama3;
  config.rope_scaling.factor = 8.0F;
  config.rope_scaling.low_freq_factor = 1.0F;
  config.rope_scaling.high_freq_factor = 4.0F;
  config.rope_scaling.original_max_position = 8192;
  const RopeTable table = make_rope_table(config, 2);
  const std::vector<std::pair<size_t, double>> expected = {{0, 1.0},
                                                           {5, 0.12868738174438477},
                                                           {10, 0.016560440883040428},
                                                           {14, 0.0032114461064338684},
                                                           {15, 0.0013718936825171113},
                                                           {16, 0.0005248460220173001},
                                                           {17, 0.0001785077911335975},
                                                           {18, 7.784655463183299e-05},
                                                           {19, 5.165906986803748e-05},
                                                           {20, 3.428102354519069e-05},
                                                           {25, 4.411534519022098e-06},
                                                           {31, 3.76732259610435e-07}};
  for (const auto& [index, value] : expected) {
    EXPECT_NEAR(frequency(table, index) / value, 1.0, 3e-6) << index;
  }
}

TEST(RopeTable, FrequencyFactorsDivide) {
  ModelConfig config = config_with(8, 10000.0F);
  config.rope_scaling.kind = RopeScaling::Kind::kLlama3;
  config.rope_scaling.freq_factors = {1.0F, 2.0F, 4.0F, 8.0F};
  const RopeTable table = make_rope_table(config, 2);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(frequency(table, i),
                std::pow(10000.0, -static_cast<double>(i) / 4.0) / std::exp2(i), 1e-8);
  }
}

}  // namespace
}  // namespace tenon
