#include "models/rope_table.h"

#include <cmath>
#include <numbers>

namespace tenon {
namespace {

// Llama 3.1's scaling: long wavelengths are stretched by `factor`, short ones kept, those between
// mixed.
float llama3_frequency(float frequency, const RopeScaling& scaling) {
  const auto context = static_cast<float>(scaling.original_max_position);
  const float wavelength = 2.0F * std::numbers::pi_v<float> / frequency;
  if (wavelength < context / scaling.high_freq_factor) return frequency;
  if (wavelength > context / scaling.low_freq_factor) return frequency / scaling.factor;
  const float smooth = (context / wavelength - scaling.low_freq_factor) /
                       (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0F - smooth) * frequency / scaling.factor + smooth * frequency;
}

float scaled_frequency(float frequency, size_t index, const RopeScaling& scaling) {
  switch (scaling.kind) {
    case RopeScaling::Kind::kNone: return frequency;
    case RopeScaling::Kind::kLinear: return frequency / scaling.factor;
    case RopeScaling::Kind::kLlama3: break;
  }
  if (scaling.freq_factors.empty()) return llama3_frequency(frequency, scaling);
  return frequency / scaling.freq_factors[index];
}

}  // namespace

RopeTable make_rope_table(const ModelConfig& config, int32_t max_position) {
  RopeTable table;
  table.rotary_dim = config.rotary_dim;
  table.interleaved = config.rope_interleaved;
  const auto half = static_cast<size_t>(config.rotary_dim / 2);
  std::vector<float> frequencies(half);
  for (size_t i = 0; i < half; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(config.rotary_dim);
    const float frequency = 1.0F / std::pow(config.rope_theta, exponent);
    frequencies[i] = scaled_frequency(frequency, i, config.rope_scaling);
  }
  const size_t size = static_cast<size_t>(max_position) * half;
  table.cos.resize(size);
  table.sin.resize(size);
  for (size_t position = 0; position < static_cast<size_t>(max_position); ++position) {
    for (size_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(position) * frequencies[i];
      table.cos[position * half + i] = std::cos(angle);
      table.sin[position * half + i] = std::sin(angle);
    }
  }
  return table;
}

}  // namespace tenon
