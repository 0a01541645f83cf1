#include "formats/gguf_split.h"
#include "text/tokenizer.h"
#include "text/tokenizer_gguf.h"

namespace tenon {
namespace {

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

}  // namespace

Result<TextAssets> load_text_assets(const std::string& model_path) {
  return from_gguf(model_path);
}

}  // namespace tenon
