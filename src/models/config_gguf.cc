#include <algorithm>
#include <limits>

#include "formats/quote.h"
#include "models/config_reader.h"
#include "models/registry.h"

namespace tenon {
namespace {

using Files = std::vector<std::shared_ptr<const GgufFile>>;

const GgufTensor* find_tensor(const Files& files, std::string_view name) {
  for (const auto& file : files) {
    if (const GgufTensor* tensor = file->find_tensor(name)) return tensor;
  }
  return nullptr;
}

// Reads keys below "<architecture>."; a missing key leaves the value as it is unless it is
// required.
class KeyReader {
 public:
  KeyReader(const GgufFile& file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {}

  [[nodiscard]] std::string key(std::string_view name) const {
    return fmt::format("{}.{}", prefix_, name);
  }
  [[nodiscard]] bool has(std::string_view name) const { return file_.find(key(name)) != nullptr; }

  Status read(std::string_view name, int32_t& value, bool required) const {
    const auto found = file_.get_int(key(name));
    if (found.status().code() == StatusCode::kNotFound && !required) return ok_status();
    if (!found.ok()) return found.status();
    return narrow(key(name), *found, value);
  }

  Status read(std::string_view name, float& value, bool required) const {
    const auto found = file_.get_float(key(name));
    if (found.status().code() == StatusCode::kNotFound && !required) return ok_status();
    if (!found.ok()) return found.status();
    value = static_cast<float>(*found);
    return ok_status();
  }

  // Some models give a number per layer; it is one number here, so all must be equal.
  Status read_uniform(std::string_view name, int32_t& value, bool required) const {
    const auto array = file_.get_array(key(name));
    if (!array.ok()) return read(name, value, required);
    const GgufArray& list = **array;
    const bool integers = list.type != GgufType::kString && list.type != GgufType::kF32 &&
                          list.type != GgufType::kF64 && list.count > 0;
    if (!integers)
      return invalid_argument("metadata {} is not a list of integers", quote_name(key(name)));
    for (uint64_t i = 1; i < list.count; ++i) {
      if (list.int_at(i) != list.int_at(0)) {
        return unsupported("metadata {}: different values per layer are not supported",
                           quote_name(key(name)));
      }
    }
    return narrow(key(name), list.int_at(0), value);
  }

 private:
  static Status narrow(const std::string& name, int64_t wide, int32_t& value) {
    if (wide < 0 || wide > std::numeric_limits<int32_t>::max()) {
      return invalid_argument("metadata {}: {} is out of range", quote_name(name), wide);
    }
    value = static_cast<int32_t>(wide);
    return ok_status();
  }

  const GgufFile& file_;
  std::string prefix_;
};

Status read_sizes(const KeyReader& keys, ModelConfig& config) {
  TENON_RETURN_IF_ERROR(keys.read("block_count", config.num_layers, true));
  TENON_RETURN_IF_ERROR(keys.read("context_length", config.max_position, true));
  TENON_RETURN_IF_ERROR(keys.read("embedding_length", config.hidden_size, true));
  TENON_RETURN_IF_ERROR(keys.read_uniform("feed_forward_length", config.intermediate_size, true));
  TENON_RETURN_IF_ERROR(keys.read_uniform("attention.head_count", config.num_heads, true));
  config.num_kv_heads = config.num_heads;
  TENON_RETURN_IF_ERROR(keys.read_uniform("attention.head_count_kv", config.num_kv_heads, false));
  TENON_RETURN_IF_ERROR(keys.read("attention.layer_norm_rms_epsilon", config.rms_norm_eps, true));
  config.head_dim = config.num_heads > 0 ? config.hidden_size / config.num_heads : 0;
  TENON_RETURN_IF_ERROR(keys.read("attention.key_length", config.head_dim, false));
  int32_t value_dim = config.head_dim;
  TENON_RETURN_IF_ERROR(keys.read("attention.value_length", value_dim, false));
  if (value_dim != config.head_dim) {
    return unsupported("metadata '{}': {} differs from the key length {}, which is not supported",
                       keys.key("attention.value_length"), value_dim, config.head_dim);
  }
  int32_t experts = 0;
  TENON_RETURN_IF_ERROR(keys.read("expert_count", experts, false));
  if (experts > 0) {
    return unsupported("metadata '{}': {}: mixtures of experts are not supported",
                       keys.key("expert_count"), experts);
  }
  return ok_status();
}

Status read_rope(const GgufFile& file, const KeyReader& keys, ModelConfig& config) {
  config.rotary_dim = config.head_dim;
  TENON_RETURN_IF_ERROR(keys.read("rope.dimension_count", config.rotary_dim, false));
  TENON_RETURN_IF_ERROR(keys.read("rope.freq_base", config.rope_theta, false));

  RopeScaling& scaling = config.rope_scaling;
  std::string type = "none";
  if (keys.has("rope.scaling.type")) {
    TENON_ASSIGN_OR_RETURN(type, file.get_string(keys.key("rope.scaling.type")));
  } else if (keys.has("rope.scale_linear")) {  // the key before rope.scaling.* existed
    type = "linear";
    TENON_RETURN_IF_ERROR(keys.read("rope.scale_linear", scaling.factor, true));
  }
  if (type == "linear") {
    scaling.kind = RopeScaling::Kind::kLinear;
    TENON_RETURN_IF_ERROR(
        keys.read("rope.scaling.factor", scaling.factor, !keys.has("rope.scale_linear")));
  } else if (type != "none") {
    return unsupported(
        "metadata '{}': {} is not supported; supported: none, linear, and llama3 by "
        "the tensor rope_freqs.weight",
        keys.key("rope.scaling.type"), quote_name(type));
  }
  return ok_status();
}

// rope_freqs.weight: one divisor per frequency, the converter's form of llama3 scaling.
Status read_rope_freqs(const Files& files, ModelConfig& config) {
  const GgufTensor* tensor = find_tensor(files, "rope_freqs.weight");
  if (tensor == nullptr) return ok_status();
  if (tensor->type != 0 || tensor->shape.size() != 1) {
    return invalid_argument("tensor 'rope_freqs.weight' is not a vector of F32");
  }
  if (config.rope_scaling.kind != RopeScaling::Kind::kNone) {
    return unsupported("linear RoPE scaling together with 'rope_freqs.weight' is not supported");
  }
  config.rope_scaling.kind = RopeScaling::Kind::kLlama3;
  config.rope_scaling.freq_factors.resize(static_cast<size_t>(tensor->shape[0]));
  std::copy_n(tensor->data.data(), tensor->data.size(),
              reinterpret_cast<std::byte*>(config.rope_scaling.freq_factors.data()));
  return ok_status();
}

Status read_tokens(const Files& files, ModelConfig& config) {
  const GgufTensor* embedding = find_tensor(files, "token_embd.weight");
  if (embedding != nullptr && embedding->shape.size() == 2 &&
      embedding->shape[0] <= std::numeric_limits<int32_t>::max()) {
    config.vocab_size = static_cast<int32_t>(embedding->shape[0]);  // what logits really have
  }
  const KeyReader keys(*files.front(), "tokenizer.ggml");
  TENON_RETURN_IF_ERROR(keys.read("bos_token_id", config.bos_token_id, false));
  for (const char* name : {"eos_token_id", "eot_token_id", "eom_token_id"}) {
    int32_t id = -1;
    TENON_RETURN_IF_ERROR(keys.read(name, id, false));
    std::vector<int32_t>& ids = config.eos_token_ids;
    if (id >= 0 && std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
  return ok_status();
}

Result<ModelConfig> read_config(const Files& files) {
  const GgufFile& file = *files.front();
  ModelConfig config;
  TENON_ASSIGN_OR_RETURN(const std::string name, file.get_string("general.architecture"));
  TENON_ASSIGN_OR_RETURN(const Architecture* architecture, find_gguf_architecture(name));
  config.architecture = architecture->name;
  if (const auto title = file.get_string("general.name"); title.ok()) config.name = *title;
  const KeyReader keys(file, name);
  TENON_RETURN_IF_ERROR(keys.read("vocab_size", config.vocab_size, false));
  TENON_RETURN_IF_ERROR(read_tokens(files, config));
  TENON_RETURN_IF_ERROR(read_sizes(keys, config));
  TENON_RETURN_IF_ERROR(read_rope(file, keys, config));
  TENON_RETURN_IF_ERROR(read_rope_freqs(files, config));
  config.rope_interleaved =
      true;  // the converter permutes Q and K of every architecture listed here
  config.tie_word_embeddings = find_tensor(files, "output.weight") == nullptr;
  TENON_RETURN_IF_ERROR(check_config(config));
  return config;
}

}  // namespace

Result<ModelConfig> config_from_gguf(const std::vector<std::shared_ptr<const GgufFile>>& files) {
  auto config = read_config(files);
  if (!config.ok()) return config.status().with_context(files.front()->file()->path());
  return config;
}

}  // namespace tenon
