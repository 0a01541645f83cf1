#include "text/tokenizer_gguf.h"

#include <algorithm>
#include <cmath>

#include "text/bpe_tokenizer.h"
#include "text/pre_tokenizer_families.h"
#include "text/sentencepiece_merges.h"

namespace tenon {
namespace {

// tokenizer.ggml.token_type
enum class TokenType : int64_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

class GgufTokenizerLoader {
 public:
  explicit GgufTokenizerLoader(const GgufFile& file) : file_(file) {}

  Result<std::shared_ptr<const Tokenizer>> run() {
    TENON_ASSIGN_OR_RETURN(const std::string model, file_.get_string("tokenizer.ggml.model"));
    if (model != "gpt2" && model != "llama") {
      return unsupported("tokenizer.ggml.model '{}' (known: gpt2, llama)", model);
    }
    TENON_RETURN_IF_ERROR(read_vocabulary());
    TENON_RETURN_IF_ERROR(model == "gpt2" ? read_byte_level() : read_sentencepiece());
    parts_.vocabulary = vocabulary_;
    TENON_RETURN_IF_ERROR(read_special_ids());
    return make_bpe_tokenizer(std::move(parts_));
  }

 private:
  Status read_vocabulary() {
    TENON_ASSIGN_OR_RETURN(const GgufArray* tokens, file_.get_array("tokenizer.ggml.tokens"));
    if (tokens->type != GgufType::kString || tokens->strings.empty()) {
      return invalid_argument("tokenizer.ggml.tokens is not a list of strings");
    }
    const size_t count = tokens->strings.size();
    types_.assign(count, TokenType::kNormal);
    if (file_.find("tokenizer.ggml.token_type") != nullptr) {
      TENON_ASSIGN_OR_RETURN(const GgufArray* types, file_.get_array("tokenizer.ggml.token_type"));
      if (types->count != count || types->numbers.empty()) {
        return data_loss("tokenizer.ggml.token_type has {} entries, tokenizer.ggml.tokens {}",
                         types->count, count);
      }
      for (size_t i = 0; i < count; ++i) types_[i] = static_cast<TokenType>(types->int_at(i));
    }
    size_t bytes = 0;
    for (const std::string_view text : tokens->strings) bytes += text.size();
    vocabulary_->reserve(count, bytes);
    for (size_t i = 0; i < count; ++i) {
      const auto id = static_cast<int32_t>(i);
      if (!vocabulary_->add(id, tokens->strings[i])) {
        return unsupported("tokenizer.ggml.tokens: tokens {} and {} are both '{}'",
                           *vocabulary_->find(tokens->strings[i]), i, tokens->strings[i]);
      }
      const TokenType type = types_[i];
      if (type == TokenType::kControl || type == TokenType::kUserDefined ||
          type == TokenType::kUnknown) {
        AddedToken token;
        token.id = id;
        token.content = tokens->strings[i];
        token.special = type != TokenType::kUserDefined;
        parts_.added.push_back(std::move(token));
      }
    }
    return ok_status();
  }

  Status read_byte_level() {
    TENON_ASSIGN_OR_RETURN(const std::string pre, file_.get_string("tokenizer.ggml.pre"));
    TENON_ASSIGN_OR_RETURN(PreTokenizerFamily family, pre_tokenizer_family(pre));
    parts_.normalizer = std::move(family.normalizer);
    parts_.pre_tokenizer = std::move(family.pre_tokenizer);
    parts_.bpe.byte_level = true;
    parts_.bpe.ignore_merges = family.ignore_merges;
    add_bos_ = family.add_bos;

    TENON_ASSIGN_OR_RETURN(const GgufArray* merges, file_.get_array("tokenizer.ggml.merges"));
    if (merges->type != GgufType::kString)
      return invalid_argument("tokenizer.ggml.merges is not a list of strings");
    parts_.merges.reserve(merges->strings.size());
    std::string joined;
    for (size_t i = 0; i < merges->strings.size(); ++i) {
      // The byte alphabet has no space, so the only one is the separator.
      const std::string_view text = merges->strings[i];
      const size_t space = text.find(' ');
      if (space == text.npos)
        return data_loss("tokenizer.ggml.merges[{}] '{}' is not a pair", i, text);
      const std::string_view left = text.substr(0, space), right = text.substr(space + 1);
      joined.assign(left).append(right);
      const std::optional<int32_t> left_id = vocabulary_->find(left),
                                   right_id = vocabulary_->find(right),
                                   merged_id = vocabulary_->find(joined);
      if (!left_id || !right_id || !merged_id) {
        return data_loss(
            "tokenizer.ggml.merges[{}] '{}' names a piece that is not in tokenizer.ggml.tokens", i,
            text);
      }
      parts_.merges.push_back({*left_id, *right_id, *merged_id});
    }
    return ok_status();
  }

