// LlamaForCausalLM (arXiv:2302.13971, 2307.09288): RMS norm, RoPE, grouped-query attention, SwiGLU.
// Purpose: the tensors it needs, and its Model. Ownership and thread safety: as models/model.h.
#pragma once

#include <memory>
#include <vector>

#include "models/checkpoint.h"
#include "models/model.h"

namespace tenon {

[[nodiscard]] std::vector<TensorSpec> llama_tensors(const ModelConfig& config, WeightNaming naming);
Result<std::unique_ptr<Model>> build_llama(Checkpoint checkpoint,
                                           const ModelLoadOptions& options,
                                           Ops* ops);

}  // namespace tenon
