// ModelConfig from GGUF metadata and from Hugging Face's JSON files. Thread safe: plain functions.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "formats/gguf.h"
#include "models/config.h"
#include "tensor/dtype.h"

namespace tenon {

// Errors name the file and the key: kUnsupported for an architecture, a RoPE scaling or a feature
// this engine cannot reproduce (with the list of what it can), kInvalidArgument for values out of
// range. `files`: all files of the model, the one with the metadata first (open_gguf_files).
Result<ModelConfig> config_from_gguf(const std::vector<std::shared_ptr<const GgufFile>>& files);

struct HfConfig {
  ModelConfig model;
  DType dtype = DType::kF32;  // torch_dtype / dtype: what the weights are saved in
};
// `path`: a folder with config.json (and generation_config.json if there is one), or a config.json.
Result<HfConfig> config_from_hf(const std::string& path);

// Ranges and divisibility every architecture relies on.
Status check_config(const ModelConfig& config);

}  // namespace tenon
