// Configuration of an engine. Field names are vLLM's flag names where one exists.
#pragma once

#include <cstdint>
#include <string>

namespace tenon {

enum class LoadFormat { kAuto, kGguf, kSafetensors, kDummy };
enum class SchedulingPolicy { kFcfs, kPriority };
enum class PreemptionMode { kAuto, kRecompute, kSwap };
enum class ModelDType {
  kAuto,      // CPU: weights as stored (quantised stay quantised), fast kernels; GPU: bfloat16
  kFloat32,   // exact mode, CPU only: weights dequantised to f32, f32 arithmetic and KV cache
  kBFloat16,  // GPU: weights and activations in this type
  kFloat16,
};
// fp8: e4m3, with the checkpoint's scales or 1. int8: with a scale for each token and head.
enum class KvCacheDType { kAuto, kF32, kF16, kBF16, kFp8, kInt8 };

// Whether requests that share a prefix read its keys together.
enum class CascadePolicy {
  kAuto,  // where the backend expects a gain
  kOn,    // wherever they share whole KV blocks
  kOff,
};

enum class AttentionSplitMode {
  kAuto,     // the fastest way known for decode and prefill rows of one step
  kUnified,  // one prefill kernel for every row
  kSplit,    // a decode kernel for decode rows, a prefill kernel for the others
};

struct EngineConfig {
  std::string model;  // GGUF file, or folder with config.json and safetensors
  LoadFormat load_format = LoadFormat::kAuto;
  ModelDType dtype = ModelDType::kAuto;
  KvCacheDType kv_cache_dtype =
      KvCacheDType::kAuto;      // kAuto: f16, f32 in exact mode; the activations' type on a GPU
  std::string device = "auto";  // auto (a GPU if there is one), cpu, cuda
  std::string attention_backend = "auto";  // a name from `tenon backends`, or auto
  AttentionSplitMode attention_split = AttentionSplitMode::kAuto;
  CascadePolicy cascade = CascadePolicy::kAuto;
  std::string cpu_isa = "auto";  // portable, avx2, avx512, or auto: the best this CPU has
  int32_t threads = 0;           // 0: one per physical core this process may use
  int64_t seed = 0;              // for requests without a seed

  int32_t max_model_len = 0;  // tokens; 0: the model's own limit, less if the KV cache is smaller
  int32_t block_size = 16;    // tokens per KV block
  int64_t num_kv_blocks = 0;  // 0: from kv_cache_memory
  int64_t kv_cache_memory =
      0;  // bytes; 0: on the CPU enough for max_num_seqs short or one full-length request,
          // within free RAM; on a GPU what gpu_memory_utilization leaves
  double gpu_memory_utilization = 0.9;      // share of the GPU's memory that may be taken
  int64_t swap_space = int64_t{256} << 20;  // bytes of host memory for swapped-out blocks
  int32_t max_num_seqs = 0;                 // requests running at once; 0: 64, GPU 256
  int32_t max_num_batched_tokens = 0;       // token budget of a step; 0: 512, GPU 8192
  int32_t max_queue = 1024;                 // waiting requests; more are refused (HTTP 429)
  bool enable_prefix_caching = true;
  bool enable_chunked_prefill = true;
  SchedulingPolicy scheduling_policy = SchedulingPolicy::kFcfs;
  PreemptionMode preemption_mode = PreemptionMode::kAuto;
  bool async_scheduling = true;  // GPU: plan the next step while one runs
  bool enforce_eager = false;    // GPU: no CUDA graphs
  bool profile = false;  // time the sections of every step (EngineStats::profile); no graphs
};

}  // namespace tenon
