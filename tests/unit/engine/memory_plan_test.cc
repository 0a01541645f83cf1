#include "engine/memory_plan.h"
#include "base/host_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tenon {
namespace {

using testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;

MemoryFacts facts(int64_t available) {
  MemoryFacts result;
  result.bytes_per_block = kMiB;
  result.model_max_len = 1000;
  result.available_bytes = available;
  return result;
}

TEST(MemoryPlan, DefaultHoldsTheLongestRequest) {
  EngineConfig config;
  config.max_num_seqs = 1;
  const auto plan = plan_memory(config, facts(1000 * kMiB));
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->num_blocks, 64);  // 63 blocks of 16 tokens and the null block
  EXPECT_EQ(plan->max_model_len, 1000);
  EXPECT_FALSE(plan->context_reduced);
  EXPECT_EQ(plan->num_host_blocks, 256);
}

TEST(MemoryPlan, DefaultGrowsWithSequencesAndStaysWithinHalfOfMemory) {
  EngineConfig config;
  config.max_num_seqs = 10;
  EXPECT_EQ(plan_memory(config, facts(10000 * kMiB))->num_blocks, 631);
  EXPECT_EQ(plan_memory(config, facts(400 * kMiB))->num_blocks, 200);
}

TEST(MemoryPlan, ContextShrinksToThePoolUnlessItWasAskedFor) {
  EngineConfig config;
  config.num_kv_blocks = 11;
  const auto plan = plan_memory(config, facts(1000 * kMiB));
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->max_model_len, 160);
  EXPECT_TRUE(plan->context_reduced);
  config.max_model_len = 500;
  const auto refused = plan_memory(config, facts(1000 * kMiB));
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("what fits is --max-model-len 160"));
}

TEST(MemoryPlan, ErrorsSayWhatWouldFit) {
  EngineConfig config;
  config.num_kv_blocks = 5000;
  const auto too_many = plan_memory(config, facts(100 * kMiB));
  ASSERT_FALSE(too_many.ok());
  EXPECT_EQ(too_many.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(too_many.status().message(),
              HasSubstr("--num-kv-blocks 100 (1584 tokens) would fit"));
  config.num_kv_blocks = 0;
  EXPECT_FALSE(plan_memory(config, facts(kMiB)).ok());
  config.kv_cache_memory = kMiB;
  EXPECT_FALSE(plan_memory(config, facts(100 * kMiB)).ok());
  config.kv_cache_memory = 64 * kMiB;
  EXPECT_EQ(plan_memory(config, facts(100 * kMiB))->num_blocks, 64);
  config.max_model_len = 2000;
  EXPECT_THAT(plan_memory(config, facts(100 * kMiB)).status().message(),
              HasSubstr("limit of 1000 tokens"));
}

TEST(MemoryPlan, AvailableMemoryIsPlausible) {
  const int64_t bytes = available_memory_bytes();
  EXPECT_GT(bytes, 16 * kMiB);
  EXPECT_LT(bytes, int64_t{1} << 50);
}

}  // namespace
}  // namespace tenon
