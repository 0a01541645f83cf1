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
  bool profile = false;         // where the steps spend their time
  bool json = false;
};
int bench_throughput_command(const ThroughputOptions& options);

struct LatencyOptions {
  EngineConfig engine;
  std::vector<int32_t> prompt_lens = {512};
  std::vector<int32_t> output_lens = {128};
  int32_t repetitions = 5;
  // Not empty: steady decode of so many requests, each with a prompt of input_lens tokens, for the
  // first of output_lens.
  std::vector<int32_t> batch_sizes;
  std::vector<int32_t> input_lens = {1024};
  bool profile = false;
  bool json = false;
};
int bench_latency_command(const LatencyOptions& options);

// Attention backends on batches of the batch grammar, against the ceilings of the same run.
struct AttentionBenchOptions {
  std::string device = "auto";
  std::vector<std::string> batches = {"1q1s1k", "16q1s1k", "q2k", "q512_15q1s1k"};
  std::vector<std::string> backends;  // NAME[:WORD...], also comma-separated; none: all
  std::string split = "auto";         // of backends that name none
  std::vector<int32_t> block_sizes = {16};
  int32_t num_heads = 32;
  int32_t num_kv_heads = 8;
  int32_t head_dim = 128;
  ModelDType dtype = ModelDType::kAuto;
  KvCacheDType kv_cache_dtype = KvCacheDType::kAuto;
  std::string cpu_isa = "auto";
  int32_t threads = 0;
  int32_t rounds = 5;
  double seconds = 0.25;  // of device time for each backend on each batch, over all rounds
  std::string json;       // a file, or - for stdout instead of the table
};
int bench_attention_command(const AttentionBenchOptions& options);

// Measures what a device can do: read bandwidth, and the rate of f32 FMAs or of a matrix product.
struct ProbeOptions {
  std::string device = "auto";
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
