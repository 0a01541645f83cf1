// The HTTP server: OpenAI-compatible endpoints in front of an Engine.
//
// Purpose:       start() binds at once and answers /health with 503 and the loading progress;
//                attach() makes it ready; begin_drain() refuses new requests and lets the running
//                ones end; stop() ends the rest.
// Ownership:     owns its I/O and worker threads and all connections. The Engine given to attach()
//                is borrowed: it must outlive stop() (the destructor calls stop()).
// Thread safety: every member may be called from any thread. stop() blocks, the others do not.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tenon/engine.h"
#include "text/tokenizer.h"

namespace tenon {

struct ServerLimits {
  size_t max_body_bytes = size_t{16} << 20;    // a larger request body is refused with 413
  size_t max_header_bytes = size_t{64} << 10;  // 431
  int32_t max_json_depth = 128;
  // Prompts x n of one request. Not above the engine's queue, or they could never be accepted.
  int32_t max_choices = 1024;
  size_t max_tokenize_bytes = size_t{4} << 20;  // of a text for /tokenize
  int32_t max_connections = 16384;              // also kept below the limit on open files
  // Answer bytes that may wait for a slow reader. A request with more is ended, unless they have
  // waited for less than slow_reader_time: they may have been produced at once.
  size_t max_unsent_bytes = size_t{4} << 20;
  double slow_reader_time = 5;                   // seconds
  size_t send_buffer_bytes = size_t{256} << 10;  // the kernel's share of the same, per connection
  double header_timeout = 30;                    // seconds for a complete request head
  double body_timeout = 30;        // seconds for each 64 KiB of a request body, or its end
  double write_timeout = 30;       // seconds without progress of a write
  double keep_alive_timeout = 75;  // seconds a connection may wait for its next request
  double ping_interval = 15;       // seconds of silence after which a stream gets a comment line
};

struct ServerConfig {
  std::string host = "127.0.0.1";     // an address or a name
  uint16_t port = 8000;               // 0: any free port, see port()
  std::vector<std::string> api_keys;  // not empty: `Authorization: Bearer KEY` is required
  std::vector<std::string> served_model_names;  // not empty; the first one is used in answers
  std::string model_root;                       // "root" of the model card: what --model said
  std::string version = "0.1.0";                // for GET /version
  std::string chat_template;  // Jinja source that replaces the model's own; empty: the model's own
  bool allow_request_chat_template = false;  // requests may bring their own `chat_template`
  double drain_timeout = 30;  // seconds from begin_drain() until what still runs is aborted
  int32_t io_threads = 2;
  int32_t worker_threads = 4;  // JSON, templates, tokenising
  ServerLimits limits;
};

class Server {
 public:
  // Binds and listens. kUnavailable if the port is in use, kInvalidArgument for a bad host or
  // configuration.
  static Result<std::unique_ptr<Server>> start(ServerConfig config);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  [[nodiscard]] uint16_t port() const;
  [[nodiscard]] std::string url() const;  // "http://127.0.0.1:8000"

  // What /health says until attach(). done in [0, 1].
  void set_loading_progress(double done, std::string_view what);
  // Ready from here on. kInvalidArgument if ServerConfig::chat_template does not parse; a model's
  // own template that does not parse is logged and makes only chat requests fail.
  Status attach(Engine* engine, TextAssets assets);
  // New requests get 503 from now on; those that run may end within drain_timeout.
  void begin_drain();
  // No request is running any more (meant for after begin_drain()).
  [[nodiscard]] bool drained() const;
  // Aborts what still runs, closes all connections and joins all threads. Calling it again does
  // nothing.
  void stop();

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tenon
