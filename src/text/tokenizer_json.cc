#include "text/tokenizer_json.h"

#include <nlohmann/json.hpp>

#include "text/json_fields.h"
#include "text/tokenizer_json_steps.h"

namespace tenon {
namespace {

using nlohmann::json;

// Ids beyond this (and beyond any vocabulary in use) are a broken file, not a reason to allocate.
constexpr int64_t kMaxId = 1 << 24;

class TokenizerJsonLoader {
 public:
  explicit TokenizerJsonLoader(const json& root) : root_(root, "tokenizer") {}

  Result<BpeTokenizerParts> run() {
    const json* model = root_.get("model");
    if (model == nullptr) return root_.wrong("model", "there");
    TENON_RETURN_IF_ERROR(read_model(*model));
    TENON_RETURN_IF_ERROR(read_added_tokens());
    parts_.vocabulary = vocabulary_;
    TENON_RETURN_IF_ERROR(read_steps());
    root_.get("version");
    root_.get("truncation");
    root_.get("padding");
    TENON_RETURN_IF_ERROR(root_.finish());
    return std::move(parts_);
  }

 private:
  Status read_model(const json& value) {
    JsonFields model(value, "model");
    if (!model.is_object()) return root_.wrong("model", "an object");
    TENON_ASSIGN_OR_RETURN(const std::optional<std::string> type, model.text("type"));
    if (type.value_or("BPE") != "BPE") return unsupported("model.type '{}' (known: BPE)", *type);
    if (const json* dropout = model.get("dropout"); dropout != nullptr && *dropout != 0) {
      return unsupported("model.dropout");
    }
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      TENON_ASSIGN_OR_RETURN(const std::optional<std::string> affix, model.text(name));
      if (affix && !affix->empty()) return unsupported("model.{} '{}'", name, *affix);
    }
    TENON_ASSIGN_OR_RETURN(parts_.bpe.fuse_unk, model.boolean("fuse_unk", false));
    TENON_ASSIGN_OR_RETURN(parts_.bpe.byte_fallback, model.boolean("byte_fallback", false));
    TENON_ASSIGN_OR_RETURN(parts_.bpe.ignore_merges, model.boolean("ignore_merges", false));
    const json* vocabulary = model.get("vocab");
    if (vocabulary == nullptr || !vocabulary->is_object()) return model.wrong("vocab", "an object");
    TENON_RETURN_IF_ERROR(read_vocabulary(*vocabulary));
    TENON_ASSIGN_OR_RETURN(const std::optional<std::string> unk, model.text("unk_token"));
    if (unk) {
      parts_.bpe.unk = vocabulary_->find(*unk);
      if (!parts_.bpe.unk)
        return unsupported("model.unk_token '{}', which is not in model.vocab", *unk);
    }
    const json* merges = model.get("merges");
    if (merges == nullptr || !merges->is_array()) return model.wrong("merges", "an array");
    TENON_RETURN_IF_ERROR(read_merges(*merges));
    return model.finish();
  }

  Status read_vocabulary(const json& vocabulary) {
    vocabulary_->reserve(vocabulary.size() + 1024, vocabulary.size() * 8);
    for (const auto& item : vocabulary.items()) {
      const json& id = item.value();
      if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > kMaxId) {
        return invalid_argument("model.vocab: '{}' has the id {}", item.key(), id.dump());
      }
      if (!vocabulary_->add(id.get<int32_t>(), item.key())) {
        return unsupported("model.vocab: the id {} stands for '{}' and '{}'", id.get<int32_t>(),
                           vocabulary_->text(id.get<int32_t>()), item.key());
      }
    }
    return ok_status();
  }

