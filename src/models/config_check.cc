#include <cmath>
#include <limits>

#include "models/config_reader.h"

namespace tenon {
namespace {

Status check_range(const char* what, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return ok_status();
  return invalid_argument("{} {} is not from {} to {}", what, value, low, high);
}

bool positive(float value) {
  return std::isfinite(value) && value > 0.0F;
}

Status check_rope(const ModelConfig& config) {
  if (!positive(config.rope_theta)) {
    return invalid_argument("RoPE base {} is not a positive number", config.rope_theta);
  }
  if (config.rotary_dim < 2 || config.rotary_dim % 2 != 0 || config.rotary_dim > config.head_dim) {
    return invalid_argument("rotary dimension {} is not an even number from 2 to the head size {}",
                            config.rotary_dim, config.head_dim);
  }
  const RopeScaling& scaling = config.rope_scaling;
  if (!positive(scaling.factor)) {
    return invalid_argument("RoPE scaling factor {} is not a positive number", scaling.factor);
  }
  if (scaling.kind != RopeScaling::Kind::kLlama3) return ok_status();
  if (!scaling.freq_factors.empty()) {
    if (scaling.freq_factors.size() != static_cast<size_t>(config.rotary_dim / 2)) {
      return invalid_argument("{} RoPE frequency factors, {} are needed",
                              scaling.freq_factors.size(), config.rotary_dim / 2);
    }
    for (const float factor : scaling.freq_factors) {
      if (!positive(factor))
        return invalid_argument("RoPE frequency factor {} is not positive", factor);
    }
    return ok_status();
  }
  if (!positive(scaling.low_freq_factor) || !positive(scaling.high_freq_factor) ||
      scaling.high_freq_factor <= scaling.low_freq_factor || scaling.original_max_position < 1) {
    return invalid_argument(
        "llama3 RoPE scaling: low_freq_factor {}, high_freq_factor {} and "
        "original_max_position_embeddings {} do not fit together",
        scaling.low_freq_factor, scaling.high_freq_factor, scaling.original_max_position);
  }
  return ok_status();
}

}  // namespace

Status check_config(const ModelConfig& config) {
  // Far above any model that exists, far below what overflows a product of two of them.
  TENON_RETURN_IF_ERROR(check_range("number of layers", config.num_layers, 1, 4096));
  TENON_RETURN_IF_ERROR(check_range("hidden size", config.hidden_size, 1, 1 << 20));
  TENON_RETURN_IF_ERROR(check_range("intermediate size", config.intermediate_size, 1, 1 << 22));
  TENON_RETURN_IF_ERROR(check_range("number of heads", config.num_heads, 1, 4096));
  TENON_RETURN_IF_ERROR(
      check_range("number of KV heads", config.num_kv_heads, 1, config.num_heads));
  TENON_RETURN_IF_ERROR(check_range("head size", config.head_dim, 2, 4096));
  TENON_RETURN_IF_ERROR(check_range("vocabulary size", config.vocab_size, 1, 1 << 24));
  TENON_RETURN_IF_ERROR(check_range("context length", config.max_position, 1, 1 << 28));
  if (config.num_heads % config.num_kv_heads != 0) {
    return invalid_argument("{} heads are not a multiple of {} KV heads", config.num_heads,
                            config.num_kv_heads);
  }
  if (!positive(config.rms_norm_eps)) {
    return invalid_argument("RMS norm epsilon {} is not a positive number", config.rms_norm_eps);
  }
  for (const int32_t id : config.eos_token_ids) {
    TENON_RETURN_IF_ERROR(check_range("end token id", id, 0, config.vocab_size - 1));
  }
  TENON_RETURN_IF_ERROR(
      check_range("begin token id", config.bos_token_id, -1, config.vocab_size - 1));
  return check_rope(config);
}

}  // namespace tenon
