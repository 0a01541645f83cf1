// The HTTP layer alone: framing, limits, time-outs, clients that go away. ROB-05 in small.
#include "server/http_server.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "tests/server/http_client.h"

namespace tenon {
namespace {

using testing::eventually;
using testing::http_get;
using testing::HttpAnswer;
using testing::HttpClient;

class HttpServerTest : public ::testing::Test {
 protected:
  void start() {
    HttpServer::Config config;
    config.host = "127.0.0.1";
    config.limits = limits;
    config.make_error = [](int status, std::string_view message) {
      return HttpResponse{status, "text/plain", std::string(message), {}};
    };
    auto started = HttpServer::start(std::move(config), [this](HttpRequest request, auto exchange) {
      handle(std::move(request), std::move(exchange));
    });
    ASSERT_TRUE(started.ok()) << started.status().message();
    server = std::move(*started);
    port = server->port();
  }
  void TearDown() override {
    held.clear();
    if (server) server->stop();
  }

  // /echo answers method and body, /hold never answers, /stream is fed by the test.
  void handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
    handled.fetch_add(1);
    if (request.path == "/echo") {
      return exchange->respond({200, "text/plain", request.method + ":" + request.body, {}});
    }
    exchange->on_disconnect([this] { gone.fetch_add(1); });
    if (request.path == "/stream")
      exchange->begin_stream({200, "text/event-stream", "", {}}, ": ping\n\n");
    std::lock_guard lock(mutex);
    held.push_back(exchange);
  }
  std::shared_ptr<HttpExchange> held_exchange() {
    EXPECT_TRUE(eventually([this] {
      std::lock_guard lock(mutex);
      return !held.empty();
    }));
    std::lock_guard lock(mutex);
    return held.back();
  }

  ServerLimits limits;
  std::unique_ptr<HttpServer> server;
  uint16_t port = 0;
  std::atomic<int> handled{0};
  std::atomic<int> gone{0};
  std::mutex mutex;
  std::vector<std::shared_ptr<HttpExchange>> held;
};

TEST_F(HttpServerTest, KeepsConnectionsAliveAndAnswersInOrder) {
  start();
  HttpClient client(port);
  for (int i = 0; i < 3; ++i) {
    const HttpAnswer answer = client.request("POST", "/echo?query=1", "body " + std::to_string(i));
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.body, "POST:body " + std::to_string(i));
    EXPECT_EQ(answer.headers.at("connection"), "keep-alive");
  }
  // Sent ahead of the answers: they wait in the connection's buffer.
  const std::string one = HttpClient::format("POST", "/echo", "x");
  client.send(one + one);
  EXPECT_EQ(client.read_answer().body, "POST:x");
  EXPECT_EQ(client.read_answer().body, "POST:x");
  EXPECT_EQ(server->connections(), 1);
}

