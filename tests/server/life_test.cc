// Start, stop, clients that go away, load, metrics of `tenon serve`. Cases LOD-01, API-08, ROB-05,
// ROB-06.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <future>
#include <limits>
#include <thread>

#include "tests/server/serve_process.h"

namespace tenon::testing {
namespace {

using json = nlohmann::json;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string long_request(bool stream, int max_tokens = 4000) {
  return HttpClient::format("POST", "/v1/completions",
                            json({{"model", "m"},
                                  {"prompt", "Once upon a time"},
                                  {"max_tokens", max_tokens},
                                  {"ignore_eos", true},
                                  {"stream", stream}})
                                .dump());
}

// A prompt of `tokens` distinct ids: long in prefill, and found in no prefix cache when `seed` is
// new.
std::string long_prompt(bool stream, int tokens, int seed) {
  std::vector<int> ids(static_cast<size_t>(tokens));
  for (int i = 0; i < tokens; ++i) ids[static_cast<size_t>(i)] = 100 + (i * 7 + seed * 31) % 40000;
  return HttpClient::format("POST", "/v1/completions",
                            json({{"model", "m"},
                                  {"prompt", ids},
                                  {"max_tokens", 400},
                                  {"ignore_eos", true},
                                  {"stream", stream}})
                                .dump());
}

TEST_F(ServeTest, SigtermDrainsAndEndsWithZero) {
  start();
  HttpClient client(port);
  client.send(long_request(true, 60));
  EXPECT_EQ(client.read_head().status, 200);
  ASSERT_TRUE(client.next_event().has_value());
  process->signal(SIGTERM);
  ASSERT_TRUE(eventually([this] { return http_get(port, "/health").status == 503; }));
  EXPECT_EQ(completion({{"prompt", "x"}}).status, 503);
  EXPECT_EQ(stream_events(client).back()["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(process->wait_for_exit(10), 0);
}

TEST_F(ServeTest, SecondSignalEndsAtOnce) {
  start();
  HttpClient client(port);
  client.send(long_request(false, 8000));
  ASSERT_TRUE(eventually([this] { return metric("vllm:num_requests_running") == 1; }));
  process->signal(SIGTERM);
  ASSERT_TRUE(eventually([this] { return http_get(port, "/health").status == 503; }));
  const auto start_time = Clock::now();
  process->signal(SIGTERM);
  EXPECT_EQ(process->wait_for_exit(10), 0);
  EXPECT_LT(seconds_since(start_time), 2);
}

TEST_F(ServeTest, PortInUseIsSaidBeforeTheModelIsLoaded) {
  start();
  ServeProcess second({"--model", test_model(), "--port", std::to_string(port)});
  const auto code = second.wait_for_exit(20);
  ASSERT_TRUE(code.has_value());
  EXPECT_NE(*code, 0);
  EXPECT_NE(second.err().find("in use"), std::string::npos) << second.err();
}

TEST_F(ServeTest, Lod01CutModelsAreRefused) {
  const std::string model = test_model();
  const auto size = static_cast<size_t>(std::filesystem::file_size(model));
  const std::string path =
      ::testing::TempDir() + "tenon-cut-" + std::to_string(::getpid()) + ".gguf";
  std::vector<char> bytes(size);
  std::ifstream(model, std::ios::binary).read(bytes.data(), static_cast<std::streamsize>(size));
  for (const size_t cut : {size_t{0}, size_t{3}, size_t{20}, size_t{5000}, size / 3, size - 1}) {
    std::ofstream(path, std::ios::binary | std::ios::trunc)
        .write(bytes.data(), static_cast<std::streamsize>(cut));
    ServeProcess server({"--model", path, "--port", "0"});
    const auto code = server.wait_for_exit(20);
    ASSERT_TRUE(code.has_value()) << cut;
    EXPECT_TRUE(*code > 0 && *code < 126) << cut << ": exit code " << *code;
    EXPECT_NE(server.err().find(path), std::string::npos) << cut << ": " << server.err();
  }
  std::filesystem::remove(path);
}

// Closes four connections in every round, by FIN or RST, streamed or not: two requests run (or are
// in prefill, or fight for blocks), two are queued.
TEST_F(ServeTest, Api08ClientsThatGoAwayFreeEverything) {
  start({"--max-num-seqs", "2", "--num-kv-blocks", "300", "--max-num-batched-tokens", "64"});
  // Fills the KV cache, so that its pages do not count as growth later.
  for (int part = 0; part < 5; ++part) {
    EXPECT_EQ(
        completion({{"prompt", std::vector<int>(1000, 1000 + part)}, {"max_tokens", 4}}).status,
        200);
  }
  const size_t files_before = process->open_files();
  const double used_before = metric("vllm:kv_cache_usage_perc");
  const auto active = [this] {
    return metric("vllm:num_requests_running") + metric("vllm:num_requests_waiting");
  };
  constexpr int kRounds = 200;
  double resident = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::unique_ptr<HttpClient>> clients;
    const bool in_prefill = round % 4 == 1;
    const bool after_a_chunk = round % 4 == 2;
    for (int i = 0; i < 4; ++i) {
      clients.push_back(std::make_unique<HttpClient>(port));
      const bool stream = i % 2 == 0;
      clients.back()->send(in_prefill ? long_prompt(stream, 3000, round * 4 + i)
                                      : long_request(stream));
      if (after_a_chunk && i == 0) {  // before the others are sent: they might run first
        clients[0]->read_head();
        ASSERT_TRUE(clients[0]->next_event().has_value());
      }
    }
    ASSERT_TRUE(eventually([&] { return active() == 4; })) << round;
    for (auto& client : clients) round % 2 == 0 ? client->reset() : client->close();
    ASSERT_TRUE(eventually([&] { return active() == 0; }, 1)) << round;
    if (round == 40) resident = process->own_memory_mib();
  }
  EXPECT_DOUBLE_EQ(metric("vllm:kv_cache_usage_perc"), used_before);
  EXPECT_LT(process->own_memory_mib(), resident * 1.05);
  EXPECT_TRUE(eventually([&] { return process->open_files() <= files_before + 1; }));
  EXPECT_TRUE(eventually([this] {
    return http_get(port, "/metrics")
               .body.find("finished_reason=\"abort\"} " + std::to_string(4 * kRounds) + "\n") !=
           std::string::npos;
  }));
  // Half a head, half a body.
  HttpClient half(port);
  half.send("POST /v1/completions HTTP/1.1\r\nConte");
  half.reset();
  HttpClient body(port);
  body.send("POST /v1/completions HTTP/1.1\r\nContent-Length: 1000\r\n\r\n{\"mod");
  body.reset();
  expect_idle_and_working();
}

// The same while requests are preempted and swapped out.
TEST_F(ServeTest, Api08ClientsThatGoAwayWhilePreempted) {
  start({"--max-num-seqs", "4", "--num-kv-blocks", "20", "--preemption-mode", "swap"});
  const auto active = [this] {
    return metric("vllm:num_requests_running") + metric("vllm:num_requests_waiting") +
           metric("vllm:num_requests_swapped");
  };
  for (int round = 0; round < 4; ++round) {
    const double preempted = metric("vllm:num_preemptions_total");
    std::vector<std::unique_ptr<HttpClient>> clients;
    for (int i = 0; i < 4; ++i) {
      clients.push_back(std::make_unique<HttpClient>(port));
      clients.back()->send(
          long_prompt(i % 2 == 0, 40, round * 4 + i));  // 40 + 400 tokens each, 304 fit
    }
    ASSERT_TRUE(eventually([&] { return metric("vllm:num_preemptions_total") > preempted; }))
        << round;
    for (auto& client : clients) round % 2 == 0 ? client->reset() : client->close();
    ASSERT_TRUE(eventually([&] { return active() == 0; }, 1)) << round;
  }
  EXPECT_EQ(metric("vllm:kv_cache_usage_perc"), 0);
  expect_idle_and_working();
}

// The weights replace the mapped file (repacked), the pages of the KV cache come with their first
// use.
TEST_F(ServeTest, ResidentMemoryIsTheModelTheCacheAndALittle) {
  start({"--num-kv-blocks", "300"});
  EXPECT_EQ(completion({{"prompt", std::vector<int>(1000, 1000)}, {"max_tokens", 32}}).status, 200);
  const double model = static_cast<double>(std::filesystem::file_size(test_model())) / 1048576.0;
  constexpr double kKvMib =
      300 * 16 * 22.5 / 1024;  // 30 layers, 3 heads of 64, K and V in f16: 22.5 KiB a token
  EXPECT_LT(process->resident_mib(), 1.2 * model + kKvMib + 150);
}

// A cheap answer of more than a megabyte: every choice repeats the prompt, which is computed once.
std::string wide_request() {
  std::string prompt;
  for (int i = 0; i < 800; ++i) prompt += " international";
  return HttpClient::format("POST", "/v1/completions",
                            json({{"model", "m"},
                                  {"prompt", prompt},
                                  {"max_tokens", 1},
                                  {"echo", true},
                                  {"n", 128},
                                  {"stream", true}})
                                .dump());
}
constexpr size_t kWideAnswer = 128 * 800 * 14;
constexpr size_t kKernelBuffers = size_t{1} << 20;  // of both ends, generously
static_assert(kWideAnswer > kKernelBuffers);

// Idle and half-open connections, readers that never read, a long text to tokenise: the longest
// time that /health took meanwhile, in seconds.
double worst_health_time_under_load(uint16_t port) {
  std::vector<HttpClient> idle;
  for (int i = 0; i < 500; ++i) idle.emplace_back(port);
  std::vector<HttpClient> half;
  for (int i = 0; i < 200; ++i) {
    half.emplace_back(port);
    half.back().send("POST /v1/completions HTTP/1.1\r\nContent-Length: 1000000\r\n\r\nx");
  }
  std::vector<HttpClient> deaf;
  for (int i = 0; i < 3; ++i) {
    deaf.emplace_back(port, 4096);
    deaf.back().send(wide_request());
  }
  std::string text;
  for (int i = 0; i < 20000; ++i) text += "The quick brown fox jumps over the lazy dog again. ";
  auto tokenising = std::async(std::launch::async, [&] {
    return http_post(port, "/tokenize", {{"prompt", text}}).status;
  });
  double worst = 0;
  for (const auto begin = Clock::now(); seconds_since(begin) < 2;) {
    const auto start_time = Clock::now();
    EXPECT_EQ(http_get(port, "/health").status, 200);
    worst = std::max(worst, seconds_since(start_time));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(tokenising.get(), 200);
  // The server has kept what the kernel would not take.
  deaf.front().set_timeout(30);
  EXPECT_EQ(deaf.front().read_head().status, 200);
  size_t received = 0;
  while (const auto piece = deaf.front().read_chunk()) received += piece->size();
  EXPECT_GT(received, kWideAnswer);
  return worst;
}

TEST_F(ServeTest, Rob05HealthAnswersUnderLoad) {
  start({"--num-kv-blocks", "128", "--max-model-len", "1024"});
  // What is resident varies by a tenth from round to round (the allocator's arenas, which threads
  // use them); a leak lifts the least of later rounds above the most of earlier ones.
  constexpr int kRounds = 4;
  double most = 0;
  double least = std::numeric_limits<double>::infinity();
  for (int round = 0; round < 2 * kRounds; ++round) {
    EXPECT_LT(worst_health_time_under_load(port), 0.2);
    expect_idle_and_working();
    const double resident = process->own_memory_mib();
    if (round < kRounds) most = std::max(most, resident);
    if (round >= kRounds) least = std::min(least, resident);
  }
  EXPECT_LT(least, most * 1.05);
}

TEST_F(ServeTest, Rob06CountersOnlyGrowThroughPreemptionAndAbort) {
  start({"--num-kv-blocks", "10", "--max-model-len", "96", "--max-num-seqs", "4"});
  const auto ended = [this](const std::string& reason) {
    const std::string page = http_get(port, "/metrics").body;
    const std::string series = "finished_reason=\"" + reason + "\"} ";
    return std::atof(page.c_str() + page.find(series) + series.size());
  };
  const double prompt_before = metric("vllm:prompt_tokens_total");
  const double generated_before = metric("vllm:generation_tokens_total");
  const double lengths_before = ended("length");
  std::vector<std::future<HttpAnswer>> answers;
  for (int i = 0; i < 3; ++i) {
    std::vector<int> prompt(40);
    for (int k = 0; k < 40; ++k) prompt[static_cast<size_t>(k)] = 1000 * (i + 1) + k;
    answers.push_back(std::async(std::launch::async, [this, prompt] {
      return completion(
          {{"prompt", prompt}, {"max_tokens", 30}, {"ignore_eos", true}, {"temperature", 0}});
    }));
  }
  const std::vector<const char*> counters = {"vllm:prompt_tokens_total",
                                             "vllm:generation_tokens_total",
                                             "vllm:num_preemptions_total",
                                             "vllm:request_success_total",
                                             "vllm:prefix_cache_queries_total",
                                             "vllm:prefix_cache_hits_total",
                                             "vllm:time_to_first_token_seconds_count",
                                             "vllm:e2e_request_latency_seconds_sum",
                                             "vllm:inter_token_latency_seconds_bucket"};
  std::vector<double> last(counters.size(), 0);
  const auto scrape = [&] {
    const std::string page = http_get(port, "/metrics").body;
    for (size_t i = 0; i < counters.size(); ++i) {
      const double value = metric_value(page, counters[i]).value_or(-1);
      EXPECT_GE(value, last[i]) << counters[i];
      last[i] = value;
    }
    const double usage = metric_value(page, "vllm:kv_cache_usage_perc").value_or(-1);
    EXPECT_TRUE(usage >= 0 && usage <= 1) << usage;
  };
  for (auto& answer : answers) {
    while (answer.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready) scrape();
    EXPECT_EQ(answer.get().status, 200);
  }
  // What is computed again after a preemption counts once.
  EXPECT_TRUE(eventually([&] { return ended("length") == lengths_before + 3; }));
  EXPECT_GT(metric("vllm:num_preemptions_total"), 0);
  EXPECT_EQ(metric("vllm:prompt_tokens_total"), prompt_before + 120);
  EXPECT_EQ(metric("vllm:prompt_tokens_by_source_total"), prompt_before + 120);
  EXPECT_EQ(metric("vllm:generation_tokens_total"), generated_before + 90);
  const double aborts_before = ended("abort");
  for (int i = 0; i < 10; ++i) {
    HttpClient client(port);
    client.send(long_request(true, 80));
    client.read_head();
    client.reset();
  }
  EXPECT_TRUE(eventually([this] {
    return metric("vllm:num_requests_running") + metric("vllm:num_requests_waiting") == 0;
  }));
  scrape();
  EXPECT_TRUE(eventually([&] { return ended("abort") == aborts_before + 10; }));
  EXPECT_LE(metric("vllm:prompt_tokens_cached_total"), metric("vllm:prompt_tokens_total"));
  EXPECT_EQ(metric("vllm:num_requests_swapped"), 0);
  EXPECT_EQ(metric("vllm:kv_cache_usage_perc"), 0);
}

}  // namespace
}  // namespace tenon::testing
