// What comes with a model besides weights, from a GGUF file or a Hugging Face folder.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "formats/gguf_split.h"
#include "text/tokenizer.h"
#include "text/tokenizer_gguf.h"
#include "text/tokenizer_json.h"

namespace tenon {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

Result<TextAssets> from_gguf(const std::string& path) {
  TENON_ASSIGN_OR_RETURN(const auto files, open_gguf_files(path));
  const GgufFile& file = *files.front();
  TextAssets assets;
  Result<std::shared_ptr<const Tokenizer>> tokenizer = load_tokenizer_gguf(file);
  if (!tokenizer.ok()) return tokenizer.status().with_context(path);
  assets.tokenizer = std::move(tokenizer).value();
  if (file.find("tokenizer.chat_template") != nullptr) {
    TENON_ASSIGN_OR_RETURN(assets.chat_template, file.get_string("tokenizer.chat_template"));
  }
  return assets;
}

Result<std::string> read_file(const fs::path& path) {
  TENON_ASSIGN_OR_RETURN(const std::shared_ptr<const MappedFile> file,
                         MappedFile::open(path.string()));
  return std::string(reinterpret_cast<const char*>(file->bytes().data()), file->size());
}

// An empty object if the file is not there.
Result<json> read_optional_json(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return json::object();
  TENON_ASSIGN_OR_RETURN(const std::string text, read_file(path));
  json value = json::parse(text, nullptr, false);
  if (!value.is_object()) return data_loss("{}: not a JSON object", path.string());
  return value;
}

// A token is written as "text" or as {"content": "text", ...}.
std::optional<std::string> token_text(const json& config, const char* name) {
  const auto it = config.find(name);
  if (it == config.end()) return std::nullopt;
  if (it->is_string()) return it->get<std::string>();
  if (it->is_object() && it->contains("content") && (*it)["content"].is_string()) {
    return (*it)["content"].get<std::string>();
  }
  return std::nullopt;
}

// The source itself, or a list of {"name", "template"} of which "default" counts.
std::string chat_template_of(const json& config) {
  const auto it = config.find("chat_template");
  if (it == config.end()) return {};
  if (it->is_string()) return it->get<std::string>();
  if (!it->is_array()) return {};
  for (const json& entry : *it) {
    if (entry.is_object() && entry.value("name", json()) == "default" &&
        entry.value("template", json()).is_string()) {
      return entry["template"].get<std::string>();
    }
  }
  return {};
}

class FolderLoader {
 public:
  explicit FolderLoader(fs::path folder) : folder_(std::move(folder)) {}

  Result<TextAssets> run() {
    const fs::path file = folder_ / "tokenizer.json";
    std::error_code error;
    if (!fs::exists(file, error)) {
      return not_found("{}: no tokenizer.json there (other tokenizer files are not read)",
                       folder_.string());
    }
    TENON_ASSIGN_OR_RETURN(const std::string text, read_file(file));
    TENON_ASSIGN_OR_RETURN(config_, read_optional_json(folder_ / "tokenizer_config.json"));
    TENON_ASSIGN_OR_RETURN(special_tokens_,
                           read_optional_json(folder_ / "special_tokens_map.json"));
    TENON_ASSIGN_OR_RETURN(BpeTokenizerParts parts, parse_tokenizer_json(text, file.string()));
    TENON_RETURN_IF_ERROR(set_special(parts, "bos_token", parts.bos));
    TENON_RETURN_IF_ERROR(set_special(parts, "eos_token", parts.eos));
    if (parts.eos) parts.end_ids = {*parts.eos};

    TextAssets assets;
    Result<std::shared_ptr<const Tokenizer>> tokenizer = make_bpe_tokenizer(std::move(parts));
    if (!tokenizer.ok()) return tokenizer.status().with_context(file.string());
    assets.tokenizer = std::move(tokenizer).value();
    const fs::path jinja = folder_ / "chat_template.jinja";
    if (fs::exists(jinja, error)) {
      TENON_ASSIGN_OR_RETURN(assets.chat_template, read_file(jinja));
      return assets;
    }
    TENON_ASSIGN_OR_RETURN(const json own_file, read_optional_json(folder_ / "chat_template.json"));
    assets.chat_template = chat_template_of(own_file);
    if (assets.chat_template.empty()) assets.chat_template = chat_template_of(config_);
    return assets;
  }

 private:
  Status set_special(const BpeTokenizerParts& parts,
                     const char* name,
                     std::optional<int32_t>& id) const {
    std::optional<std::string> text = token_text(config_, name);
    if (!text) text = token_text(special_tokens_, name);
    if (!text) return ok_status();
    id = parts.vocabulary->find(*text);
    if (!id)
      return invalid_argument("{}: {} '{}' is not in the vocabulary", folder_.string(), name,
                              *text);
    return ok_status();
  }

  fs::path folder_;
  json config_, special_tokens_;
};

}  // namespace

Result<TextAssets> load_text_assets(const std::string& model_path) {
  std::error_code error;
  if (fs::is_directory(model_path, error)) return FolderLoader(model_path).run();
  return from_gguf(model_path);
}

}  // namespace tenon
