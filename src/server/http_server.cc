#include "server/http_server.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <cctype>
#include <chrono>
#include <exception>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_set>

#include "base/clock.h"
#include "base/log.h"

namespace tenon {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr size_t kReadChunk = 16 << 10;
constexpr size_t kBodyProgress = 64 << 10;   // bytes that renew the body deadline
constexpr size_t kWriteSlice = 64 << 10;     // bytes that renew the write deadline
constexpr size_t kMaxEarlyBytes = 64 << 10;  // sent by a client ahead of its answer
constexpr size_t kMaxDiscard =
    1 << 20;  // read after a refusal, so that the answer is not lost in a reset
constexpr int64_t kReservedFiles =
    48;  // descriptors that connections leave to the rest of the process
constexpr double kWarningInterval = 10;  // seconds
constexpr auto kAcceptPause = std::chrono::milliseconds(20);

std::chrono::nanoseconds to_duration(double seconds) {
  return std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
}

std::string lower_case(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

std::string chunk_of(std::string_view data) {
  return data.empty() ? std::string() : fmt::format("{:x}\r\n{}\r\n", data.size(), data);
}

// How the connection must frame the answer to one request.
struct Framing {
  bool keep_alive = true;
  bool http11 = true;
  bool head_only = false;  // answer to HEAD

  [[nodiscard]] bool chunked() const { return http11 && !head_only; }
};

std::string format_head(const HttpResponse& response,
                        const Framing& framing,
                        std::optional<size_t> content_length) {
  const auto reason = http::obsolete_reason(static_cast<http::status>(response.status));
  std::string head = fmt::format("HTTP/1.{} {} {}\r\n", framing.http11 ? 1 : 0, response.status,
                                 std::string_view(reason.data(), reason.size()));
  if (!response.content_type.empty())
    head += fmt::format("Content-Type: {}\r\n", response.content_type);
  for (const auto& [name, value] : response.headers) head += fmt::format("{}: {}\r\n", name, value);
  if (content_length) {
    head += fmt::format("Content-Length: {}\r\n", *content_length);
  } else if (framing.http11) {
    head += "Transfer-Encoding: chunked\r\n";
  }
  head += framing.keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  return head;
}

int status_of_read_error(const error_code& error) {
  if (error == http::error::header_limit || error == http::error::buffer_overflow) return 431;
  if (error == http::error::body_limit) return 413;
  const bool malformed =
      error.category() == http::make_error_code(http::error::bad_method).category() &&
      error != http::error::end_of_stream && error != http::error::partial_message;
  return malformed ? 400 : 0;  // 0: nobody to answer
}

// The state shared by whoever produces an answer and the connection that sends it.
class Exchange final : public HttpExchange, public std::enable_shared_from_this<Exchange> {
 public:
  // What the connection is to send next.
  struct Output {
    std::optional<HttpResponse> head;
    std::string ping;  // with the head of a stream
    bool streamed = false;
    std::string data;
    bool finished = false;
    bool cut_off = false;  // the reader was too slow, or the answer cannot be made
  };

  Exchange(asio::any_io_executor executor, const ServerLimits& limits, std::function<void()> wake)
      : executor_(std::move(executor)),
        max_unsent_(limits.max_unsent_bytes),
        slow_reader_time_(limits.slow_reader_time),
        wake_(std::move(wake)) {}

  void respond(HttpResponse response) override {
    std::lock_guard lock(mutex_);
    next_.head = std::move(response);
    next_.finished = true;
    notify();
  }

  void begin_stream(HttpResponse head, std::string ping) override {
    std::lock_guard lock(mutex_);
    next_.data = std::move(head.body);
    next_.head = std::move(head);
    next_.ping = std::move(ping);
    next_.streamed = true;
    notify();
  }

  void write(std::string_view data) override {
    std::function<void()> callback;
    {
      std::lock_guard lock(mutex_);
      if (!executor_ || next_.cut_off) return;
      if (reads_too_slowly()) {
        callback = cut_off();
      } else {
        next_.data += data;
        if (!too_much_since_ && next_.data.size() > max_unsent_) too_much_since_ = now_seconds();
        notify();
      }
    }
    if (callback) callback();
  }

  void end_stream() override {
    std::lock_guard lock(mutex_);
    next_.finished = true;
    notify();
  }

  void on_disconnect(std::function<void()> callback) override {
    {
      std::lock_guard lock(mutex_);
      if (!disconnected_ && !next_.cut_off) {
        on_disconnect_ = std::move(callback);
        return;
      }
    }
    callback();
  }

  [[nodiscard]] bool connected() const override {
    std::lock_guard lock(mutex_);
    return !disconnected_ && !next_.cut_off;
  }

  void post(std::function<void()> task) override {
    std::lock_guard lock(mutex_);
    if (!executor_) return;
    asio::post(*executor_, [self = shared_from_this(), task = std::move(task)] {
      try {
        task();
      } catch (const std::exception& e) {
        log_error("http: a task of an exchange failed: {}", e.what());
        self->fail();
      }
    });
  }

  // Connection side.
  Output take() {
    std::lock_guard lock(mutex_);
    notified_ = false;
    too_much_since_.reset();
    Output taken = std::exchange(next_, Output());
    next_.streamed = taken.streamed;
    next_.cut_off = taken.cut_off;
    return taken;
  }

  [[nodiscard]] bool is_cut_off() const {
    std::lock_guard lock(mutex_);
    return next_.cut_off;
  }

  // The answer is complete, or nobody is left to read it. Lets go of the I/O context, which may die
  // before this.
  void close(bool completed) {
    std::function<void()> callback;
    {
      std::lock_guard lock(mutex_);
      executor_.reset();
      wake_ = nullptr;
      disconnected_ = !completed;
      callback = std::exchange(on_disconnect_, nullptr);
    }
    if (callback && !completed) callback();
  }

 private:
  // What was written a moment ago says nothing about the reader: a single event may be large.
  [[nodiscard]] bool reads_too_slowly() const {
    return too_much_since_ && now_seconds() - *too_much_since_ > slow_reader_time_;
  }

  // Ends the exchange; returns what is to be called without the lock.
  std::function<void()> cut_off() {
    next_ = Output();
    next_.cut_off = true;
    asio::post(*executor_, wake_);  // whether or not one is under way: it may wait for a write
    return std::exchange(on_disconnect_, nullptr);
  }

  void fail() {
    std::function<void()> callback;
    {
      std::lock_guard lock(mutex_);
      if (!executor_ || next_.cut_off) return;
      callback = cut_off();
    }
    if (callback) callback();
  }

  void notify() {
    if (!executor_ || notified_) return;
    notified_ = true;
    asio::post(*executor_, wake_);
  }

  mutable std::mutex mutex_;
  // The connection's strand; empty once the exchange is over.
  std::optional<asio::any_io_executor> executor_;
  const size_t max_unsent_;
  const double slow_reader_time_;
  std::optional<double> too_much_since_;  // more than max_unsent_ is waiting
  std::function<void()> wake_;
  std::function<void()> on_disconnect_;
  Output next_;
  bool notified_ = false;
  bool disconnected_ = false;
};

class Connection;

// Connections that wait for a request, the longest waiting first: those go when descriptors run
// out.
class IdleList {
 public:
  using Position = std::list<Connection*>::iterator;
  Position add(Connection* connection) {
    std::lock_guard lock(mutex_);
    return list_.insert(list_.end(), connection);
  }
  void remove(Position position) {
    std::lock_guard lock(mutex_);
    list_.erase(position);
  }
  void evict_oldest();

 private:
  std::mutex mutex_;
  std::list<Connection*> list_;
};

enum class Accepted { kGoOn, kPause, kEnd };

}  // namespace

struct HttpServer::Impl {
  Impl(Config c, Handler h) : config(std::move(c)), handler(std::move(h)) {}

