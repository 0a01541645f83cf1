// What a model file says about its architecture, in one form whatever the format. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace tenon {

struct RopeScaling {
  enum class Kind { kNone, kLinear, kLlama3 } kind = Kind::kNone;
  float factor = 1.0F;
  // llama3 only (Llama 3.1 release, rope_scaling in config.json)
  float low_freq_factor = 1.0F;
  float high_freq_factor = 4.0F;
  int32_t original_max_position = 8192;
  // GGUF stores llama3 scaling as a tensor of per-frequency divisors (rope_freqs.weight); empty
  // otherwise.
  std::vector<float> freq_factors;
};

struct ModelConfig {
  std::string architecture;  // Hugging Face name: "LlamaForCausalLM"
  std::string name;          // general.name or _name_or_path; may be empty
  int32_t num_layers = 0;
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t vocab_size = 0;
  int32_t max_position = 0;  // trained context, tokens
  float rms_norm_eps = 1e-5F;
  float rope_theta = 10000.0F;
  int32_t rotary_dim = 0;         // features of a head that are rotated; 0: head_dim
  bool rope_interleaved = false;  // GGUF llama weights are permuted for interleaved pairs
  RopeScaling rope_scaling;
  bool tie_word_embeddings = false;
  std::vector<int32_t> eos_token_ids;  // from generation_config.json / config.json / GGUF metadata
  int32_t bos_token_id = -1;
};

}  // namespace tenon