  Status read_merges(const json& merges) {
    parts_.merges.reserve(merges.size());
    std::string joined;
    for (size_t i = 0; i < merges.size(); ++i) {
      const json& merge = merges[i];
      std::string_view left, right;
      if (merge.is_string()) {
        const std::string_view text = merge.get_ref<const std::string&>();
        const size_t space = text.find(' ');
        if (space == text.npos || text.find(' ', space + 1) != text.npos) {
          return data_loss("model.merges[{}] '{}' is not two pieces and one space", i, text);
        }
        left = text.substr(0, space);
        right = text.substr(space + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
                 merge[1].is_string()) {
        left = merge[0].get_ref<const std::string&>();
        right = merge[1].get_ref<const std::string&>();
      } else {
        return data_loss("model.merges[{}] is neither a string nor a pair of strings", i);
      }
      joined.assign(left).append(right);
      const std::optional<int32_t> left_id = vocabulary_->find(left),
                                   right_id = vocabulary_->find(right),
                                   merged_id = vocabulary_->find(joined);
      if (!left_id || !right_id || !merged_id) {
        return data_loss("model.merges[{}] ('{}', '{}') names a piece that is not in model.vocab",
                         i, left, right);
      }
      parts_.merges.push_back({*left_id, *right_id, *merged_id});
    }
    return ok_status();
  }

  Status read_added_tokens() {
    const json* tokens = root_.get("added_tokens");
    if (tokens == nullptr) return ok_status();
    if (!tokens->is_array()) return root_.wrong("added_tokens", "an array");
    for (size_t i = 0; i < tokens->size(); ++i) {
      JsonFields fields((*tokens)[i], "added_tokens[" + std::to_string(i) + "]");
      if (!fields.is_object()) return invalid_argument("{} is not an object", fields.where());
      AddedToken token;
      TENON_ASSIGN_OR_RETURN(const int64_t id, fields.integer("id", -1));
      if (id < 0 || id > kMaxId) return fields.wrong("id", "a token id");
      token.id = static_cast<int32_t>(id);
      TENON_ASSIGN_OR_RETURN(token.content, fields.required_text("content"));
      TENON_ASSIGN_OR_RETURN(token.single_word, fields.boolean("single_word", false));
      TENON_ASSIGN_OR_RETURN(token.lstrip, fields.boolean("lstrip", false));
      TENON_ASSIGN_OR_RETURN(token.rstrip, fields.boolean("rstrip", false));
      TENON_ASSIGN_OR_RETURN(token.special, fields.boolean("special", false));
      TENON_ASSIGN_OR_RETURN(token.normalized, fields.boolean("normalized", !token.special));
      TENON_RETURN_IF_ERROR(fields.finish());
      if (token.content.empty()) return unsupported("{}: an empty token", fields.where());
      if (vocabulary_->find(token.content) != token.id &&
          !vocabulary_->add(token.id, token.content)) {
        return unsupported("{}: '{}' has the id {}, which model.vocab contradicts", fields.where(),
                           token.content, token.id);
      }
      parts_.added.push_back(std::move(token));
    }
    return ok_status();
  }

  Status read_steps() {
    if (const json* normalizer = root_.get("normalizer")) {
      TENON_RETURN_IF_ERROR(read_normalizer(*normalizer, "normalizer", parts_.normalizer));
    }
    if (const json* pre_tokenizer = root_.get("pre_tokenizer")) {
      TENON_RETURN_IF_ERROR(read_pre_tokenizer(*pre_tokenizer, "pre_tokenizer",
                                               parts_.pre_tokenizer, parts_.bpe.byte_level));
    }
    if (const json* post_processor = root_.get("post_processor")) {
      TENON_RETURN_IF_ERROR(read_post_processor(*post_processor, "post_processor", parts_));
    }
    const json* decoder = root_.get("decoder");
    if (decoder == nullptr) return unsupported("a tokenizer without a decoder");
    TENON_RETURN_IF_ERROR(read_decoder(*decoder, "decoder", parts_));
    if (!parts_.prefix.empty()) parts_.bos = parts_.prefix.front();
    if (!parts_.suffix.empty()) {
      parts_.eos = parts_.suffix.back();
      parts_.end_ids = {*parts_.eos};
    }
    return ok_status();
  }

  JsonFields root_;
  std::shared_ptr<Vocabulary> vocabulary_ = std::make_shared<Vocabulary>();
  BpeTokenizerParts parts_;
};

}  // namespace

Result<BpeTokenizerParts> parse_tokenizer_json(std::string_view text, const std::string& name) {
  const json root = json::parse(text, nullptr, false);
  if (!root.is_object()) return data_loss("{}: not a JSON object", name);
  Result<BpeTokenizerParts> parts = TokenizerJsonLoader(root).run();
  if (!parts.ok()) return parts.status().with_context(name);
  return parts;
}

Result<std::shared_ptr<const Tokenizer>> load_tokenizer_json(std::string_view text,
                                                             const std::string& name) {
  TENON_ASSIGN_OR_RETURN(BpeTokenizerParts parts, parse_tokenizer_json(text, name));
  Result<std::shared_ptr<const Tokenizer>> tokenizer = make_bpe_tokenizer(std::move(parts));
  if (!tokenizer.ok()) return tokenizer.status().with_context(name);
  return tokenizer;
}

}  // namespace tenon