  asio::awaitable<void> accept_loop();
  asio::awaitable<Accepted> accept_one();
  void warn_about_accept(std::string_view reason);
  void forget(Connection* connection) {
    std::lock_guard lock(connections_mutex);
    live.erase(connection);
    open.fetch_sub(1);
  }

  Config config;
  Handler handler;
  std::atomic<bool> keep_alive{true};
  std::atomic<int64_t> open{0};
  std::atomic<int64_t> busy{0};
  int64_t max_open = 0;
  IdleList idle;
  std::mutex connections_mutex;
  std::unordered_set<Connection*> live;
  uint16_t port = 0;
  std::unique_ptr<asio::io_context> io;
  std::optional<tcp::acceptor> acceptor;
  double next_warning = 0;  // of the accept loop
  std::vector<std::thread> threads;
  std::once_flag stopped;
};

namespace {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, HttpServer::Impl& server)
      : server_(server),
        limits_(server.config.limits),
        stream_(std::move(socket)),
        wake_(stream_.get_executor()) {
    std::lock_guard lock(server_.connections_mutex);
    server_.live.insert(this);
    server_.open.fetch_add(1);
  }
  ~Connection() {
    end_exchange(false);
    leave_idle();
    server_.forget(this);
  }

  void start() {
    error_code ignored;
    stream_.socket().set_option(tcp::no_delay(true), ignored);
    stream_.socket().set_option(asio::socket_base::keep_alive(true), ignored);
    stream_.socket().set_option(
        asio::socket_base::send_buffer_size(static_cast<int>(limits_.send_buffer_bytes)), ignored);
    asio::co_spawn(
        stream_.get_executor(), [self = shared_from_this()] { return self->run(); },
        [self = shared_from_this()](const std::exception_ptr& error) { self->ended(error); });
  }

