// The same request gives the same greedy tokens, bit for bit, whatever happens around it: alone, in
// a batch, chunked, preempted by swap and by recompute, on prefix hits, with other thread counts.
#include <algorithm>

#include "tests/golden/engine_fixture.h"

namespace tenon {
namespace {

using testing::Answer;
using testing::greedy_request;
using testing::load_golden;
using testing::make_engine;
using testing::run_all;
using testing::test_model_path;

constexpr int32_t kOutput = 40;

EngineConfig base_config() {
  EngineConfig config;
  config.model = test_model_path();
  config.max_model_len = 1024;
  return config;
}

// 16 prompts of different lengths from the golden text; some share a prefix.
const std::vector<std::vector<int32_t>>& prompts() {
  static const auto all = [] {
    const auto text = load_golden("model_smollm2.json")["text_ids"].get<std::vector<int32_t>>();
    std::vector<std::vector<int32_t>> result;
    for (int i = 0; i < 16; ++i) {
      const auto begin = text.begin() + (i % 4 == 3 ? 0 : i * 90);  // every fourth begins alike
      result.emplace_back(begin, begin + 12 + i * 13);
    }
    return result;
  }();
  return all;
}

std::vector<GenerationRequest> requests() {
  std::vector<GenerationRequest> result;
  for (const auto& prompt : prompts()) result.push_back(greedy_request(prompt, kOutput));
  return result;
}

// The reference: one request at a time, nothing shared, nothing chunked.
const std::vector<std::vector<int32_t>>& alone() {
  static const auto tokens = [] {
    EngineConfig config = base_config();
    config.enable_prefix_caching = false;
    auto engine = make_engine(config);
    std::vector<std::vector<int32_t>> result;
    for (auto& request : requests()) {
      std::vector<GenerationRequest> one;
      one.push_back(std::move(request));
      result.push_back(run_all(*engine, std::move(one))[0].tokens);
    }
    return result;
  }();
  return tokens;
}

void expect_same(const std::vector<Answer>& answers) {
  for (size_t i = 0; i < answers.size(); ++i) {
    ASSERT_TRUE(answers[i].error.ok()) << answers[i].error.message();
    ASSERT_EQ(answers[i].tokens.size(), static_cast<size_t>(kOutput));
    EXPECT_EQ(answers[i].tokens, alone()[i]) << "request " << i;
  }
}

TEST(SameAnswers, InABatchOfSixteen) {
  auto engine = make_engine(base_config());
  expect_same(run_all(*engine, requests()));
}

TEST(SameAnswers, ChunkedIntoSmallSteps) {
  EngineConfig config = base_config();
  config.max_num_batched_tokens = 23;
  config.max_num_seqs = 16;
  config.enable_prefix_caching = false;
  auto engine = make_engine(config);
  expect_same(run_all(*engine, requests()));
}

class Preempted : public ::testing::TestWithParam<PreemptionMode> {};

TEST_P(Preempted, WithAPoolThatIsFarTooSmall) {
  for (const bool prefix_caching : {false, true}) {
    EngineConfig config = base_config();
    config.max_model_len = 0;
    config.num_kv_blocks = 24;  // 368 tokens for requests of up to 247, sixteen at once
    config.preemption_mode = GetParam();
    config.enable_prefix_caching = prefix_caching;
    auto engine = make_engine(config);
    expect_same(run_all(*engine, requests()));
    const EngineStats stats = engine->stats();
    if (GetParam() == PreemptionMode::kSwap) {
      EXPECT_GT(stats.preemptions_swap, 0U);
    } else {
      EXPECT_GT(stats.preemptions_recompute, 0U);
    }
    EXPECT_EQ(stats.kv_blocks_used, 0);
    EXPECT_EQ(stats.running + stats.waiting + stats.swapped, 0);
  }
}
INSTANTIATE_TEST_SUITE_P(Modes,
                         Preempted,
                         ::testing::Values(PreemptionMode::kRecompute, PreemptionMode::kSwap));

TEST(SameAnswers, OnPrefixHits) {
  auto engine = make_engine(base_config());
  expect_same(run_all(*engine, requests()));
  const auto warm = run_all(*engine, requests());
  expect_same(warm);
  for (size_t i = 0; i < warm.size(); ++i) {
    const auto length = static_cast<int32_t>(prompts()[i].size());
    EXPECT_EQ(warm[i].cached_tokens, (length - 1) / 16 * 16) << "request " << i;
  }
}

TEST(SameAnswers, WithOtherThreadCounts) {
  for (const int32_t threads : {1, 3}) {
    EngineConfig config = base_config();
    config.threads = threads;
    auto engine = make_engine(config);
    expect_same(run_all(*engine, requests()));
  }
}

TEST(SameAnswers, SeededSamplingDoesNotDependOnTheBatch) {
  auto engine = make_engine(base_config());
  const auto seeded = [](size_t index) {
    GenerationRequest request = greedy_request(prompts()[index], kOutput);
    request.sampling.temperature = 1.0F;
    request.sampling.top_p = 0.9F;
    request.sampling.seed = 42;
    return request;
  };
  std::vector<GenerationRequest> one;
  one.push_back(seeded(5));
  const auto expected = run_all(*engine, std::move(one))[0].tokens;
  std::vector<GenerationRequest> mixed = requests();
  mixed[2].sampling.temperature = 1.0F;  // a neighbour without a seed
  mixed[9] = seeded(5);
  mixed[11].sampling.temperature = 1.0F;
  mixed[11].sampling.seed = 7;
  EXPECT_EQ(run_all(*engine, std::move(mixed))[9].tokens, expected);
}

// Case ATT-02: prompts at and around multiples of the block size, cold, warm, and again after the
// cache was overwritten.
TEST(SameAnswers, PromptsThatAreMultiplesOfTheBlockSize) {
  EngineConfig config = base_config();
  config.max_model_len = 0;
  config.num_kv_blocks = 33;  // 512 tokens
  auto engine = make_engine(config);
  for (const int32_t length : {1, 15, 16, 17, 31, 32, 33, 64}) {
    std::vector<int32_t> prompt(static_cast<size_t>(length));
    for (int32_t i = 0; i < length; ++i) prompt[static_cast<size_t>(i)] = i + 1;
    const auto run = [&] {
      std::vector<GenerationRequest> one;
      one.push_back(greedy_request(prompt, 8));
      return run_all(*engine, std::move(one))[0];
    };
    const Answer cold = run();
    const Answer warm = run();
    std::vector<GenerationRequest> filler;
    const auto text = load_golden("model_smollm2.json")["text_ids"].get<std::vector<int32_t>>();
    filler.push_back(greedy_request({text.begin() + length, text.begin() + length + 500}, 8));
    ASSERT_TRUE(run_all(*engine, std::move(filler))[0].error.ok());
    const Answer evicted = run();
    EXPECT_EQ(warm.cached_tokens, (length - 1) / 16 * 16);
    EXPECT_EQ(evicted.cached_tokens, 0);
    EXPECT_EQ(warm.tokens, cold.tokens) << "length " << length;
    EXPECT_EQ(evicted.tokens, cold.tokens) << "length " << length;
    EXPECT_EQ(engine->stats().kv_blocks_used, 0);
  }
}

}  // namespace
}  // namespace tenon
