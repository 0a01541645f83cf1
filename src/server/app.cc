#include "server/app.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <exception>

#include "base/log.h"
#include "server/errors.h"

namespace tenon {
namespace {

// Requests that may wait for a worker thread before more are refused with 429.
constexpr size_t kMaxWaitingForWorker = 4096;

enum class Endpoint {
  kHealth,
  kVersion,
  kLoad,
  kMetrics,
  kModels,
  kCompletions,
  kChat,
  kTokenize,
  kDetokenize
};

// Time depends on the length of `given` alone.
bool same_secret(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() == secret.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    const char expected = secret.empty() ? '\0' : secret[i % secret.size()];
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(expected);
  }
  return difference == 0;
}

bool begins_with(std::string_view text, std::string_view lower_case_prefix) {
  return text.size() >= lower_case_prefix.size() &&
         std::equal(
             lower_case_prefix.begin(), lower_case_prefix.end(), text.begin(),
             [](char a, char b) { return a == std::tolower(static_cast<unsigned char>(b)); });
}

bool is_json(std::string_view content_type) {
  constexpr std::string_view kJson = "application/json";
  if (!begins_with(content_type, kJson)) return false;
  content_type.remove_prefix(kJson.size());
  return content_type.empty() || content_type.front() == ';' || content_type.front() == ' ';
}

HttpResponse text_response(std::string content_type, std::string body) {
  HttpResponse response;
  response.content_type = std::move(content_type);
  response.body = std::move(body);
  return response;
}

}  // namespace

struct App::LeaveWorkers {
  std::atomic<int64_t>& count;
  ~LeaveWorkers() { count.fetch_sub(1); }
};

struct App::Route {
  std::string_view path;
  bool post;
  bool open;  // no key needed
  Endpoint endpoint;
};

const App::Route* App::find_route(std::string_view path) {
  static constexpr std::array<Route, 9> kRoutes = {{
      {"/health", false, true, Endpoint::kHealth},
      {"/version", false, true, Endpoint::kVersion},
      {"/metrics", false, true, Endpoint::kMetrics},
      {"/load", false, false, Endpoint::kLoad},
      {"/v1/models", false, false, Endpoint::kModels},
      {"/v1/completions", true, false, Endpoint::kCompletions},
      {"/v1/chat/completions", true, false, Endpoint::kChat},
      {"/tokenize", true, false, Endpoint::kTokenize},
      {"/detokenize", true, false, Endpoint::kDetokenize},
  }};
  const auto* found =
      std::find_if(kRoutes.begin(), kRoutes.end(), [&](const Route& r) { return r.path == path; });
  return found == kRoutes.end() ? nullptr : found;
}

App::App(const ServerConfig& config)
    : config_(config),
      workers_(std::make_shared<WorkerPool>(config.worker_threads, kMaxWaitingForWorker)) {}

void App::set_loading_progress(double done, std::string_view what) {
  std::lock_guard lock(mutex_);
  loading_done_ = done;
  loading_what_ = what;
}

void App::set_model(std::shared_ptr<const ServedModel> model) {
  std::lock_guard lock(mutex_);
  model_ = std::move(model);
}

void App::set_connections(std::function<int64_t()> count) {
  std::lock_guard lock(mutex_);
  count_connections_ = std::move(count);
}

void App::stop_workers() {
  stopping_.store(true);
  workers_->stop();
}

std::shared_ptr<const ServedModel> App::model() const {
  std::lock_guard lock(mutex_);
  return model_;
}

bool App::authorised(const HttpRequest& request) const {
  if (config_.api_keys.empty()) return true;
  const std::string_view header = request.header("authorization");
  constexpr std::string_view kScheme = "bearer ";
  if (!begins_with(header, kScheme)) return false;
  bool found = false;
  for (const std::string& key : config_.api_keys)
    found |= same_secret(header.substr(kScheme.size()), key);
  return found;
}