  // Called on any thread: closes the connection if it still waits for a request.
  void evict() {
    asio::post(stream_.get_executor(), [self = shared_from_this()] {
      if (self->idle_position_) self->stream_.close();
    });
  }

  // Called once no I/O thread runs any more.
  void abandon() { end_exchange(false); }

 private:
  asio::awaitable<void> run() {
    for (bool first = true; co_await serve_one(first); first = false) {
    }
    error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
    stream_.close();
  }

  void ended(const std::exception_ptr& error) {
    end_exchange(false);
    if (!error) return;
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& e) {
      log_error("http: connection ended by an exception: {}", e.what());
    } catch (...) {
      log_error("http: connection ended by an unknown exception");
    }
  }

  // Reads one request and sends its answer. False: the connection is over.
  asio::awaitable<bool> serve_one(bool first) {
    if (!co_await wait_for_bytes(first)) co_return false;
    http::request_parser<http::string_body> parser;
    parser.header_limit(static_cast<uint32_t>(limits_.max_header_bytes));
    parser.body_limit(limits_.max_body_bytes);
    if (const error_code error = co_await read_request(parser)) {
      const int status = status_of_read_error(error);
      if (status != 0) co_await refuse(status, error.message());
      co_return false;
    }
    Framing framing;
    HttpRequest request = to_request(parser.release(), framing);
    start_exchange();
    try {
      server_.handler(std::move(request), exchange_);
    } catch (const std::exception& e) {
      log_error("http: handler failed: {}", e.what());
      exchange_->respond(server_.config.make_error(500, "internal error"));
    }
    const bool completed = co_await send_answer(framing);
    end_exchange(completed);
    if (!completed) co_return false;
    co_await stop_watching();
    co_return framing.keep_alive && !gone_;
  }

  asio::awaitable<bool> wait_for_bytes(bool first) {
    if (buffer_.size() > 0) co_return true;
    idle_position_ = server_.idle.add(this);
    stream_.expires_after(to_duration(first ? limits_.header_timeout : limits_.keep_alive_timeout));
    const auto [error, count] =
        co_await stream_.async_read_some(buffer_.prepare(kReadChunk), kAwait);
    leave_idle();
    buffer_.commit(count);
    co_return !error;
  }

  void leave_idle() {
    if (!idle_position_) return;
    server_.idle.remove(*idle_position_);
    idle_position_.reset();
  }

  asio::awaitable<error_code> read_request(http::request_parser<http::string_body>& parser) {
    stream_.expires_after(to_duration(limits_.header_timeout));
    const auto [head_error, head_bytes] =
        co_await http::async_read_header(stream_, buffer_, parser, kAwait);
    if (head_error) co_return head_error;
    if (!parser.is_done() && beast::iequals(parser.get()[http::field::expect], "100-continue")) {
      if (!co_await write_all("HTTP/1.1 100 Continue\r\n\r\n"))
        co_return asio::error::connection_aborted;
    }
    size_t progress = kBodyProgress;  // so that the first round sets the deadline
    while (!parser.is_done()) {
      if (progress >= kBodyProgress) {
        stream_.expires_after(to_duration(limits_.body_timeout));
        progress = 0;
      }
      const auto [error, count] = co_await http::async_read_some(stream_, buffer_, parser, kAwait);
      if (error) co_return error;
      progress += count;
    }
    co_return error_code();
  }

  HttpRequest to_request(http::request<http::string_body> message, Framing& framing) const {
    framing.http11 = message.version() >= 11;
    framing.keep_alive = message.keep_alive() && server_.keep_alive.load();
    framing.head_only = message.method() == http::verb::head;
    HttpRequest request;
    request.method = std::string(message.method_string());
    const std::string_view target(message.target().data(), message.target().size());
    request.path = std::string(target.substr(0, target.find_first_of("?#")));
    for (const auto& field : message) {
      const auto name = field.name_string();
      request.headers.emplace_back(lower_case({name.data(), name.size()}),
                                   std::string(field.value()));
    }
    request.body = std::move(message.body());
    return request;
  }

  void start_exchange() {
    gone_ = false;
    stop_watching_ = false;
    exchange_ =
        std::make_shared<Exchange>(stream_.get_executor(), limits_, [weak = weak_from_this()] {
          if (const auto self = weak.lock()) self->wake();
        });
    server_.busy.fetch_add(1);
    watch();
  }

  void wake() {
    wake_.cancel();
    if (exchange_ && exchange_->is_cut_off()) stream_.close();  // ends a write that is stuck
  }

  void end_exchange(bool completed) {
    if (!exchange_) return;
    exchange_->close(completed);
    exchange_.reset();
    server_.busy.fetch_sub(1);
  }

  // Keeps a read pending while the answer is made: end of file or an error means that nobody waits
  // for it any more. Bytes that arrive belong to the next request; a client that sends more than
  // those is cut off, for without reading on nobody would notice that it goes away.
  void watch() {
    if (stop_watching_) return;
    if (buffer_.size() >= kMaxEarlyBytes) {
      gone_ = true;
      return;
    }
    watching_ = true;
    stream_.socket().async_read_some(
        buffer_.prepare(kReadChunk),
        [self = shared_from_this()](const error_code& error, size_t count) {
          self->watched(error, count);
        });
  }

  void watched(const error_code& error, size_t count) {
    watching_ = false;
    buffer_.commit(count);
    if (!error) {
      watch();
      if (watching_) return;
    } else if (error != asio::error::operation_aborted) {
      gone_ = true;
    }
    wake_.cancel();
  }

  asio::awaitable<void> stop_watching() {
    stop_watching_ = true;
    if (watching_) {
      error_code ignored;
      stream_.socket().cancel(ignored);
    }
    while (watching_) co_await sleep(std::chrono::hours(1));
  }

  // Sleeps until wake_ is cancelled or the time is over.
  asio::awaitable<void> sleep(std::chrono::nanoseconds duration) {
    wake_.expires_after(duration);
    co_await wake_.async_wait(kAwait);
  }

  // True: the answer was sent completely.
  asio::awaitable<bool> send_answer(Framing& framing) {
    std::string ping;
    auto last_write = std::chrono::steady_clock::now();
    for (;;) {
      Exchange::Output output = exchange_->take();
      if (gone_ || output.cut_off) co_return false;
      std::string bytes;
      if (output.head) {
        framing.keep_alive = framing.keep_alive && server_.keep_alive.load();
        if (output.streamed) {
          ping = std::move(output.ping);
          if (!framing.http11)
            framing.keep_alive = false;  // the end of the connection is the end of the body
          bytes = format_head(*output.head, framing, std::nullopt);
        } else {
          bytes = format_head(*output.head, framing, output.head->body.size());
          if (!framing.head_only) bytes += output.head->body;
        }
      }
      if (output.streamed && !framing.head_only) {
        bytes += framing.chunked() ? chunk_of(output.data) : output.data;
        if (output.finished && framing.chunked()) bytes += "0\r\n\r\n";
      }
      if (!bytes.empty()) {
        if (!co_await write_all(bytes)) co_return false;
        last_write = std::chrono::steady_clock::now();
      }
      if (output.finished) co_return true;
      if (!bytes.empty()) continue;
      if (!output.streamed) {
        co_await sleep(std::chrono::hours(1));
        continue;
      }
      const auto silent = std::chrono::steady_clock::now() - last_write;
      const auto interval = to_duration(limits_.ping_interval);
      if (silent < interval) {
        co_await sleep(interval - silent);
      } else {
        exchange_->write(ping);
        last_write = std::chrono::steady_clock::now();
      }
    }
  }

  asio::awaitable<bool> write_all(std::string_view bytes) {
    size_t progress = kWriteSlice;
    while (!bytes.empty()) {
      if (progress >= kWriteSlice) {
        stream_.expires_after(to_duration(limits_.write_timeout));
        progress = 0;
      }
      const auto slice = bytes.substr(0, kWriteSlice);
      const auto [error, count] =
          co_await stream_.async_write_some(asio::buffer(slice.data(), slice.size()), kAwait);
      if (error) co_return false;
      bytes.remove_prefix(count);
      progress += count;
    }
    stream_.expires_never();
    co_return true;
  }

  // Answers and closes. What the client still sends is read for a moment: closing with unread bytes
  // would reset the connection and could lose the answer.
  asio::awaitable<void> refuse(int status, std::string_view message) {
    const HttpResponse response = server_.config.make_error(status, message);
    Framing framing;
    framing.keep_alive = false;
    const std::string bytes = format_head(response, framing, response.body.size()) + response.body;
    if (!co_await write_all(bytes)) co_return;
    error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    stream_.expires_after(std::chrono::seconds(1));
    std::string sink(kReadChunk, '\0');
    for (size_t total = 0; total < kMaxDiscard;) {
      const auto [error, count] = co_await stream_.async_read_some(asio::buffer(sink), kAwait);
      if (error) co_return;
      total += count;
    }
  }

  HttpServer::Impl& server_;
  const ServerLimits& limits_;
  beast::tcp_stream stream_;
  asio::steady_timer wake_;
  beast::flat_buffer buffer_;
  std::shared_ptr<Exchange> exchange_;
  std::optional<IdleList::Position> idle_position_;
  bool watching_ = false;
  bool stop_watching_ = false;
  bool gone_ = false;  // the client closed its side or reset the connection
};

