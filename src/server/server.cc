#include "server/server.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "server/app.h"
#include "server/errors.h"
#include "server/http_server.h"
#include "text/chat_prompt.h"

namespace tenon {
namespace {

// How long stop() waits for the engine to confirm aborts and for last answers to be written.
constexpr auto kStopPatience = std::chrono::seconds(3);
constexpr auto kPoll = std::chrono::milliseconds(2);

size_t longest_token(const Tokenizer& tokenizer) {
  size_t longest = 1;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    longest = std::max(longest, tokenizer.token_bytes(id).size());
  return longest;
}

// The template to use: the configured one, the model's own, or ChatML if the vocabulary knows its
// tokens.
Status set_chat_template(const ServerConfig& config, const TextAssets& assets, ServedModel& model) {
  auto parsed = choose_chat_template(assets, config.chat_template);
  if (parsed.ok()) {
    model.chat_template = *parsed;
    return ok_status();
  }
  if (!config.chat_template.empty()) return parsed.status().with_context("chat template");
  if (parsed.status().code() == StatusCode::kNotFound) {
    model.chat_template_problem = "this model has no chat template; give one with --chat-template";
    return ok_status();
  }
  model.chat_template_problem =
      fmt::format("the model's chat template cannot be used: {}", parsed.status().message());
  log_warning("{}; chat requests will be refused", model.chat_template_problem);
  return ok_status();
}

}  // namespace

struct Server::Impl {
  explicit Impl(ServerConfig c) : config(std::move(c)), app(config) {}

  [[nodiscard]] bool quiet() {
    return app.in_workers() == 0 && app.generations().size() == 0 && http->busy() == 0;
  }
  void wait_until_quiet() {
    const auto deadline = std::chrono::steady_clock::now() + kStopPatience;
    while (!quiet() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(kPoll);
  }
  void cancel_after_timeout() {
    std::unique_lock lock(mutex);
    const auto timeout = std::chrono::duration<double>(config.drain_timeout);
    if (stop_requested.wait_for(lock, timeout, [this] { return stopping; })) return;
    app.generations().cancel_all(
        make_status(StatusCode::kUnavailable, "the server is shutting down"));
  }

  const ServerConfig config;
  App app;
  std::unique_ptr<HttpServer> http;
  std::mutex mutex;
  std::condition_variable stop_requested;
  bool stopping = false;
  bool draining = false;
  std::thread drain_timer;
  std::once_flag stopped;
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() {
  stop();
}

Result<std::unique_ptr<Server>> Server::start(ServerConfig config) {
  if (config.served_model_names.empty())
    return invalid_argument("the server needs a name for the model");
  auto impl = std::make_unique<Impl>(std::move(config));
  HttpServer::Config http;
  http.host = impl->config.host;
  http.port = impl->config.port;
  http.io_threads = impl->config.io_threads;
  http.limits = impl->config.limits;
  http.make_error = [](int status, std::string_view message) {
    return error_response(status, message);
  };
  auto started =
      HttpServer::start(std::move(http), [app = &impl->app](HttpRequest request, auto exchange) {
        app->handle(std::move(request), std::move(exchange));
      });
  if (!started.ok()) return started.status();
  impl->http = std::move(*started);
  impl->app.set_connections([server = impl->http.get()] { return server->connections(); });
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

uint16_t Server::port() const {
  return impl_->http->port();
}

std::string Server::url() const {
  const std::string& host = impl_->config.host;
  const bool ipv6 = host.find(':') != std::string::npos;
  return fmt::format("http://{}{}{}:{}", ipv6 ? "[" : "", host, ipv6 ? "]" : "", port());
}

void Server::set_loading_progress(double done, std::string_view what) {
  impl_->app.set_loading_progress(done, what);
}

Status Server::attach(Engine* engine, TextAssets assets) {
  auto model = std::make_shared<ServedModel>();
  model->engine = engine;
  model->tokenizer = assets.tokenizer;
  TENON_RETURN_IF_ERROR(set_chat_template(impl_->config, assets, *model));
  model->allow_request_chat_template = impl_->config.allow_request_chat_template;
  model->names = impl_->config.served_model_names;
  model->root = impl_->config.model_root;
  model->created = static_cast<int64_t>(std::time(nullptr));
  model->max_token_bytes = longest_token(*assets.tokenizer);
  impl_->app.set_model(std::move(model));
  return ok_status();
}

void Server::begin_drain() {
  std::lock_guard lock(impl_->mutex);
  if (impl_->draining || impl_->stopping) return;
  impl_->draining = true;
  impl_->app.begin_drain();
  impl_->http->disable_keep_alive();
  impl_->drain_timer = std::thread([impl = impl_.get()] { impl->cancel_after_timeout(); });
}

bool Server::drained() const {
  return impl_->quiet();
}

void Server::stop() {
  std::call_once(impl_->stopped, [impl = impl_.get()] {
    {
      std::lock_guard lock(impl->mutex);
      impl->stopping = true;
    }
    impl->stop_requested.notify_all();
    if (impl->drain_timer.joinable()) impl->drain_timer.join();
    impl->app.begin_drain();
    impl->app.stop_workers();  // no new generations after this
    impl->app.generations().cancel_all(
        make_status(StatusCode::kUnavailable, "the server is shutting down"));
    impl->wait_until_quiet();
    impl->http->stop();
  });
}

}  // namespace tenon
