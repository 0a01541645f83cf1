// A running Server over a FakeEngine, for tests of the endpoints.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "server/server.h"
#include "tests/server/http_client.h"
#include "tests/unit/server/byte_tokenizer.h"
#include "tests/unit/server/fake_engine.h"

namespace tenon::testing {

using nlohmann::json;

class ServerTest : public ::testing::Test {
 protected:
  // Call at the beginning of a test; `config` may be changed before.
  void start() {
    config.port = 0;
    config.served_model_names = {"m", "alias"};
    auto started = Server::start(config);
    ASSERT_TRUE(started.ok()) << started.status().message();
    server = std::move(*started);
    port = server->port();
  }
  void attach(bool adds_bos = false, const std::string& model_template = {}) {
    TextAssets assets;
    tokenizer = std::make_shared<ByteTokenizer>(adds_bos);
    assets.tokenizer = tokenizer;
    assets.chat_template = model_template;
    const Status status = server->attach(&engine, assets);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  void start_ready(bool adds_bos = false) {
    start();
    attach(adds_bos);
  }
  void TearDown() override {
    engine.release();
    if (server) server->stop();
  }

  HttpAnswer completion(json body) {
    body.emplace("model", "m");
    return http_post(port, "/v1/completions", body);
  }
  HttpAnswer chat(json body) {
    body.emplace("model", "m");
    if (!body.contains("messages"))
      body["messages"] = json::array({{{"role", "user"}, {"content", "hi"}}});
    return http_post(port, "/v1/chat/completions", body);
  }
  double metric(const std::string& name) {
    return metric_value(http_get(port, "/metrics").body, name).value_or(-1);
  }
  // The server works and nothing is left running.
  void expect_healthy() {
    EXPECT_EQ(http_get(port, "/health").status, 200);
    EXPECT_TRUE(eventually([this] { return engine.active() == 0; }));
  }

  ServerConfig config;
  FakeEngine engine;
  std::shared_ptr<ByteTokenizer> tokenizer;  // after attach()
  std::unique_ptr<Server> server;            // ends before the engine
  uint16_t port = 0;
};

// {"error": {message, type, param, code}} with the right types.
inline void expect_error(const HttpAnswer& answer, int status, const std::string& param = {}) {
  EXPECT_EQ(answer.status, status) << answer.body;
  EXPECT_EQ(answer.headers.at("content-type"), "application/json");
  const json error = answer.json().at("error");
  EXPECT_TRUE(error.at("message").is_string());
  EXPECT_TRUE(error.at("type").is_string());
  EXPECT_TRUE(error.at("code").is_null() || error.at("code").is_string());
  if (!param.empty()) {
    EXPECT_EQ(error.at("param"), param) << answer.body;
  }
}

}  // namespace tenon::testing