void App::handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  const Route* route = find_route(request.path);
  if (route == nullptr) {
    return exchange->respond(error_response(404, "there is nothing at this path", "not_found"));
  }
  const bool method_fits =
      route->post ? request.method == "POST" : request.method == "GET" || request.method == "HEAD";
  if (!method_fits) {
    HttpResponse response =
        error_response(405, "this path does not take that method", "method_not_allowed");
    response.headers.emplace_back("Allow", route->post ? "POST" : "GET, HEAD");
    return exchange->respond(std::move(response));
  }
  if (!route->open && !authorised(request)) {
    HttpResponse response = error_response(
        401, "a valid API key is needed: Authorization: Bearer KEY", "invalid_api_key");
    response.headers.emplace_back("WWW-Authenticate", "Bearer");
    return exchange->respond(std::move(response));
  }
  // Also what keeps web pages of other origins from using a server on the visitor's own machine.
  if (route->post && !is_json(request.header("content-type"))) {
    return exchange->respond(
        error_response(415, "the Content-Type must be application/json", "unsupported_media_type"));
  }
  dispatch(*route, std::move(request), exchange);
}

void App::dispatch(const Route& route, HttpRequest request, const Exchange& exchange) {
  switch (route.endpoint) {
    case Endpoint::kHealth: return health(exchange);
    case Endpoint::kVersion: return version(exchange);
    case Endpoint::kLoad: return load(exchange);
    case Endpoint::kMetrics: return metrics(exchange);
    case Endpoint::kModels:
    case Endpoint::kCompletions:
    case Endpoint::kChat:
    case Endpoint::kTokenize:
    case Endpoint::kDetokenize: break;
  }
  const auto served = model();
  if (!served) return exchange->respond(error_response(503, "Loading model", "loading"));
  if (route.endpoint == Endpoint::kModels)
    return exchange->respond(json_response(200, model_list(*served)));
  if (draining_.load())
    return exchange->respond(error_response(503, "the server is shutting down", "draining"));
  auto shared_request = std::make_shared<const HttpRequest>(std::move(request));
  in_workers_.fetch_add(1);
  const bool accepted = workers_->submit([this, &route, served, shared_request, exchange] {
    const ApiContext context{{served, registry_, counters_}, workers_, config_.limits};
    const LeaveWorkers leave{in_workers_};
    run(route, context, *shared_request, exchange);
  });
  if (accepted) return;
  in_workers_.fetch_sub(1);
  exchange->respond(error_response(429, "too many requests are waiting", "queue_full"));
}

// On a worker thread.
void App::run(const Route& route,
              const ApiContext& context,
              const HttpRequest& request,
              const Exchange& exchange) {
  if (!exchange->connected()) return;
  if (stopping_.load())
    return exchange->respond(error_response(503, "the server is shutting down", "draining"));
  const auto answer = [&exchange](const Result<OrderedJson>& result) {
    exchange->respond(result.ok() ? json_response(200, *result) : error_response(result.status()));
  };
  try {
    Status status;
    if (route.endpoint == Endpoint::kCompletions) {
      status = handle_completion(context, request, exchange);
    } else if (route.endpoint == Endpoint::kChat) {
      status = handle_chat(context, request, exchange);
    } else {
      answer(route.endpoint == Endpoint::kTokenize ? handle_tokenize(context, request)
                                                   : handle_detokenize(context, request));
    }
    if (!status.ok()) exchange->respond(error_response(status));
  } catch (const std::exception& e) {
    log_error("{}: {}", request.path, e.what());
    exchange->respond(error_response(500, "internal error"));
  }
}

void App::health(const Exchange& exchange) {
  const auto served = model();
  if (!served) {
    OrderedJson body = error_json(503, "Loading model", {}, "loading");
    std::lock_guard lock(mutex_);
    body["status"] = "loading";
    body["progress"] = loading_done_;
    body["what"] = loading_what_;
    return exchange->respond(json_response(503, body));
  }
  if (!served->engine->healthy()) {
    return exchange->respond(
        error_response(503, "the engine has stopped because of a failure", "engine_dead"));
  }
  if (draining_.load())
    return exchange->respond(error_response(503, "the server is shutting down", "draining"));
  exchange->respond(HttpResponse());
}

void App::version(const Exchange& exchange) {
  exchange->respond(json_response(200, {{"version", config_.version}}));
}

void App::load(const Exchange& exchange) {
  exchange->respond(json_response(200, {{"server_load", registry_->size()}}));
}

void App::metrics(const Exchange& exchange) {
  MetricsInput input;
  input.version = config_.version;
  {
    std::lock_guard lock(mutex_);
    input.connections = count_connections_ ? count_connections_() : 0;
  }
  input.counters = counters_->snapshot();
  const auto served = model();
  if (served) {
    input.engine = served->engine;
    input.model_name = served->names.front();
  }
  exchange->respond(
      text_response("text/plain; version=0.0.4; charset=utf-8", render_metrics(input)));
}

}  // namespace tenon
