#include <algorithm>
#include <filesystem>
#include <limits>
#include <system_error>

#include "formats/json_text.h"
#include "formats/quote.h"
#include "models/config_reader.h"
#include "models/registry.h"

namespace tenon {
namespace {

using nlohmann::json;

constexpr size_t kMaxConfigBytes = size_t{4} << 20;

// Typed access to one JSON object. A key that is missing or null leaves the value as it is unless
// required.
class JsonReader {
 public:
  explicit JsonReader(const json& object) : object_(object) {}

  // nullptr if missing or null
  [[nodiscard]] const json* find(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  Status read(const char* key, int32_t& value, bool required = false) const {
    const json* found = find(key);
    if (found == nullptr) return missing(key, required);
    return to_int32(key, *found, value);
  }
  Status read(const char* key, float& value) const {
    const json* found = find(key);
    if (found == nullptr) return ok_status();
    if (!found->is_number()) return wrong(key, "a number");
    value = found->get<float>();
    return ok_status();
  }
  Status read(const char* key, bool& value) const {
    const json* found = find(key);
    if (found == nullptr) return ok_status();
    if (!found->is_boolean()) return wrong(key, "a bool");
    value = found->get<bool>();
    return ok_status();
  }
  Status read(const char* key, std::string& value) const {
    const json* found = find(key);
    if (found == nullptr) return ok_status();
    if (!found->is_string()) return wrong(key, "a string");
    value = found->get<std::string>();
    return ok_status();
  }
  // One integer or a list of integers, appended without repetition.
  Status read_ids(const char* key, std::vector<int32_t>& ids) const {
    const json* found = find(key);
    if (found == nullptr) return ok_status();
    const json list = found->is_array() ? *found : json::array({*found});
    for (const json& item : list) {
      int32_t id = 0;
      TENON_RETURN_IF_ERROR(to_int32(key, item, id));
      if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
    }
    return ok_status();
  }

 private:
  static Status missing(const char* key, bool required) {
    return required ? invalid_argument("'{}' is missing", key) : ok_status();
  }
  static Status wrong(const char* key, const char* wanted) {
    return invalid_argument("'{}' is not {}", key, wanted);
  }
  static Status to_int32(const char* key, const json& value, int32_t& out) {
    constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
    const bool fits = value.is_number_unsigned()
                          ? value.get<uint64_t>() <= static_cast<uint64_t>(kMax)
                          : value.is_number_integer() && value.get<int64_t>() >= -kMax;
    if (!fits) return wrong(key, "an integer of 32 bits");
    out = value.get<int32_t>();
    return ok_status();
  }

  const json& object_;
};

Status read_sizes(const JsonReader& json_config, ModelConfig& config) {
  TENON_RETURN_IF_ERROR(json_config.read("num_hidden_layers", config.num_layers, true));
  TENON_RETURN_IF_ERROR(json_config.read("hidden_size", config.hidden_size, true));
  TENON_RETURN_IF_ERROR(json_config.read("intermediate_size", config.intermediate_size, true));
  TENON_RETURN_IF_ERROR(json_config.read("num_attention_heads", config.num_heads, true));
  config.num_kv_heads = config.num_heads;
  TENON_RETURN_IF_ERROR(json_config.read("num_key_value_heads", config.num_kv_heads));
  config.head_dim = config.num_heads > 0 ? config.hidden_size / config.num_heads : 0;
  TENON_RETURN_IF_ERROR(json_config.read("head_dim", config.head_dim));
  TENON_RETURN_IF_ERROR(json_config.read("vocab_size", config.vocab_size, true));
  config.max_position = 2048;  // defaults of transformers' LlamaConfig
  config.rms_norm_eps = 1e-6F;
  TENON_RETURN_IF_ERROR(json_config.read("max_position_embeddings", config.max_position));
  TENON_RETURN_IF_ERROR(json_config.read("rms_norm_eps", config.rms_norm_eps));
  return json_config.read("tie_word_embeddings", config.tie_word_embeddings);
}

// What would change the result and cannot be computed here.
Status refuse_unsupported(const JsonReader& json_config) {
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    bool on = false;
    TENON_RETURN_IF_ERROR(json_config.read(key, on));
    if (on) return unsupported("'{}': true is not supported", key);
  }
  std::string activation = "silu";
  TENON_RETURN_IF_ERROR(json_config.read("hidden_act", activation));
  if (activation != "silu" && activation != "swish") {
    return unsupported("'hidden_act': {} is not supported; supported: silu",
                       quote_name(activation));
  }
  if (json_config.find("quantization_config") != nullptr) {
    return unsupported(
        "'quantization_config' is not supported; quantised weights are read from GGUF");
  }
  return ok_status();
}

Status read_rope_scaling(const JsonReader& rope, ModelConfig& config) {
  std::string type = "default";
  TENON_RETURN_IF_ERROR(rope.read("type", type));  // the older name
  TENON_RETURN_IF_ERROR(rope.read("rope_type", type));
  TENON_RETURN_IF_ERROR(rope.read("rope_theta", config.rope_theta));
  if (type == "default") return ok_status();
  RopeScaling& scaling = config.rope_scaling;
  if (rope.find("factor") == nullptr) return invalid_argument("RoPE scaling: 'factor' is missing");
  TENON_RETURN_IF_ERROR(rope.read("factor", scaling.factor));
  if (type == "linear") {
    scaling.kind = RopeScaling::Kind::kLinear;
    return ok_status();
  }
  if (type != "llama3") {
    return unsupported("RoPE scaling {} is not supported; supported: default, linear, llama3",
                       quote_name(type));
  }
  scaling.kind = RopeScaling::Kind::kLlama3;
  scaling.original_max_position = config.max_position;
  TENON_RETURN_IF_ERROR(rope.read("low_freq_factor", scaling.low_freq_factor));
  TENON_RETURN_IF_ERROR(rope.read("high_freq_factor", scaling.high_freq_factor));
  return rope.read("original_max_position_embeddings", scaling.original_max_position);
}

Status read_rope(const JsonReader& json_config, ModelConfig& config) {
  TENON_RETURN_IF_ERROR(json_config.read("rope_theta", config.rope_theta));
  float partial = 1.0F;
  TENON_RETURN_IF_ERROR(json_config.read("partial_rotary_factor", partial));
  // rope_parameters is the name since transformers 5.
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const json* rope = json_config.find(key);
    if (rope == nullptr) continue;
    if (!rope->is_object()) return invalid_argument("'{}' is not an object", key);
    Status status = read_rope_scaling(JsonReader(*rope), config);
    if (!status.ok()) return status.with_context(fmt::format("'{}'", key));
    TENON_RETURN_IF_ERROR(JsonReader(*rope).read("partial_rotary_factor", partial));
  }
  if (!(partial > 0.0F && partial <= 1.0F)) {
    return invalid_argument("'partial_rotary_factor' {} is not from 0 to 1", partial);
  }
  config.rotary_dim = static_cast<int32_t>(static_cast<float>(config.head_dim) * partial);
  return ok_status();
}

Result<std::string> read_architecture(const JsonReader& json_config) {
  const json* list = json_config.find("architectures");
  if (list == nullptr || !list->is_array() || list->empty() || !list->front().is_string()) {
    return invalid_argument("'architectures' is not a list of names");
  }
  return list->front().get<std::string>();
}

Status read_dtype(const JsonReader& json_config, DType& dtype) {
  std::string name = "float32";
  TENON_RETURN_IF_ERROR(json_config.read("torch_dtype", name));
  TENON_RETURN_IF_ERROR(json_config.read("dtype", name));  // the name since transformers 5
  if (name == "float32") {
    dtype = DType::kF32;
  } else if (name == "float16") {
    dtype = DType::kF16;
  } else if (name == "bfloat16") {
    dtype = DType::kBF16;
  } else {
    return unsupported("'torch_dtype': {} is not supported; supported: float32, float16, bfloat16",
                       quote_name(name));
  }
  return ok_status();
}

Result<HfConfig> read_config(const json& root) {
  if (!root.is_object()) return invalid_argument("not a JSON object");
  const JsonReader json_config(root);
  HfConfig out;
  ModelConfig& config = out.model;
  TENON_ASSIGN_OR_RETURN(const std::string name, read_architecture(json_config));
  TENON_ASSIGN_OR_RETURN(const Architecture* architecture, find_architecture(name));
  config.architecture = architecture->name;
  TENON_RETURN_IF_ERROR(json_config.read("_name_or_path", config.name));
  TENON_RETURN_IF_ERROR(refuse_unsupported(json_config));
  TENON_RETURN_IF_ERROR(read_sizes(json_config, config));
  TENON_RETURN_IF_ERROR(read_rope(json_config, config));
  TENON_RETURN_IF_ERROR(read_dtype(json_config, out.dtype));
  TENON_RETURN_IF_ERROR(json_config.read("bos_token_id", config.bos_token_id));
  return out;
}

// Its end tokens come first; a missing file is no error.
Status read_generation_config(const std::string& path, ModelConfig& config) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return ok_status();
  TENON_ASSIGN_OR_RETURN(const json generation, read_json_file(path, kMaxConfigBytes));
  if (!generation.is_object()) return invalid_argument("{}: not a JSON object", path);
  Status status = JsonReader(generation).read_ids("eos_token_id", config.eos_token_ids);
  return status.ok() ? status : status.with_context(path);
}

}  // namespace

Result<HfConfig> config_from_hf(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const bool is_folder = fs::is_directory(path, error);
  const std::string config_path = is_folder ? (fs::path(path) / "config.json").string() : path;
  const std::string generation_path =
      (fs::path(config_path).parent_path() / "generation_config.json").string();
  TENON_ASSIGN_OR_RETURN(const json root, read_json_file(config_path, kMaxConfigBytes));
  auto config = read_config(root);
  if (!config.ok()) return config.status().with_context(config_path);
  TENON_RETURN_IF_ERROR(read_generation_config(generation_path, config->model));
  Status status = JsonReader(root).read_ids("eos_token_id", config->model.eos_token_ids);
  if (status.ok()) status = check_config(config->model);
  if (!status.ok()) return status.with_context(config_path);
  return config;
}

}  // namespace tenon