TEST_F(HttpServerTest, ClosesWhenAskedAndForHttp10) {
  start();
  HttpClient closing(port);
  EXPECT_EQ(closing.request("GET", "/echo", "", "Connection: close\r\n").headers.at("connection"),
            "close");
  EXPECT_TRUE(closing.closed_within(2));
  HttpClient old(port);
  old.send("GET /echo HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.read_answer().body, "GET:");
  EXPECT_TRUE(old.closed_within(2));
}

TEST_F(HttpServerTest, HeadHasNoBody) {
  start();
  HttpClient client(port);
  const HttpAnswer answer = client.request("HEAD", "/echo");
  EXPECT_EQ(answer.headers.at("content-length"), "5");
  EXPECT_EQ(client.get("/echo").body, "GET:");
}

TEST_F(HttpServerTest, AnswersExpectContinue) {
  start();
  HttpClient client(port);
  client.send(
      "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.read_head().status, 100);
  client.send("abc");
  EXPECT_EQ(client.read_answer().body, "POST:abc");
}

TEST_F(HttpServerTest, ReadsChunkedBodies) {
  start();
  HttpClient client(port);
  client.send(
      "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
      "chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  EXPECT_EQ(client.read_answer().body, "POST:abcde");
}

TEST_F(HttpServerTest, Rob05RefusesMalformedAndOversizedRequests) {
  limits.max_body_bytes = 1000;
  start();
  const std::string post = "POST /echo HTTP/1.1\r\nHost: x\r\n";
  std::string many_headers = "GET /echo HTTP/1.1\r\n";
  for (int i = 0; i < 2000; ++i)
    many_headers += "X-" + std::to_string(i) + ": " + std::string(100, 'a') + "\r\n";
  const std::pair<std::string, int> rows[] = {
      {post + "Content-Length: -1\r\n\r\n", 400},
      {post + "Content-Length: 18446744073709551616\r\n\r\n", 400},
      {post + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400},
      {post + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", 400},
      {post + "Content-Length: 3x\r\n\r\nabc", 400},
      {post + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", 400},
      {post + "Bad Header\r\n\r\n", 400},
      {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 TLS, not HTTP\r\n\r\n", 400},
      {"GET /echo HTTP/9.9\r\n\r\n", 400},
      {many_headers + "\r\n", 431},
      {"GET /" + std::string(100000, 'a') + " HTTP/1.1\r\n\r\n", 431},
      {post + "Content-Length: 1001\r\n\r\n", 413},
      {post + "Transfer-Encoding: chunked\r\n\r\n7d0\r\n" + std::string(2000, 'a') +
           "\r\n0\r\n\r\n",
       413},
  };
  for (const auto& [text, status] : rows) {
    HttpClient client(port);
    client.send(text);
    EXPECT_EQ(client.read_answer().status, status) << text.substr(0, 120);
    EXPECT_TRUE(client.closed_within(3)) << text.substr(0, 120);
  }
  EXPECT_EQ(handled.load(), 0);
  EXPECT_EQ(http_get(port, "/echo").status, 200);
}

TEST_F(HttpServerTest, RefusesAHugeBodyWithoutReadingIt) {
  start();
  HttpClient client(port);
  const std::string piece(1 << 20, 'x');
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 67108864\r\n\r\n");
  int sent = 0;
  while (sent < 64 && client.send(piece)) ++sent;
  EXPECT_LT(sent, 32);
  EXPECT_EQ(client.read_answer().status, 413);
}

TEST_F(HttpServerTest, Rob05ClosesSlowClients) {
  limits.header_timeout = 0.2;
  limits.body_timeout = 0.2;
  limits.keep_alive_timeout = 0.3;
  start();
  HttpClient silent(port);
  HttpClient half_head(port);
  half_head.send("GET /echo HT");
  HttpClient half_body(port);
  half_body.send("POST /echo HTTP/1.1\r\nContent-Length: 100\r\n\r\nabc");
  HttpClient drip(port);
  drip.send("GET /echo HTTP/1.1\r\n");
  std::thread dripping([&drip] {
    for (int i = 0; i < 10 && drip.send("X"); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
  });
  HttpClient idle(port);
  EXPECT_EQ(idle.get("/echo").status, 200);
  for (HttpClient* client : {&silent, &half_head, &half_body, &drip, &idle})
    EXPECT_TRUE(client->closed_within(2));
  dripping.join();
  EXPECT_EQ(handled.load(), 1);
  EXPECT_TRUE(eventually([this] { return server->connections() == 0; }));
}

TEST_F(HttpServerTest, StreamsWithPingsWhileSilent) {
  limits.ping_interval = 0.05;
  start();
  HttpClient client(port);
  client.send(HttpClient::format("GET", "/stream"));
  EXPECT_EQ(client.read_head().headers.at("content-type"), "text/event-stream");
  const auto exchange = held_exchange();
  exchange->write("data: 1\n\n");
  EXPECT_EQ(client.next_event(), "1");
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  exchange->write("data: 2\n\n");
  EXPECT_EQ(client.next_event(), "2");
  EXPECT_GE(client.comments(), 2);
  exchange->end_stream();
  EXPECT_EQ(client.next_event(), std::nullopt);
  EXPECT_EQ(client.get("/echo").body, "GET:");  // the connection goes on
  EXPECT_EQ(gone.load(), 0);
}

TEST_F(HttpServerTest, NoticesClientsThatGoAwayStreamedOrNot) {
  start();
  int expected = 0;
  for (const char* path : {"/hold", "/stream"}) {
    for (const bool reset : {false, true}) {
      HttpClient client(port);
      client.send(HttpClient::format("GET", path));
      ASSERT_TRUE(eventually([&] { return handled.load() == expected + 1; }));
      if (reset) {
        client.reset();
      } else {
        client.close();
      }
      ++expected;
      EXPECT_TRUE(eventually([&] { return gone.load() == expected; }, 1)) << path << " " << reset;
    }
  }
  EXPECT_TRUE(eventually([this] { return server->connections() == 0 && server->busy() == 0; }));
  // Late answers to nobody, and a callback set too late.
  for (const auto& exchange : held) {
    EXPECT_FALSE(exchange->connected());
    exchange->respond({200, "", "late", {}});
    exchange->write("late");
    exchange->on_disconnect([&expected] { ++expected; });
  }
  EXPECT_EQ(expected, 8);
}

TEST_F(HttpServerTest, Rob05CutsOffReadersThatNeverRead) {
  limits.max_unsent_bytes = 1 << 20;
  limits.slow_reader_time = 0.1;
  limits.send_buffer_bytes = 16 << 10;
  start();  // with a write time-out of 30 s
  HttpClient client(port, 4096);
  client.send(HttpClient::format("GET", "/stream"));
  const auto exchange = held_exchange();
  const std::string piece(256 << 10, 'x');
  int written = 0;
  EXPECT_TRUE(eventually(
      [&] {
        exchange->write(piece);
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        return ++written >= 5 && gone.load() == 1;
      },
      2));
  EXPECT_TRUE(eventually([this] { return server->connections() == 0; }, 1));
}

TEST_F(HttpServerTest, Rob05CutsOffReadersThatStop) {
  limits.write_timeout = 0.3;
  limits.send_buffer_bytes = 16 << 10;
  start();
  HttpClient client(port, 4096);
  client.send(HttpClient::format("GET", "/stream"));
  held_exchange()->write(std::string(200 << 10, 'x'));
  EXPECT_TRUE(eventually([this] { return gone.load() == 1; }, 3));
  EXPECT_TRUE(eventually([this] { return server->connections() == 0; }, 2));
}

TEST_F(HttpServerTest, LargePiecesReachAClientThatReads) {
  limits.max_unsent_bytes = 1 << 20;
  start();
  HttpClient client(port);
  client.send(HttpClient::format("GET", "/stream"));
  client.read_head();
  const auto exchange = held_exchange();
  for (int i = 0; i < 3; ++i) exchange->write(std::string(3 << 20, 'x'));
  exchange->end_stream();
  size_t received = 0;
  while (const auto piece = client.read_chunk()) received += piece->size();
  EXPECT_EQ(received, size_t{9} << 20);
  EXPECT_EQ(gone.load(), 0);
}

TEST_F(HttpServerTest, Rob05ClosesClientsThatSendTooFarAhead) {
  start();
  HttpClient client(port);
  client.send(HttpClient::format("GET", "/hold"));
  ASSERT_TRUE(eventually([this] { return handled.load() == 1; }));
  client.send(std::string(100 << 10, 'x'));
  EXPECT_TRUE(eventually([this] { return gone.load() == 1; }, 2));
  EXPECT_TRUE(client.closed_within(2));
}

TEST_F(HttpServerTest, ATaskThatThrowsEndsItsExchangeAlone) {
  start();
  HttpClient client(port);
  client.send(HttpClient::format("GET", "/hold"));
  held_exchange()->post([] { throw std::runtime_error("broken"); });
  EXPECT_TRUE(eventually([this] { return gone.load() == 1; }, 2));
  EXPECT_TRUE(client.closed_within(2));
  EXPECT_EQ(http_get(port, "/echo").status, 200);
}

TEST_F(HttpServerTest, NamesWithSeveralAddresses) {
  HttpServer::Config config;
  config.host = "localhost";
  const auto named =
      HttpServer::start(std::move(config), [](HttpRequest, std::shared_ptr<HttpExchange>) {});
  EXPECT_TRUE(named.ok()) << named.status().message();
}

TEST_F(HttpServerTest, Rob05IdleConnectionsMakeRoomWhenTheLimitIsReached) {
  limits.max_connections = 20;
  start();
  std::vector<HttpClient> idle;
  for (int i = 0; i < 60; ++i) idle.emplace_back(port);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(http_get(port, "/echo").status, 200);
  EXPECT_LE(server->connections(), 20);
}

// Leaves the process room for `count` more descriptors while it lives.
class FewDescriptors {
 public:
  explicit FewDescriptors(int count) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const int lowest_free = dup(0);
    ::close(lowest_free);
    rlimit low = before_;
    low.rlim_cur = static_cast<rlim_t>(lowest_free + count);
    setrlimit(RLIMIT_NOFILE, &low);
  }
  ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_{};
};

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

TEST_F(HttpServerTest, Rob05WaitsForDescriptorsWithoutSpinning) {
  start();
  HttpClient busy(port);
  busy.send(HttpClient::format("GET", "/hold"));
  ASSERT_TRUE(eventually([this] { return handled.load() == 1; }));
  std::optional<HttpClient> waiting;
  {
    const FewDescriptors limit(1);
    waiting.emplace(port);  // takes the last one, so the server cannot accept it
    waiting->send(HttpClient::format("GET", "/echo"));
    const double before = cpu_seconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_LT(cpu_seconds() - before, 0.06);
    EXPECT_EQ(handled.load(), 1);
  }
  EXPECT_EQ(waiting->read_answer().status, 200);
}

TEST_F(HttpServerTest, Rob05IdleConnectionsMakeRoomWhenDescriptorsRunOut) {
  start();
  HttpClient idle(port);
  EXPECT_EQ(idle.get("/echo").status, 200);
  const FewDescriptors limit(1);
  EXPECT_EQ(http_get(port, "/echo").status, 200);
  EXPECT_TRUE(idle.closed_within(2));
}

TEST_F(HttpServerTest, PortInUseIsAClearError) {
  start();
  HttpServer::Config config;
  config.host = "127.0.0.1";
  config.port = port;
  const auto second =
      HttpServer::start(std::move(config), [](HttpRequest, std::shared_ptr<HttpExchange>) {});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(second.status().message().find(std::to_string(port)), std::string::npos);
  EXPECT_NE(second.status().message().find("in use"), std::string::npos);
}

TEST_F(HttpServerTest, StopsWithOpenConnectionsAndKeptExchanges) {
  start();
  HttpClient waiting(port);
  waiting.send(HttpClient::format("GET", "/hold"));
  HttpClient streaming(port);
  streaming.send(HttpClient::format("GET", "/stream"));
  ASSERT_TRUE(eventually([this] { return handled.load() == 2; }));
  server->stop();
  EXPECT_EQ(gone.load(), 2);
  EXPECT_TRUE(waiting.closed_within(2));
  for (const auto& exchange : held) {
    exchange->write("late");
    exchange->end_stream();
    exchange->post([] { FAIL() << "ran after stop()"; });
  }
  server.reset();
}

}  // namespace
}  // namespace tenon
