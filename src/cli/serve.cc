// tenon serve: the HTTP server around one engine.
#include <malloc.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/session.h"

namespace tenon::cli {
namespace {

std::atomic<bool> g_serving{false};  // false: no request can be in flight, so a signal ends at once
std::atomic<int> g_signals{
    0};  // SIGTERM and SIGINT received; a signal handler can reach nothing else

constexpr double kStatsInterval = 10.0;  // seconds between lines of the log while there is work
constexpr auto kPoll = std::chrono::milliseconds(50);

// glibc gives every thread a heap of its own and keeps what the largest request needed in each of
// them. Two heaps for the I/O and worker threads cost no measurable time and keep resident memory
// near what is in use.
constexpr int kMallocArenas = 2;

// One line of the log for the interval between two snapshots, in the manner of vLLM's.
void log_stats(const EngineStats& before, const EngineStats& now, double seconds) {
  const auto rate = [&](uint64_t a, uint64_t b) { return static_cast<double>(b - a) / seconds; };
  const auto share = [](double part, double whole) {
    return whole > 0 ? 100.0 * part / whole : 0.0;
  };
  log_info(
      "input {:.1f} tok/s, output {:.1f} tok/s, running {}, waiting {}, swapped {}, KV cache "
      "{:.1f} %, prefix hits "
      "{:.1f} %",
      rate(before.prompt_tokens, now.prompt_tokens),
      rate(before.generation_tokens, now.generation_tokens), now.running, now.waiting, now.swapped,
      share(static_cast<double>(now.kv_blocks_used), static_cast<double>(now.kv_blocks_total)),
      share(static_cast<double>(now.prefix_cache_hits),
            static_cast<double>(now.prefix_cache_queries)));
}

void serve_until_signal(const Engine& engine) {
  EngineStats last = engine.stats();
  double last_time = now_seconds();
  while (g_signals.load() == 0 && engine.healthy()) {
    std::this_thread::sleep_for(kPoll);
    const double now = now_seconds();
    if (now - last_time < kStatsInterval) continue;
    EngineStats current = engine.stats();
    if (current.steps != last.steps) log_stats(last, current, now - last_time);
    last = std::move(current);
    last_time = now;
  }
}

}  // namespace

int serve_command(const ServeOptions& options) {
  g_signals.store(0);
  ::mallopt(M_ARENA_MAX, kMallocArenas);
  struct sigaction action {};
  action.sa_handler = [](int signal) {
    g_signals.fetch_add(1);
    if (!g_serving.load()) ::_exit(128 + signal);
  };
  ::sigaction(SIGTERM, &action, nullptr);
  ::sigaction(SIGINT, &action, nullptr);
  ::signal(SIGPIPE, SIG_IGN);

  auto server =
      Server::start(options.server);  // binds first: a port in use must not cost a model load
  if (!server.ok()) return fail(server.status());
  const LoadProgress bar = terminal_progress();
  auto text =
      std::async(std::launch::async, [&] { return load_text_assets(options.engine.model); });
  auto engine = Engine::create(options.engine, [&](double done, const std::string& what) {
    (*server)->set_loading_progress(done, what);
    if (bar) bar(done, what);
  });
  auto assets = text.get();
  if (!engine.ok()) return fail(engine.status());
  if (!assets.ok()) return fail(assets.status());
  g_serving.store(true);
  const Status attached = (*server)->attach(engine->get(), std::move(*assets));
  if (!attached.ok()) return fail(attached);

  const ModelInfo& info = (*engine)->model_info();
  log_info("{} loaded in {:.2f} s: {}, {:.0f} MiB of weights, {} threads, {}", info.architecture,
           info.load_seconds, info.weights, static_cast<double>(info.weight_bytes) / 1048576.0,
           info.threads, info.isa);
  log_info("attention backend: {}", info.attention_reason);
  log_info("KV cache: {} blocks of {} tokens, {}, {:.0f} MiB; context {} tokens; prefix cache {}",
           info.num_kv_blocks, info.block_size, info.kv_cache_dtype,
           static_cast<double>(info.kv_cache_bytes) / 1048576.0, info.max_model_len,
           info.prefix_caching ? "on" : "off");
  std::printf("Tenon is listening on %s\n", (*server)->url().c_str());
  std::fflush(stdout);

  serve_until_signal(**engine);
  const bool failed = !(*engine)->healthy();
  if (failed) log_error("the engine has stopped; ending");

  (*server)->begin_drain();
  if (!failed && !(*server)->drained()) {
    log_info("draining: waiting for running requests, up to {:.0f} s (signal again to end now)",
             options.server.drain_timeout);
  }
  // After the drain timeout the server ends what still runs, and is drained.
  while (!failed && g_signals.load() < 2 && !(*server)->drained()) {
    std::this_thread::sleep_for(kPoll);
  }
  (*server)->stop();
  return failed ? 1 : 0;
}

}  // namespace tenon::cli
