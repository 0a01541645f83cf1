// Life cycle, routes, keys, errors, metrics. API-07, ROB-04, ROB-06.
#include <future>
#include <set>
#include <thread>

#include "tests/unit/server/server_fixture.h"

namespace tenon::testing {
namespace {

TEST_F(ServerTest, LoadsThenServesThenDrains) {
  start();
  HttpAnswer health = http_get(port, "/health");
  expect_error(health, 503);
  EXPECT_EQ(health.json()["status"], "loading");
  server->set_loading_progress(0.25, "weights");
  health = http_get(port, "/health");
  EXPECT_EQ(health.json()["progress"], 0.25);
  EXPECT_EQ(health.json()["what"], "weights");
  expect_error(completion({{"prompt", "x"}}), 503);
  expect_error(http_get(port, "/v1/models"), 503);
  EXPECT_EQ(http_get(port, "/version").json(), json::parse(R"({"version":"0.1.0"})"));
  EXPECT_EQ(http_get(port, "/metrics").status, 200);

  attach();
  health = http_get(port, "/health");
  EXPECT_EQ(health.status, 200);
  EXPECT_EQ(health.body, "");

  // A running request may end while new ones are refused.
  engine.hold();
  auto running = std::async(std::launch::async, [this] { return completion({{"prompt", "x"}}); });
  ASSERT_TRUE(eventually([this] { return engine.active() == 1; }));
  server->begin_drain();
  EXPECT_FALSE(server->drained());
  expect_error(http_get(port, "/health"), 503);
  const HttpAnswer refused = completion({{"prompt", "x"}});
  expect_error(refused, 503);
  EXPECT_EQ(refused.headers.at("connection"), "close");
  engine.release();
  EXPECT_EQ(running.get().status, 200);
  EXPECT_TRUE(eventually([this] { return server->drained(); }));
  server->stop();
  EXPECT_THROW(http_get(port, "/health"), std::runtime_error);
}

TEST_F(ServerTest, DrainEndsWithItsTimeout) {
  config.drain_timeout = 0.1;
  start_ready();
  engine.hold();
  auto whole = std::async(std::launch::async, [this] { return completion({{"prompt", "x"}}); });
  HttpClient stream(port);
  stream.send(
      HttpClient::format("POST", "/v1/completions", R"({"model":"m","prompt":"x","stream":true})"));
  EXPECT_EQ(stream.read_head().status, 200);
  ASSERT_TRUE(eventually([this] { return engine.active() == 2; }));
  server->begin_drain();
  expect_error(whole.get(), 503);
  EXPECT_EQ(stream_events(stream).back()["error"]["type"], "unavailable_error");
  EXPECT_TRUE(eventually([this] { return server->drained(); }));
}

TEST_F(ServerTest, StopEndsRunningRequests) {
  start_ready();
  engine.hold();
  auto whole = std::async(std::launch::async, [this] { return completion({{"prompt", "x"}}); });
  ASSERT_TRUE(eventually([this] { return engine.active() == 1; }));
  server->stop();
  expect_error(whole.get(), 503);
  EXPECT_TRUE(eventually([this] { return engine.active() == 0; }));
}

TEST_F(ServerTest, DeadEngineIsUnhealthy) {
  start_ready();
  engine.die();
  expect_error(http_get(port, "/health"), 503);
}

TEST_F(ServerTest, ModelCard) {
  config.model_root = "/models/m.gguf";
  start_ready();
  const json body = http_get(port, "/v1/models").json();
  EXPECT_EQ(body["object"], "list");
  ASSERT_EQ(body["data"].size(), 2U);
  const json& card = body["data"][0];
  EXPECT_EQ(card["id"], "m");
  EXPECT_EQ(card["object"], "model");
  EXPECT_EQ(card["root"], "/models/m.gguf");
  EXPECT_EQ(card["max_model_len"], 200);
  EXPECT_TRUE(card["created"].is_number_integer());
  EXPECT_TRUE(card["owned_by"].is_string());
  EXPECT_TRUE(card["parent"].is_null());
  EXPECT_TRUE(card["permission"].is_array());
}

TEST_F(ServerTest, ApiKeys) {
  config.api_keys = {"secret", "other"};
  start_ready();
  for (const char* path : {"/health", "/version", "/metrics"})
    EXPECT_EQ(http_get(port, path).status, 200);
  const auto models_with = [this](const std::string& header) {
    return HttpClient(port).request("GET", "/v1/models", "", header);
  };
  for (const char* header : {"", "Authorization: Bearer secre\r\n",
                             "Authorization: Bearer secretx\r\n", "Authorization: Basic secret\r\n",
                             "Authorization: Bearer\r\n", "Authorization: Bearer \r\n"}) {
    const HttpAnswer answer = models_with(header);
    expect_error(answer, 401);
    EXPECT_EQ(answer.json()["error"]["type"], "authentication_error");
  }
  EXPECT_EQ(models_with("Authorization: Bearer secret\r\n").status, 200);
  EXPECT_EQ(models_with("authorization: bearer other\r\n").status, 200);
  expect_error(completion({{"prompt", "x"}}), 401);
  expect_error(http_post(port, "/tokenize", {{"prompt", "x"}}), 401);
}

TEST_F(ServerTest, Api07Errors) {
  start_ready();
  const char* json_type = "Content-Type: application/json; charset=utf-8\r\n";
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"}) {
    for (const char* body :
         {R"({"model":"m",})", "", "[]", "{}", "{\"temperature\":NaN}", "{\"prompt\":\"\xff\"}"}) {
      expect_error(http_post_text(port, path, body, json_type), 400);
    }
    expect_error(http_get(port, path), 405);
    expect_error(http_post_text(port, path, "{}", "Content-Type: text/plain\r\n"), 415);
    expect_error(http_post_text(port, path, "{}", "Content-Type: application/jsonx\r\n"), 415);
  }
  expect_error(completion({{"model", "nobody"}, {"prompt", "x"}}), 404, "model");
  EXPECT_EQ(completion({{"model", "nobody"}, {"prompt", "x"}}).json()["error"]["code"],
            "model_not_found");
  expect_error(http_get(port, "/v2/none"), 404);
  expect_error(http_post(port, "/health", json::object()), 405);
  expect_error(chat({{"temperature", "hot"}, {"stream", true}}), 400, "temperature");
  HttpClient big(port);
  big.send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: "
      "application/json\r\nContent-Length: 67108864\r\n\r\n");
  expect_error(big.read_answer(), 413);
  HttpClient bad(port);
  bad.send("POST /v1/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n");
  expect_error(bad.read_answer(), 400);
  expect_healthy();
}

