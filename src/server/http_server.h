// HTTP/1.1 without HTTP library types: requests in, answers out, whole or as a stream.
//
// Purpose:       the only door to Boost.Beast. A handler gets a complete request and an
//                HttpExchange to answer through, now or later, from any thread. While an answer is
//                outstanding the connection is watched, streamed or not: a client that goes away
//                is reported at once. Slow, silent, oversized and malformed input ends in a
//                timeout (the connection is closed) or a 4xx, without the handler ever seeing it.
// Ownership:     HttpServer owns sockets and I/O threads. An HttpExchange may outlive its
//                connection and the server; calls on it then do nothing.
// Thread safety: HttpServer and HttpExchange may be used from any thread. The handler runs on an
//                I/O thread and must return quickly.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "server/server.h"

namespace tenon {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  // "POST"
  std::string path;    // without the query
  std::string body;
  HttpHeaders headers;  // names in lower case

  // The first header of that (lower-case) name, empty if there is none.
  [[nodiscard]] std::string_view header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type;  // empty: no such header
  std::string body;
  HttpHeaders headers;
};

class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  // The whole answer. Either this once, or begin_stream() once, write() any number of times and
  // end_stream().
  virtual void respond(HttpResponse response) = 0;
  // Sends the head and head.body; `ping` is sent when the stream was silent for
  // ServerLimits::ping_interval.
  virtual void begin_stream(HttpResponse head, std::string ping) = 0;
  // Queues bytes and never blocks. More than ServerLimits::max_unsent_bytes that wait for longer
  // than slow_reader_time end the exchange.
  virtual void write(std::string_view data) = 0;
  virtual void end_stream() = 0;

  // `callback` is called once if the client goes away, or is cut off, before the answer is
  // complete; at once if that has already happened. It must not block.
  virtual void on_disconnect(std::function<void()> callback) = 0;
  // False once the client is known to be gone.
  [[nodiscard]] virtual bool connected() const = 0;
  // Runs `task` on an I/O thread; tasks of one exchange run one after the other. Dropped once the
  // exchange is over. A task that throws ends the exchange.
  virtual void post(std::function<void()> task) = 0;
};

class HttpServer {
 public:
  using Handler = std::function<void(HttpRequest request, std::shared_ptr<HttpExchange> exchange)>;
  struct Config {
    std::string host;
    uint16_t port = 0;
    int32_t io_threads = 2;
    ServerLimits limits;
    // Body of the answers that this layer gives itself (400, 413, 431, 500).
    std::function<HttpResponse(int status, std::string_view message)> make_error;
  };

  static Result<std::unique_ptr<HttpServer>> start(Config config, Handler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  [[nodiscard]] uint16_t port() const;
  [[nodiscard]] int64_t connections() const;
  [[nodiscard]] int64_t busy() const;  // connections whose answer is not complete
  // From now on every answer closes its connection.
  void disable_keep_alive();
  // Closes everything and joins the I/O threads. Exchanges that are still held become inert.
  void stop();

  struct Impl;  // known to http_server.cc alone

 private:
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tenon
