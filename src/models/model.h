// A model: turns a batch of token ids into logits through Ops and AttentionImpl, and knows neither
// a concrete attention backend nor the scheduler.
//
// Life: load_model() reads config and maps weights; the engine then chooses an attention backend
// from kv_cache_spec()/attention_requirements(), creates the pool, and hands one AttentionImpl per
// layer over with attach_attention(). Thread safety: the engine thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "base/status.h"
#include "kernels/ops.h"
#include "kv_cache/layout.h"
#include "models/config.h"
#include "tensor/tensor.h"

namespace tenon {

struct ModelInput {
  std::span<const int32_t> token_ids;     // [T]
  std::span<const int32_t> positions;     // [T]
  std::span<const int64_t> slot_mapping;  // [T]
  const AttentionMetadata* attention = nullptr;
};

class Model {
 public:
  virtual ~Model() = default;
  [[nodiscard]] virtual const ModelConfig& config() const = 0;
  // Per-layer facts without the KV view (layer index, heads, scale, window, soft cap).
  [[nodiscard]] virtual std::vector<LayerParams> layers() const = 0;
  virtual void attach_attention(std::vector<std::unique_ptr<AttentionImpl>> impls) = 0;
  // Takes activation memory for steps of up to max_tokens tokens and for logits() of up to
  // max_logits_rows rows, so that neither call allocates.
  virtual Status reserve(int32_t max_tokens, int32_t max_logits_rows) = 0;
  // Runs all layers; the final hidden states stay inside until the next call.
  virtual void forward(const ModelInput& input) = 0;
  // out[rows.size(), vocab_size], f32: the logits of these rows of the last forward(). A separate
  // call, so that logits of a whole prompt can be taken in slices instead of one tokens x
  // vocabulary matrix.
  virtual void logits(std::span<const int32_t> rows, const TensorView& out) = 0;
  [[nodiscard]] virtual int64_t weight_bytes() const = 0;        // memory held by weights
  [[nodiscard]] virtual std::string weight_summary() const = 0;  // "Q4_1 (211), F32 (61)"
};

struct ModelLoadOptions {
  std::string path;
  // As LoadFormat: kAuto looks at the path.
  enum class Format { kAuto, kGguf, kSafetensors, kDummy } format = Format::kAuto;
  bool exact = false;        // dequantise weights to f32
  int32_t max_position = 0;  // size of the RoPE table; 0: the model's own limit
  uint64_t dummy_seed = 0;
  std::function<void(double done, const std::string& what)> progress;
};

// Errors name the file, the tensor or the key, and list what is supported (architecture, tensor
// types). `ops` must outlive the model.
Result<std::unique_ptr<Model>> load_model(const ModelLoadOptions& options, Ops* ops);

}  // namespace tenon