void IdleList::evict_oldest() {
  std::shared_ptr<Connection> oldest;  // outlives the lock: its destructor takes it
  {
    std::lock_guard lock(mutex_);
    for (auto it = list_.begin(); it != list_.end() && !oldest; ++it)
      oldest = (*it)->weak_from_this().lock();
  }
  if (oldest) oldest->evict();
}

error_code listen_on(tcp::acceptor& acceptor, const tcp::endpoint& endpoint) {
  error_code error;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  return error;
}

// On the first address of `host` that this machine can listen on: a name may have several, and some
// of them no interface. A port in use is an error all the same.
Result<tcp::acceptor> open_acceptor(asio::io_context& io, const std::string& host, uint16_t port) {
  error_code error;
  tcp::resolver resolver(io);
  const auto endpoints =
      resolver.resolve(host, std::to_string(port), tcp::resolver::passive, error);
  if (error || endpoints.empty()) {
    return invalid_argument("cannot resolve the address '{}' to listen on: {}", host,
                            error.message());
  }
  for (const auto& entry : endpoints) {
    tcp::acceptor acceptor(io);
    error = listen_on(acceptor, entry.endpoint());
    if (!error) return acceptor;
    if (error == asio::error::address_in_use) break;
  }
  if (error == asio::error::address_in_use) {
    return make_status(StatusCode::kUnavailable,
                       "port {} on {} is in use by another program; choose another one with "
                       "--port, or 0 for any free port",
                       port, host);
  }
  return invalid_argument("cannot listen on {}:{}: {}", host, port, error.message());
}