TEST_F(ServerTest, Rob04HostileBodies) {
  start_ready();
  for (const size_t depth : {10'000, 1'000'000}) {
    const std::string deep = std::string(depth, '[') + "0" + std::string(depth, ']');
    expect_error(
        http_post_text(port, "/v1/completions", R"({"model":"m","prompt":"x","x":)" + deep + "}"),
        400);
    expect_error(
        http_post_text(port, "/v1/chat/completions",
                       R"({"model":"m","tools":[{"function":{"parameters":)" + deep + "}}]}"),
        400);
    expect_error(http_post_text(port, "/v1/completions",
                                R"({"model":"m","prompt":"x","metadata":)" + deep + "}"),
                 400);
  }
  EXPECT_EQ(
      http_post_text(port, "/v1/completions", R"({"model":"m","prompt":"a\u0000b","max_tokens":1})")
          .json()["usage"]["prompt_tokens"],
      3);
  EXPECT_EQ(http_post_text(port, "/v1/completions",
                           R"({"model":"m","prompt":"a","prompt":"bc","max_tokens":1})")
                .json()["usage"]["prompt_tokens"],
            2);
  expect_healthy();
}

TEST_F(ServerTest, Rob05HealthAnswersWhileWorkersAndEngineAreBusy) {
  config.worker_threads = 1;
  config.limits.max_body_bytes = 64 << 20;
  start_ready();
  engine.hold();
  // Long to parse, and refused at its end.
  std::string body = "{\"x\":[0";
  for (int i = 0; i < 1'000'000; ++i) body += ",0";
  body += "]";
  std::vector<std::future<HttpAnswer>> slow;
  for (int i = 0; i < 3; ++i) {
    slow.push_back(std::async(std::launch::async,
                              [&] { return http_post_text(port, "/v1/completions", body + "}"); }));
  }
  double worst = 0;
  while (slow.back().wait_for(std::chrono::milliseconds(5)) != std::future_status::ready) {
    const auto start = std::chrono::steady_clock::now();
    ASSERT_EQ(http_get(port, "/health").status, 200);
    worst = std::max(
        worst, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  EXPECT_LT(worst, 0.2);
  for (auto& answer : slow) expect_error(answer.get(), 400);
}

TEST_F(ServerTest, Rob06MetricsPageIsWellFormed) {
  start_ready();
  EXPECT_EQ(completion({{"prompt", "xyz"}, {"max_tokens", 4}}).status, 200);
  ASSERT_TRUE(eventually([this] { return engine.active() == 0; }));
  const HttpAnswer answer = http_get(port, "/metrics");
  EXPECT_EQ(answer.headers.at("content-type").rfind("text/plain", 0), 0U);
  std::set<std::string> helped;
  std::set<std::string> typed;
  std::set<std::string> series;
  std::istringstream lines(answer.body);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("# HELP ", 0) == 0) {
      EXPECT_TRUE(helped.insert(line.substr(7, line.find(' ', 7) - 7)).second) << line;
    } else if (line.rfind("# TYPE ", 0) == 0) {
      EXPECT_TRUE(typed.insert(line.substr(7, line.find(' ', 7) - 7)).second) << line;
    } else {
      EXPECT_TRUE(series.insert(line.substr(0, line.rfind(' '))).second) << line;
      char* end = nullptr;
      std::strtod(line.c_str() + line.rfind(' ') + 1, &end);
      EXPECT_EQ(*end, '\0') << line;
    }
  }
  EXPECT_EQ(helped, typed);
  for (const char* name : {"vllm:num_requests_running",
                           "vllm:num_requests_waiting",
                           "vllm:kv_cache_usage_perc",
                           "vllm:gpu_cache_usage_perc",
                           "vllm:cache_config_info",
                           "vllm:prompt_tokens_total",
                           "vllm:generation_tokens_total",
                           "vllm:num_preemptions_total",
                           "vllm:prefix_cache_queries_total",
                           "vllm:prefix_cache_hits_total",
                           "vllm:gpu_prefix_cache_hits_total",
                           "vllm:request_success_total",
                           "vllm:time_to_first_token_seconds",
                           "vllm:inter_token_latency_seconds",
                           "vllm:e2e_request_latency_seconds",
                           "vllm:request_queue_time_seconds",
                           "vllm:iteration_tokens_total",
                           "vllm:num_requests_waiting_by_reason",
                           "vllm:prompt_tokens_by_source_total",
                           "vllm:request_max_num_generation_tokens",
                           "vllm:request_prefill_kv_computed_tokens"}) {
    EXPECT_EQ(helped.count(name), 1U) << name;
  }
  EXPECT_EQ(metric("vllm:prompt_tokens_total"), 3);
  EXPECT_EQ(metric("vllm:generation_tokens_total"), 4);
  EXPECT_EQ(metric("vllm:time_to_first_token_seconds_count"), 1);
  EXPECT_EQ(metric("vllm:request_params_n_count"), 1);
  EXPECT_EQ(metric("vllm:prompt_tokens_by_source_total"), 3);
  EXPECT_EQ(metric("vllm:request_max_num_generation_tokens_count"), 1);
  EXPECT_EQ(metric("vllm:request_max_num_generation_tokens_sum"), 4);
  EXPECT_EQ(metric("vllm:request_prefill_kv_computed_tokens_sum"), 3);
  const auto bucket =
      "vllm:time_to_first_token_seconds_bucket{model_name=\"m\",engine=\"0\",le=\"+Inf\"} 1\n";
  EXPECT_NE(answer.body.find(bucket), std::string::npos);
  EXPECT_NE(answer.body.find("reason=\"a \\\"test\\\"\""),
            std::string::npos);  // labels are escaped
}

TEST_F(ServerTest, TextsToTokeniseAreLimited) {
  config.limits.max_tokenize_bytes = 1000;
  start_ready();
  EXPECT_EQ(http_post(port, "/tokenize", {{"prompt", std::string(1000, 'a')}}).status, 200);
  expect_error(http_post(port, "/tokenize", {{"prompt", std::string(1001, 'a')}}), 400, "prompt");
}

// The page may be asked for as soon as the port is open.
TEST_F(ServerTest, MetricsWhileTheServerStarts) {
  start();
  EXPECT_GE(metric("tenon:http_connections"), 1);
}

TEST_F(ServerTest, BadConfigurationsAreRefused) {
  start();
  ServerConfig second = config;
  second.port = port;
  EXPECT_EQ(Server::start(second).status().code(), StatusCode::kUnavailable);
  second = config;
  second.host = "no such host";
  EXPECT_EQ(Server::start(second).status().code(), StatusCode::kInvalidArgument);
  second = config;
  second.served_model_names.clear();
  EXPECT_EQ(Server::start(second).status().code(), StatusCode::kInvalidArgument);
  second = config;
  second.chat_template = "{% if %}";
  second.port = 0;
  auto broken = Server::start(second);
  ASSERT_TRUE(broken.ok());
  TextAssets assets;
  assets.tokenizer = std::make_shared<ByteTokenizer>();
  EXPECT_EQ((*broken)->attach(&engine, assets).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tenon::testing
