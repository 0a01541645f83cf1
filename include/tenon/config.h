// Configuration of an engine. Field names are vLLM's flag names where one exists.
#pragma once

#include <cstdint>
#include <string>

namespace tenon {

enum class LoadFormat { kAuto, kGguf, kSafetensors, kDummy };
enum class SchedulingPolicy { kFcfs, kPriority };
enum class PreemptionMode { kAuto, kRecompute, kSwap };
enum class ModelDType {
  kAuto,     // weights as stored (quantised stay quantised), fast kernels
  kFloat32,  // exact mode: weights dequantised to f32, f32 arithmetic and KV cache
};
enum class KvCacheDType { kAuto, kF32, kF16, kBF16 };

struct EngineConfig {
  std::string model;  // GGUF file, or folder with config.json and safetensors
  LoadFormat load_format = LoadFormat::kAuto;
  ModelDType dtype = ModelDType::kAuto;
  KvCacheDType kv_cache_dtype = KvCacheDType::kAuto;  // kAuto: f16, or f32 in exact mode
  std::string device = "auto";                        // auto, cpu, cuda
  std::string attention_backend = "auto";             // a name from `tenon backends`, or auto
  std::string cpu_isa = "auto";  // portable, avx2, avx512, or auto: the best this CPU has
  int32_t threads = 0;           // 0: one per physical core this process may use
  int64_t seed = 0;              // for requests without a seed

  int32_t max_model_len = 0;  // tokens; 0: the model's own limit, less if the KV cache is smaller
  int32_t block_size = 16;    // tokens per KV block
  int64_t num_kv_blocks = 0;  // 0: from kv_cache_memory
  int64_t kv_cache_memory =
      0;  // bytes; 0: enough for max_num_seqs short or one full-length request, within free RAM
  int64_t swap_space = int64_t{256} << 20;  // bytes of host memory for swapped-out blocks
  int32_t max_num_seqs = 64;                // requests running at once
  int32_t max_num_batched_tokens = 512;     // token budget of a step
  int32_t max_queue = 1024;                 // waiting requests; more are refused (HTTP 429)
  bool enable_prefix_caching = true;
  bool enable_chunked_prefill = true;
  SchedulingPolicy scheduling_policy = SchedulingPolicy::kFcfs;
  PreemptionMode preemption_mode = PreemptionMode::kAuto;
};

}  // namespace tenon