// Work of one connection that fails must not end the thread that serves all of them.
void run_io(asio::io_context& io) {
  for (;;) {
    try {
      io.run();
      return;
    } catch (const std::exception& e) {
      log_error("http: {}", e.what());
    } catch (...) {
      log_error("http: an unknown exception");
    }
  }
}

// Raises the soft limit on open files to the hard one; returns it.
int64_t raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  if (limit.rlim_cur < limit.rlim_max) {
    rlimit raised = limit;
    raised.rlim_cur = raised.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  constexpr rlim_t kEnough = 1 << 20;
  return static_cast<int64_t>(std::min(limit.rlim_cur, kEnough));
}

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

asio::awaitable<void> HttpServer::Impl::accept_loop() {
  asio::steady_timer pause(*io);
  for (;;) {
    Accepted result = Accepted::kPause;
    try {
      result = co_await accept_one();
    } catch (const std::exception& e) {
      warn_about_accept(e.what());
    }
    if (result == Accepted::kEnd) co_return;
    if (result == Accepted::kGoOn) continue;
    // No descriptors or memory: an idle connection has to go; without a pause this loop would spin.
    idle.evict_oldest();
    pause.expires_after(kAcceptPause);
    co_await pause.async_wait(kAwait);
  }
}

asio::awaitable<Accepted> HttpServer::Impl::accept_one() {
  if (open.load() >= max_open) co_return Accepted::kPause;
  auto [error, socket] = co_await acceptor->async_accept(asio::make_strand(*io), kAwait);
  if (error == asio::error::operation_aborted) co_return Accepted::kEnd;
  if (error == asio::error::connection_aborted) co_return Accepted::kGoOn;
  if (error) {
    warn_about_accept(error.message());
    co_return Accepted::kPause;
  }
  std::make_shared<Connection>(std::move(socket), *this)->start();
  co_return Accepted::kGoOn;
}

