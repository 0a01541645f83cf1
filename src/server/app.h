// Routes, keys and the life cycle: loading, ready, draining. Answers the cheap endpoints itself and
// hands the rest to worker threads.
//
// Ownership:     owned by Server, beside the HttpServer that calls handle(). stop_workers() before
//                destruction.
// Thread safety: every member may be called from any thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "server/api.h"
#include "server/http_server.h"
#include "server/server.h"

namespace tenon {

class App {
 public:
  explicit App(const ServerConfig& config);

  // On an I/O thread; never waits.
  void handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange);

  void set_loading_progress(double done, std::string_view what);
  void set_model(std::shared_ptr<const ServedModel> model);
  void begin_drain() { draining_.store(true); }
  // Requests may be running already.
  void set_connections(std::function<int64_t()> count);
  [[nodiscard]] GenerationRegistry& generations() { return *registry_; }
  // Requests that a worker has, or that wait for one.
  [[nodiscard]] int64_t in_workers() const { return in_workers_.load(); }
  // What waits for a worker is answered with 503.
  void stop_workers();

 private:
  struct Route;
  struct LeaveWorkers;
  using Exchange = std::shared_ptr<HttpExchange>;
  static const Route* find_route(std::string_view path);
  void dispatch(const Route& route, HttpRequest request, const Exchange& exchange);
  void run(const Route& route,
           const ApiContext& context,
           const HttpRequest& request,
           const Exchange& exchange);

  void health(const Exchange& exchange);
  void version(const Exchange& exchange);
  void load(const Exchange& exchange);
  void metrics(const Exchange& exchange);
  [[nodiscard]] bool authorised(const HttpRequest& request) const;
  [[nodiscard]] std::shared_ptr<const ServedModel> model() const;

  const ServerConfig config_;
  const std::shared_ptr<GenerationRegistry> registry_ = std::make_shared<GenerationRegistry>();
  const std::shared_ptr<ServerCounters> counters_ = std::make_shared<ServerCounters>();
  const std::shared_ptr<WorkerPool> workers_;
  std::atomic<bool> draining_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> in_workers_{0};

  mutable std::mutex mutex_;  // guards what follows
  std::function<int64_t()> count_connections_;
  std::shared_ptr<const ServedModel> model_;
  double loading_done_ = 0;
  std::string loading_what_ = "starting";
};

}  // namespace tenon
