// The list of architectures. Thread safe: plain functions.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "models/checkpoint.h"
#include "models/model.h"

namespace tenon {

struct Architecture {
  std::string_view name;       // Hugging Face: "LlamaForCausalLM"
  std::string_view gguf_name;  // general.architecture: "llama"
  // Every tensor a checkpoint of this config must hold.
  std::vector<TensorSpec> (*tensors)(const ModelConfig& config, WeightNaming naming);
  Result<std::unique_ptr<Model>> (*build)(Checkpoint checkpoint,
                                          const ModelLoadOptions& options,
                                          Ops* ops);
};

// Errors: kUnsupported, listing the supported architectures.
Result<const Architecture*> find_architecture(std::string_view name);
Result<const Architecture*> find_gguf_architecture(std::string_view gguf_name);

}  // namespace tenon
