// What a model file or folder holds, for `tenon inspect`: plain data, read without loading any
// weight. Thread safe: a plain function.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "models/config.h"

namespace tenon {

struct TensorSummary {
  std::string name;
  std::string type;
  std::vector<int64_t> shape;  // outermost first
  int64_t bytes = 0;
};

struct ModelSummary {
  std::string format;        // "GGUF 3", "safetensors"
  std::string architecture;  // as the file spells it
  std::vector<std::string> files;
  std::vector<std::pair<std::string, std::string>> metadata;  // values printable and shortened
  std::vector<TensorSummary> tensors;                         // in file order
  int64_t parameters = 0;  // stored numbers; a tied matrix counts once
  int64_t weight_bytes = 0;
  // Set if this engine can run the model; otherwise `why_not` says what is in the way.
  std::optional<ModelConfig> config;
  Status why_not;
  int64_t kv_bytes_per_token_f16 = 0;  // 0 without a config
  std::vector<std::string> notes;      // files and tensors a folder's index leaves out
};

// `path`: a GGUF file (or any file of a split model), or a folder with config.json and safetensors.
// Errors: as the readers', for files that are truncated, corrupt or of unsupported types.
Result<ModelSummary> inspect_model(const std::string& path);

}  // namespace tenon
