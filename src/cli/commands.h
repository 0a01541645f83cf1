// The commands of `tenon`. Each takes its options as plain data and returns the exit code.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention/conformance.h"
#include "server/server.h"
#include "tenon/config.h"
#include "tenon/sampling.h"

namespace tenon::cli {

struct RunOptions {
  EngineConfig engine;
  SamplingParams sampling;
  std::string prompt;
  std::string system;
  bool raw = false;  // no chat template
};
int run_command(const RunOptions& options);

struct ChatOptions {
  EngineConfig engine;
  SamplingParams sampling;
  std::string system;
};
int chat_command(const ChatOptions& options);

struct ServeOptions {
  EngineConfig engine;
  ServerConfig server;
};
int serve_command(const ServeOptions& options);

struct ThroughputOptions {
  EngineConfig engine;
  int32_t num_prompts = 64;
  int32_t input_len = 128;      // tokens
  int32_t output_len = 128;     // tokens
  int32_t max_concurrency = 0;  // 0: all at once
  bool json = false;
};
int bench_throughput_command(const ThroughputOptions& options);

struct LatencyOptions {
  EngineConfig engine;
  std::vector<int32_t> prompt_lens = {512};
  std::vector<int32_t> output_lens = {128};
  int32_t repetitions = 5;
  bool json = false;
};
int bench_latency_command(const LatencyOptions& options);

// Measures what this machine can do: read bandwidth and FMA rate with the given number of threads.
struct ProbeOptions {
  int32_t threads = 0;
  bool json = false;
};
int bench_probe_command(const ProbeOptions& options);

struct BackendsOptions {
  EngineConfig engine;
  std::string verify;  // run the conformance suite against this backend
  ConformanceLevel verify_level = ConformanceLevel::kQuick;
};
int backends_command(const BackendsOptions& options);

struct InspectOptions {
  std::string path;
  bool all = false;  // every tensor and key
};
int inspect_command(const InspectOptions& options);

// Prints "error: ..." and returns the exit code for it.
int fail(const Status& status);

}  // namespace tenon::cli
