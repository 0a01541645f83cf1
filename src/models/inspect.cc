#include "models/inspect.h"

#include <filesystem>
#include <memory>
#include <system_error>
#include <type_traits>

#include "formats/gguf_split.h"
#include "formats/json_text.h"
#include "formats/quote.h"
#include "formats/safetensors.h"
#include "models/config_reader.h"

namespace tenon {
namespace {

constexpr size_t kMaxValueBytes = 120;
constexpr uint64_t kMaxElements = 6;
constexpr size_t kMaxConfigBytes = size_t{4} << 20;

std::string array_element(const GgufArray& array, uint64_t index) {
  switch (array.type) {
    case GgufType::kString: return fmt::format("\"{}\"", printable_text(array.strings[index], 24));
    case GgufType::kF32:
    case GgufType::kF64: return fmt::format("{}", array.float_at(index));
    default: return fmt::format("{}", array.int_at(index));
  }
}

std::string value_text(const GgufValue& value) {
  if (const auto* text = std::get_if<std::string_view>(&value)) {
    return printable_text(*text, kMaxValueBytes);
  }
  if (const auto* number = std::get_if<double>(&value)) {
    return fmt::format("{}", static_cast<float>(*number));  // most are stored as f32
  }
  const auto* array = std::get_if<GgufArray>(&value);
  if (array == nullptr) {
    return std::visit(
        [](const auto& plain) -> std::string {
          if constexpr (std::is_arithmetic_v<std::decay_t<decltype(plain)>>) {
            return fmt::format("{}", plain);
          }
          return {};
        },
        value);
  }
  std::string text = "[";
  for (uint64_t i = 0; i < array->count && i < kMaxElements; ++i) {
    text += (i == 0 ? "" : ", ") + array_element(*array, i);
  }
  text += array->count > kMaxElements ? fmt::format(", ...] ({} elements)", array->count) : "]";
  return text;
}

void add_tensor(ModelSummary& summary, TensorSummary tensor) {
  int64_t elements = 1;
  for (const int64_t size : tensor.shape) elements *= size;
  summary.parameters += elements;
  summary.weight_bytes += tensor.bytes;
  summary.tensors.push_back(std::move(tensor));
}

void set_config(ModelSummary& summary, Result<ModelConfig> config) {
  if (!config.ok()) {
    summary.why_not = config.status();
    return;
  }
  constexpr int64_t kF16Bytes = 2;
  summary.kv_bytes_per_token_f16 =
      int64_t{2} * config->num_layers * config->num_kv_heads * config->head_dim * kF16Bytes;
  summary.config = std::move(config).value();
}

Result<ModelSummary> inspect_gguf(const std::string& path) {
  TENON_ASSIGN_OR_RETURN(const auto files, open_gguf_files(path));
  const GgufFile& first = *files.front();
  ModelSummary summary;
  summary.format = fmt::format("GGUF {}", first.version());
  summary.architecture = "unknown";
  if (const auto name = first.get_string("general.architecture"); name.ok()) {
    summary.architecture = printable_text(*name, kMaxValueBytes);
  }
  for (const auto& [key, value] : first.metadata()) {
    summary.metadata.emplace_back(printable_text(key, kMaxValueBytes), value_text(value));
  }
  for (const auto& file : files) {
    summary.files.push_back(file->file()->path());
    for (const GgufTensor& tensor : file->tensors()) {
      add_tensor(summary, {printable_text(tensor.name, kMaxValueBytes),
                           std::string(ggml_type_info(tensor.type)->name), tensor.shape,
                           static_cast<int64_t>(tensor.data.size())});
    }
  }
  set_config(summary, config_from_gguf(files));
  return summary;
}

Result<ModelConfig> model_config_from_hf(const std::string& folder) {
  TENON_ASSIGN_OR_RETURN(HfConfig config, config_from_hf(folder));
  return std::move(config.model);
}

Result<ModelSummary> inspect_folder(const std::string& folder) {
  const std::string config_path = (std::filesystem::path(folder) / "config.json").string();
  TENON_ASSIGN_OR_RETURN(const nlohmann::json json, read_json_file(config_path, kMaxConfigBytes));
  if (!json.is_object()) return invalid_argument("{}: not a JSON object", config_path);
  ModelSummary summary;
  summary.format = "safetensors";
  summary.architecture = "unknown";
  SafetensorsFolder opened;
  if (has_safetensors(folder)) {
    TENON_ASSIGN_OR_RETURN(opened, open_safetensors_folder(folder));
    summary.notes = opened.notes;
  } else {
    summary.format = "config.json alone";
    summary.notes.push_back(
        "no weights in the folder; --load-format dummy runs the shape with random ones");
  }
  for (const auto& [key, value] : json.items()) {
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    summary.metadata.emplace_back(printable_text(key, kMaxValueBytes),
                                  printable_text(text, kMaxValueBytes));
    if (key == "architectures" && value.is_array() && !value.empty() && value.front().is_string()) {
      summary.architecture = printable_text(value.front().get<std::string>(), kMaxValueBytes);
    }
  }
  for (const auto& file : opened.files) {
    summary.files.push_back(file->file()->path());
    const std::string name = std::filesystem::path(file->file()->path()).filename().string();
    for (const SafetensorsTensor& tensor : file->tensors()) {
      const auto listed = opened.index.find(tensor.name);
      if (listed == opened.index.end() || listed->second != name) continue;
      add_tensor(summary, {printable_text(tensor.name, kMaxValueBytes), tensor.dtype, tensor.shape,
                           static_cast<int64_t>(tensor.data.size())});
    }
  }
  set_config(summary, model_config_from_hf(folder));
  return summary;
}

}  // namespace

Result<ModelSummary> inspect_model(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error) ? inspect_folder(path) : inspect_gguf(path);
}

}  // namespace tenon
