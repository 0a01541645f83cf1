// Start, stop, clients that go away, load, metrics of `tenon serve`. Cases LOD-01, API-08, ROB-05, ROB-06.
#include <algorithm>
#include <fstream>
#include <future>
#include <thread>

#include "tests/server/serve_process.h"

namespace tenon::testing {
namespace {

using json = nlohmann::json;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::string long_request(bool stream, int max_tokens = 4000) {
  return HttpClient::format("POST", "/v1/completions",
                            json({{"model", "m"}, {"prompt", "Once upon a time"}, {"max_tokens", max_tokens},
                                  {"ignore_eos", true}, {"stream", stream}}).dump());
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
  const std::string path = ::testing::TempDir() + "tenon-cut-" + std::to_string(::getpid()) + ".gguf";
  std::vector<char> bytes(size);
  std::ifstream(model, std::ios::binary).read(bytes.data(), static_cast<std::streamsize>(size));
  for (const size_t cut : {size_t{0}, size_t{3}, size_t{20}, size_t{5000}, size / 3, size - 1}) {
    std::ofstream(path, std::ios::binary | std::ios::trunc).write(bytes.data(), static_cast<std::streamsize>(cut));
    ServeProcess server({"--model", path, "--port", "0"});
    const auto code = server.wait_for_exit(20);
    ASSERT_TRUE(code.has_value()) << cut;
    EXPECT_TRUE(*code > 0 && *code < 126) << cut << ": exit code " << *code;
    EXPECT_NE(server.err().find(path), std::string::npos) << cut << ": " << server.err();
  }
  std::filesystem::remove(path);
}

TEST_F(ServeTest, Api08ClientsThatGoAwayFreeEverything) {
  start({"--max-num-seqs", "2"});
  EXPECT_EQ(completion({{"prompt", "warm up"}, {"max_tokens", 4}}).status, 200);
  const size_t files_before = process->open_files();
  const double used_before = metric("vllm:kv_cache_usage_perc");
  constexpr int kRounds = 20;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::unique_ptr<HttpClient>> clients;
    for (int i = 0; i < 4; ++i) {  // two run, two are queued
      clients.push_back(std::make_unique<HttpClient>(port));
      clients.back()->send(long_request(i % 2 == 0));
    }
    ASSERT_TRUE(eventually([this] {
      return metric("vllm:num_requests_running") + metric("vllm:num_requests_waiting") == 4;
    }));
    for (int i = 0; i < 4; ++i) {
      if (round % 2 == 0) {
        clients[static_cast<size_t>(i)]->reset();
      } else {
        clients[static_cast<size_t>(i)]->close();
      }
    }
    ASSERT_TRUE(eventually([this] {
      return metric("vllm:num_requests_running") + metric("vllm:num_requests_waiting") == 0;
    }, 1)) << round;
  }
  EXPECT_DOUBLE_EQ(metric("vllm:kv_cache_usage_perc"), used_before);
  EXPECT_TRUE(eventually([&] { return process->open_files() <= files_before + 1; }));
  EXPECT_TRUE(eventually([this] {
    return http_get(port, "/metrics").body.find("finished_reason=\"abort\"} " + std::to_string(4 * kRounds) + "\n") !=
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

// Idle and half-open connections, readers that never read, a long text to tokenise: the longest time that /health took
// meanwhile, in seconds.
double worst_health_time_under_load(uint16_t port) {
  std::vector<HttpClient> idle;
  for (int i = 0; i < 500; ++i) idle.emplace_back(port);
  std::vector<HttpClient> half;
  for (int i = 0; i < 200; ++i) {
    half.emplace_back(port);
    half.back().send("POST /v1/completions HTTP/1.1\r\nContent-Length: 1000000\r\n\r\nx");
  }
  std::vector<HttpClient> deaf;
  for (int i = 0; i < 20; ++i) {
    deaf.emplace_back(port, 4096);
    deaf.back().send(long_request(true, 100));
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
  return worst;
}

TEST_F(ServeTest, Rob05HealthAnswersUnderLoad) {
  start({"--num-kv-blocks", "128", "--max-model-len", "1024"});
  // The first rounds touch every page of the KV cache and fill the allocator's arenas of all threads.
  double resident = 0;
  for (int round = 0; round < 4; ++round) {
    resident = round < 3 ? process->resident_mib() : resident;
    EXPECT_LT(worst_health_time_under_load(port), 0.2);
    expect_idle_and_working();
  }
  EXPECT_LT(process->resident_mib(), resident * 1.1);
}

TEST_F(ServeTest, Rob06CountersOnlyGrowThroughPreemptionAndAbort) {
  start({"--num-kv-blocks", "10", "--max-model-len", "96", "--max-num-seqs", "4"});
  std::vector<std::future<HttpAnswer>> answers;
  for (int i = 0; i < 3; ++i) {
    std::vector<int> prompt(40);
    for (int k = 0; k < 40; ++k) prompt[static_cast<size_t>(k)] = 1000 * (i + 1) + k;
    answers.push_back(std::async(std::launch::async, [this, prompt] {
      return completion({{"prompt", prompt}, {"max_tokens", 30}, {"ignore_eos", true}, {"temperature", 0}});
    }));
  }
  const std::vector<const char*> counters = {"vllm:prompt_tokens_total", "vllm:generation_tokens_total",
                                             "vllm:num_preemptions_total", "vllm:request_success_total",
                                             "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total",
                                             "vllm:time_to_first_token_seconds_count", "vllm:e2e_request_latency_seconds_sum",
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
  for (int i = 0; i < 5; ++i) {
    HttpClient client(port);
    client.send(long_request(true, 80));
    client.read_head();
    client.reset();
  }
  EXPECT_TRUE(eventually([this] { return metric("vllm:num_requests_running") + metric("vllm:num_requests_waiting") == 0; }));
  scrape();
  EXPECT_GT(metric("vllm:num_preemptions_total"), 0);
  EXPECT_GE(metric("vllm:generation_tokens_total"), 90);
  EXPECT_GE(metric("vllm:prompt_tokens_total"), 120);
  EXPECT_LE(metric("vllm:prompt_tokens_cached_total"), metric("vllm:prompt_tokens_total"));
  EXPECT_EQ(metric("vllm:num_requests_swapped"), 0);
  EXPECT_EQ(metric("vllm:kv_cache_usage_perc"), 0);
}

}  // namespace
}  // namespace tenon::testing