void HttpServer::Impl::warn_about_accept(std::string_view reason) {
  if (now_seconds() < next_warning) return;
  log_warning("http: cannot accept a connection: {}", reason);
  next_warning = now_seconds() + kWarningInterval;
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(Config config, Handler handler) {
  auto impl = std::make_unique<Impl>(std::move(config), std::move(handler));
  impl->max_open = std::max<int64_t>(1, std::min<int64_t>(impl->config.limits.max_connections,
                                                          raise_file_limit() - kReservedFiles));
  impl->io = std::make_unique<asio::io_context>(impl->config.io_threads);
  TENON_ASSIGN_OR_RETURN(impl->acceptor,
                         open_acceptor(*impl->io, impl->config.host, impl->config.port));
  impl->port = impl->acceptor->local_endpoint().port();
  asio::co_spawn(*impl->io, impl->accept_loop(), asio::detached);
  for (int32_t i = 0; i < std::max(1, impl->config.io_threads); ++i) {
    impl->threads.emplace_back([io = impl->io.get()] { run_io(*io); });
  }
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() {
  stop();
}

uint16_t HttpServer::port() const {
  return impl_->port;
}
int64_t HttpServer::connections() const {
  return impl_->open.load();
}
int64_t HttpServer::busy() const {
  return impl_->busy.load();
}
void HttpServer::disable_keep_alive() {
  impl_->keep_alive.store(false);
}

void HttpServer::stop() {
  std::call_once(impl_->stopped, [this] {
    impl_->io->stop();
    for (std::thread& thread : impl_->threads) thread.join();
    std::vector<Connection*> left;
    {
      std::lock_guard lock(impl_->connections_mutex);
      left.assign(impl_->live.begin(), impl_->live.end());
    }
    for (Connection* connection : left) connection->abandon();
    impl_->acceptor.reset();
    impl_->io.reset();  // destroys what is still suspended, and with it the connections
  });
}

}  // namespace tenon
