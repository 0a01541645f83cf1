// The engine as its callers see it, on a tiny random Llama: limits, ends, aborts, scoring,
// shutdown.
#include "tenon/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <future>

#include "tests/golden/engine_fixture.h"
#include "tests/unit/models/tiny_model.h"

namespace tenon {
namespace {

using testing::Answer;
using testing::greedy_request;
using ::testing::HasSubstr;
using testing::make_engine;
using testing::run_all;

class EngineTest : public ::testing::Test {
 protected:
  EngineTest() {
    tiny::TinyLlama shape;
    shape.context = 256;
    config.model = folder.write("tiny.gguf", tiny::gguf_bytes(shape));
    config.threads = 2;
    config.num_kv_blocks = 64;
    config.max_num_seqs = 4;
    config.max_num_batched_tokens = 16;
  }
  static Answer run_one(Engine& engine, GenerationRequest request) {
    std::vector<GenerationRequest> one;
    one.push_back(std::move(request));
    return run_all(engine, std::move(one))[0];
  }

  tiny::TempFolder folder;
  EngineConfig config;
};

TEST_F(EngineTest, RefusesWhatCannotBeServed) {
  auto engine = make_engine(config);
  const auto status_of = [&](GenerationRequest request) {
    return engine
        ->submit(std::move(request), [](RequestOutput&&) { FAIL() << "called after an error"; })
        .status();
  };
  EXPECT_EQ(status_of(greedy_request({}, 4)).param(), "prompt");
  EXPECT_EQ(status_of(greedy_request({50}, 4)).param(), "prompt");
  EXPECT_EQ(status_of(greedy_request({-1}, 4)).param(), "prompt");
  const Status overflow = status_of(greedy_request(std::vector<int32_t>(256, 3), 1));
  EXPECT_EQ(overflow.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(overflow.message(), HasSubstr("maximum context length is 256 tokens"));
  GenerationRequest urgent = greedy_request({3}, 4);
  urgent.priority = -1;
  EXPECT_EQ(status_of(urgent).param(), "priority");
  EXPECT_EQ(run_one(*engine, greedy_request({3, 4}, 4)).tokens.size(), 4U);
}

TEST_F(EngineTest, AnswersEndAtTheContextAndAtStopTokens) {
  auto engine = make_engine(config);
  const Answer to_the_end = run_one(*engine, greedy_request(std::vector<int32_t>(250, 3), 100));
  EXPECT_EQ(to_the_end.tokens.size(), 6U);
  EXPECT_EQ(to_the_end.finish_reason, FinishReason::kLength);
  const std::vector<int32_t> free = run_one(*engine, greedy_request({5, 6, 7}, 12)).tokens;
  GenerationRequest request = greedy_request({5, 6, 7}, 12);
  request.sampling.stop_token_ids = {free[4]};
  const Answer stopped = run_one(*engine, request);
  const auto first =
      static_cast<size_t>(std::find(free.begin(), free.end(), free[4]) - free.begin());
  EXPECT_EQ(stopped.finish_reason, FinishReason::kStop);
  EXPECT_EQ(
      stopped.tokens,
      std::vector<int32_t>(free.begin(), free.begin() + static_cast<std::ptrdiff_t>(first) + 1));
  request.sampling.min_tokens = 8;
  EXPECT_GE(run_one(*engine, request).tokens.size(), 8U);
  // Bans that leave nothing are the caller's mistake.
  for (int32_t id = 0; id < 50; ++id) request.sampling.logit_bias.emplace_back(id, -100.0F);
  const Answer banned = run_one(*engine, request);
  EXPECT_EQ(banned.finish_reason, FinishReason::kError);
  EXPECT_EQ(banned.error.code(), StatusCode::kInvalidArgument);
}

// Scoring a prompt in chunks, with and without generating, gives the logprobs that the tokens had
// when they were generated.
TEST_F(EngineTest, PromptLogprobsEqualThoseOfGeneration) {
  auto engine = make_engine(config);
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 37; ++i) prompt.push_back(3 + i % 40);
  GenerationRequest request = greedy_request(prompt, 10);
  request.sampling.logprobs = 2;
  const Answer generated = run_one(*engine, request);
  ASSERT_EQ(generated.logprobs.size(), 10U);
  std::vector<int32_t> whole = prompt;
  whole.insert(whole.end(), generated.tokens.begin(), generated.tokens.end());
  GenerationRequest scoring = greedy_request(whole, 0);
  scoring.sampling.prompt_logprobs = 2;
  const Answer scored = run_one(*engine, scoring);
  EXPECT_TRUE(scored.tokens.empty());
  EXPECT_EQ(scored.finish_reason, FinishReason::kLength);
  ASSERT_EQ(scored.prompt_logprobs.size(), whole.size());
  EXPECT_EQ(scored.prompt_logprobs[0].token, whole[0]);
  for (size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(scored.prompt_logprobs[prompt.size() + i].logprob, generated.logprobs[i].logprob)
        << i;
    EXPECT_EQ(scored.prompt_logprobs[prompt.size() + i].top, generated.logprobs[i].top) << i;
    EXPECT_EQ(generated.logprobs[i].top[0].first, generated.tokens[i]);
  }
}

TEST_F(EngineTest, FullQueueIsRefusedAndEmptiesAgain) {
  config.max_queue = 2;
  config.max_num_seqs = 1;
  auto engine = make_engine(config);
  std::atomic<int> ended{0};
  std::vector<RequestId> ids;
  int refused = 0;
  for (int i = 0; i < 20; ++i) {
    auto id = engine->submit(greedy_request({3}, 200), [&](RequestOutput&& output) {
      if (output.finish_reason != FinishReason::kNone) ended.fetch_add(1);
    });
    if (id.ok()) {
      ids.push_back(*id);
    } else {
      EXPECT_EQ(id.status().code(), StatusCode::kResourceExhausted);
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
  for (const RequestId id : ids) engine->abort(id);
  while (ended.load() < static_cast<int>(ids.size())) std::this_thread::yield();
  EXPECT_EQ(run_one(*engine, greedy_request({3}, 2)).tokens.size(), 2U);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.running + stats.waiting, 0);
  EXPECT_EQ(stats.kv_blocks_used, 0);
}

TEST_F(EngineTest, AbortEndsARequestWhereverItIs) {
  config.max_num_seqs = 1;
  auto engine = make_engine(config);
  for (const bool queued : {false, true}) {
    std::promise<FinishReason> running_end, queued_end;
    std::promise<void> started;
    bool first = true;
    auto running = engine->submit(greedy_request({3}, 250), [&](RequestOutput&& output) {
      if (std::exchange(first, false)) started.set_value();
      if (output.finish_reason != FinishReason::kNone) running_end.set_value(output.finish_reason);
    });
    ASSERT_TRUE(running.ok());
    started.get_future().wait();
    auto waiting = engine->submit(greedy_request({4}, 3), [&](RequestOutput&& output) {
      if (output.finish_reason != FinishReason::kNone) queued_end.set_value(output.finish_reason);
    });
    ASSERT_TRUE(waiting.ok());
    engine->abort(queued ? *waiting : *running);
    const FinishReason of_queued = queued_end.get_future().get();
    const FinishReason of_running = running_end.get_future().get();
    // The other one may have ended by itself by then.
    if (queued) {
      EXPECT_TRUE(of_queued == FinishReason::kAbort || of_running == FinishReason::kLength);
    } else {
      EXPECT_EQ(of_queued, FinishReason::kLength);
    }
  }
  engine->abort(123456);  // unknown: nothing happens
}

TEST_F(EngineTest, ShutdownEndsEveryRequestOnce) {
  std::vector<std::atomic<int>> ends(6);
  {
    auto engine = make_engine(config);
    for (auto& end : ends) {
      ASSERT_TRUE(engine
                      ->submit(greedy_request({3}, 250),
                               [&end](RequestOutput&& output) {
                                 if (output.finish_reason != FinishReason::kNone) end.fetch_add(1);
                               })
                      .ok());
    }
  }
  for (auto& end : ends) EXPECT_EQ(end.load(), 1);
}

TEST_F(EngineTest, EqualRequestsWithDifferentSaltsShareNothing) {
  auto engine = make_engine(config);
  GenerationRequest request = greedy_request(std::vector<int32_t>(40, 3), 2);
  request.cache_salt = "a";
  EXPECT_EQ(run_one(*engine, request).cached_tokens, 0);
  EXPECT_EQ(run_one(*engine, request).cached_tokens, 32);
  request.cache_salt = "b";
  EXPECT_EQ(run_one(*engine, request).cached_tokens, 0);
}

// Requests with 192 tokens in common and tails of their own: the same answers whether they read the
// prefix together or not, for every type of KV cache; the counters say that they did.
TEST_F(EngineTest, CascadeChangesNoAnswerAndIsCounted) {
  const auto requests = [] {
    std::vector<GenerationRequest> list;
    for (int32_t i = 0; i < 4; ++i) {
      std::vector<int32_t> prompt(192);
      for (size_t at = 0; at < prompt.size(); ++at) {
        prompt[at] = static_cast<int32_t>(3 + at * 7 % 40);
      }
      for (int32_t own = 0; own <= i; ++own) prompt.push_back(5 + (i * 11 + own) % 40);
      list.push_back(greedy_request(prompt, 14));
    }
    return list;
  };
  for (const KvCacheDType dtype : {KvCacheDType::kAuto, KvCacheDType::kFp8, KvCacheDType::kInt8}) {
    config.kv_cache_dtype = dtype;
    std::vector<std::vector<int32_t>> answers[2];
    for (const bool together : {false, true}) {
      config.cascade = together ? CascadePolicy::kOn : CascadePolicy::kOff;
      auto engine = make_engine(config);
      // One first, so that the others find its prefix.
      const Answer first = run_one(*engine, requests()[0]);
      for (const Answer& answer : run_all(*engine, requests())) {
        answers[together ? 1 : 0].push_back(answer.tokens);
      }
      EXPECT_EQ(answers[together ? 1 : 0][0], first.tokens);
      const CascadeCounters counters = engine->stats().cascade;
      if (together) {
        EXPECT_GT(counters.steps, 8U);
        EXPECT_GE(counters.groups, counters.steps);
        EXPECT_GE(counters.tokens_not_read, counters.steps * 192);
      } else {
        EXPECT_EQ(counters.steps, 0U);
      }
    }
    EXPECT_EQ(answers[0], answers[1]);
  }
}

// A setting that cannot work is refused before the model is touched.
TEST_F(EngineTest, ConfigurationIsCheckedFirst) {
  config.model = "/nonexistent.gguf";
  config.max_num_batched_tokens = 2;
  EXPECT_THAT(Engine::create(config).status().message(), HasSubstr("--max-num-seqs 4"));
  config.device = "tpu";
  EXPECT_THAT(Engine::create(config).status().message(), HasSubstr("expected auto, cpu or cuda"));
}

}  // namespace
}  // namespace tenon