  Status read_sentencepiece() {
    TENON_ASSIGN_OR_RETURN(const bool removes_spaces, flag("remove_extra_whitespaces", false));
    if (removes_spaces) return unsupported("tokenizer.ggml.remove_extra_whitespaces");
    if (const GgufValue* map = file_.find("tokenizer.ggml.precompiled_charsmap")) {
      const auto* array = std::get_if<GgufArray>(map);
      if (array == nullptr || array->count > 0)
        return unsupported("tokenizer.ggml.precompiled_charsmap");
    }
    TENON_ASSIGN_OR_RETURN(const GgufArray* array, file_.get_array("tokenizer.ggml.scores"));
    if (array->count != types_.size() || array->numbers.empty()) {
      return data_loss("tokenizer.ggml.scores has {} entries, tokenizer.ggml.tokens {}",
                       array->count, types_.size());
    }
    std::vector<float> scores(types_.size());
    for (size_t i = 0; i < scores.size(); ++i) {
      scores[i] = static_cast<float>(array->float_at(i));
      if (!std::isfinite(scores[i])) return data_loss("tokenizer.ggml.scores[{}] is not finite", i);
    }
    std::vector<bool> skipped(types_.size());
    for (size_t i = 0; i < skipped.size(); ++i) {
      skipped[i] = types_[i] == TokenType::kControl || types_[i] == TokenType::kUnknown;
    }
    parts_.merges = merges_from_scores(*vocabulary_, scores, skipped);
    parts_.bpe.byte_fallback = true;
    parts_.bpe.fuse_unk = true;

    TENON_ASSIGN_OR_RETURN(const bool space_prefix, flag("add_space_prefix", true));
    if (space_prefix) parts_.normalizer.add(PrependText{std::string(kWordMark)});
    TENON_ASSIGN_OR_RETURN(auto space, Regex::literal(" "));
    parts_.normalizer.add(ReplaceMatches{std::move(space), std::string(kWordMark)});
    parts_.decodes_word_marks = true;
    parts_.decodes_byte_pieces = true;
    parts_.strips_leading_space = space_prefix;
    add_bos_ = true;
    TENON_ASSIGN_OR_RETURN(parts_.bpe.unk, special_id("unknown_token_id"));
    return ok_status();
  }

  Status read_special_ids() {
    TENON_ASSIGN_OR_RETURN(parts_.bos, special_id("bos_token_id"));
    TENON_ASSIGN_OR_RETURN(parts_.eos, special_id("eos_token_id"));
    TENON_ASSIGN_OR_RETURN(const std::optional<int32_t> eot, special_id("eot_token_id"));
    for (const std::optional<int32_t>& id : {parts_.eos, eot}) {
      if (id &&
          std::find(parts_.end_ids.begin(), parts_.end_ids.end(), *id) == parts_.end_ids.end()) {
        parts_.end_ids.push_back(*id);
      }
    }
    TENON_ASSIGN_OR_RETURN(const bool add_bos, flag("add_bos_token", add_bos_));
    TENON_ASSIGN_OR_RETURN(const bool add_eos, flag("add_eos_token", false));
    if (add_bos && parts_.bos) parts_.prefix.push_back(*parts_.bos);
    if (add_eos && parts_.eos) parts_.suffix.push_back(*parts_.eos);
    return ok_status();
  }

  Result<bool> flag(const std::string& name, bool otherwise) const {
    const std::string key = "tokenizer.ggml." + name;
    if (file_.find(key) == nullptr) return otherwise;
    return file_.get_bool(key);
  }

  Result<std::optional<int32_t>> special_id(const std::string& name) const {
    const std::string key = "tokenizer.ggml." + name;
    if (file_.find(key) == nullptr) return std::optional<int32_t>();
    TENON_ASSIGN_OR_RETURN(const int64_t id, file_.get_int(key));
    if (id < 0 || id >= static_cast<int64_t>(types_.size())) {
      return data_loss("{} is {}, but there are {} tokens", key, id, types_.size());
    }
    return std::optional<int32_t>(static_cast<int32_t>(id));
  }

  const GgufFile& file_;
  std::shared_ptr<Vocabulary> vocabulary_ = std::make_shared<Vocabulary>();
  std::vector<TokenType> types_;
  BpeTokenizerParts parts_;
  bool add_bos_ = false;
};

}  // namespace

Result<std::shared_ptr<const Tokenizer>> load_tokenizer_gguf(const GgufFile& file) {
  return GgufTokenizerLoader(file).run();
}

}  // namespace tenon
