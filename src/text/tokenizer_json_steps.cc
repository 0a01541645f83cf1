#include "text/tokenizer_json_steps.h"

#include <nlohmann/json.hpp>

#include "text/json_fields.h"

namespace tenon {
namespace {

using nlohmann::json;

// Calls `read(step, type, fields)` for the step or for each one of a (nested) Sequence, whose list
// is in `list_name`.
template <typename Read>
Status for_each_step(const json& value,
                     const std::string& where,
                     const char* list_name,
                     Read&& read,
                     int depth = 0) {
  constexpr int kMaxDepth = 16;
  if (depth > kMaxDepth) return invalid_argument("{}: Sequences nested too deeply", where);
  JsonFields fields(value, where);
  if (!fields.is_object()) return invalid_argument("{} is not an object", where);
  TENON_ASSIGN_OR_RETURN(const std::string type, fields.required_text("type"));
  if (type != "Sequence") {
    TENON_RETURN_IF_ERROR(read(type, fields));
    return fields.finish();
  }
  const json* list = fields.get(list_name);
  if (list == nullptr || !list->is_array()) return fields.wrong(list_name, "an array");
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string name = where + "." + list_name + "[" + std::to_string(i) + "]";
    TENON_RETURN_IF_ERROR(for_each_step((*list)[i], name, list_name, read, depth + 1));
  }
  return fields.finish();
}

Status unknown_type(const JsonFields& fields, const std::string& type, std::string_view known) {
  return unsupported("{} of type '{}' (known: {})", fields.where(), type, known);
}

// {"String": "x"} or {"Regex": "x"}
Result<std::shared_ptr<const Regex>> read_pattern(JsonFields& fields) {
  const json* value = fields.get("pattern");
  if (value == nullptr || !value->is_object()) return fields.wrong("pattern", "an object");
  JsonFields pattern(*value, fields.where() + ".pattern");
  TENON_ASSIGN_OR_RETURN(const std::optional<std::string> text, pattern.text("String"));
  TENON_ASSIGN_OR_RETURN(const std::optional<std::string> regex, pattern.text("Regex"));
  TENON_RETURN_IF_ERROR(pattern.finish());
  if (text.has_value() == regex.has_value())
    return fields.wrong("pattern", "one of String and Regex");
  Result<std::shared_ptr<const Regex>> compiled =
      text ? Regex::literal(*text) : Regex::compile(*regex);
  if (!compiled.ok()) return compiled.status().with_context(fields.where());
  return compiled;
}

Status read_split(JsonFields& fields, PreTokenizer& pre_tokenizer) {
  SplitStep step;
  TENON_ASSIGN_OR_RETURN(step.pattern, read_pattern(fields));
  TENON_ASSIGN_OR_RETURN(step.invert, fields.boolean("invert", false));
  TENON_ASSIGN_OR_RETURN(const std::string behavior, fields.required_text("behavior"));
  if (behavior == "Removed") {
    step.behavior = SplitBehavior::kRemoved;
  } else if (behavior == "Isolated") {
    step.behavior = SplitBehavior::kIsolated;
  } else if (behavior == "MergedWithPrevious") {
    step.behavior = SplitBehavior::kMergedWithPrevious;
  } else if (behavior == "MergedWithNext") {
    step.behavior = SplitBehavior::kMergedWithNext;
  } else if (behavior == "Contiguous") {
    step.behavior = SplitBehavior::kContiguous;
  } else {
    return unsupported("{}.behavior '{}'", fields.where(), behavior);
  }
  pre_tokenizer.add(std::move(step));
  return ok_status();
}

// prepend_scheme, or the older add_prefix_space
Result<PrefixScheme> read_prefix_scheme(JsonFields& fields) {
  TENON_ASSIGN_OR_RETURN(const std::optional<std::string> scheme, fields.text("prepend_scheme"));
  TENON_ASSIGN_OR_RETURN(const bool add_prefix_space, fields.boolean("add_prefix_space", true));
  if (!scheme) return add_prefix_space ? PrefixScheme::kAlways : PrefixScheme::kNever;
  if (*scheme == "never") return PrefixScheme::kNever;
  if (!add_prefix_space)
    return unsupported("{}: add_prefix_space contradicts prepend_scheme", fields.where());
  if (*scheme == "first") return PrefixScheme::kFirst;
  if (*scheme == "always") return PrefixScheme::kAlways;
  return unsupported("{}.prepend_scheme '{}'", fields.where(), *scheme);
}

Result<std::string> read_mark(JsonFields& fields) {
  fields.get("str_rep");  // the mark once more, in old files
  TENON_ASSIGN_OR_RETURN(const std::optional<std::string> mark, fields.text("replacement"));
  return mark.value_or(std::string(kWordMark));
}

Status read_metaspace(JsonFields& fields, PreTokenizer& pre_tokenizer) {
  MetaspaceStep step;
  TENON_ASSIGN_OR_RETURN(step.mark, read_mark(fields));
  if (step.mark.empty()) return fields.wrong("replacement", "a character");
  TENON_ASSIGN_OR_RETURN(step.prefix, read_prefix_scheme(fields));
  TENON_ASSIGN_OR_RETURN(step.split, fields.boolean("split", true));
  pre_tokenizer.add(std::move(step));
  return ok_status();
}

Status read_digits(JsonFields& fields, PreTokenizer& pre_tokenizer) {
  TENON_ASSIGN_OR_RETURN(const bool individual, fields.boolean("individual_digits", false));
  TENON_ASSIGN_OR_RETURN(auto numeric, Regex::compile(R"(\p{N})"));
  pre_tokenizer.add(SplitStep{std::move(numeric),
                              individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous});
  return ok_status();
}

Status read_byte_level(JsonFields& fields, PreTokenizer& pre_tokenizer) {
  TENON_ASSIGN_OR_RETURN(const bool add_prefix_space, fields.boolean("add_prefix_space", true));
  TENON_ASSIGN_OR_RETURN(const bool use_regex, fields.boolean("use_regex", true));
  fields.get("trim_offsets");  // concerns offsets alone
  if (add_prefix_space) pre_tokenizer.add(PrefixSpaceStep{});
  if (use_regex) {
    TENON_ASSIGN_OR_RETURN(auto words, Regex::compile(kGpt2Pattern));
    pre_tokenizer.add(SplitStep{std::move(words), SplitBehavior::kIsolated});
  }
  return ok_status();
}

Result<std::vector<int32_t>> template_token(const json& special_tokens,
                                            const std::string& name,
                                            const BpeTokenizerParts& parts,
                                            const std::string& where) {
  const auto entry = special_tokens.find(name);
  if (entry == special_tokens.end() || !entry->is_object() || !entry->contains("ids") ||
      !(*entry)["ids"].is_array()) {
    return invalid_argument("{}: the token '{}' is not in special_tokens", where, name);
  }
  std::vector<int32_t> ids;
  for (const json& id : (*entry)["ids"]) {
    if (!id.is_number_integer() || !parts.vocabulary->has(id.get<int32_t>())) {
      return invalid_argument("{}: the token '{}' has the id {}", where, name, id.dump());
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

Status read_template(JsonFields& fields, BpeTokenizerParts& parts) {
  fields.get("pair");  // prompts are single sequences
  const json* single = fields.get("single");
  const json* special_tokens = fields.get("special_tokens");
  if (single == nullptr || !single->is_array()) return fields.wrong("single", "an array");
  if (special_tokens == nullptr || !special_tokens->is_object())
    return fields.wrong("special_tokens", "an object");
  std::vector<int32_t> prefix, suffix;
  bool text_seen = false;
  for (const json& item : *single) {
    if (!item.is_object() || item.size() != 1 || !item.begin()->is_object()) {
      return fields.wrong("single", "a list of SpecialToken and Sequence");
    }
    const json& body = *item.begin();
    const std::string kind = item.begin().key();
    const json* id = body.contains("id") && body["id"].is_string() ? &body["id"] : nullptr;
    if (id == nullptr || (kind != "Sequence" && kind != "SpecialToken")) {
      return unsupported("{}.single: {}", fields.where(), item.dump());
    }
    if (kind == "Sequence") {
      if (text_seen || *id != "A")
        return unsupported("{}.single that is not one sequence A", fields.where());
      text_seen = true;
      continue;
    }
    TENON_ASSIGN_OR_RETURN(
        const std::vector<int32_t> ids,
        template_token(*special_tokens, id->get<std::string>(), parts, fields.where()));
    std::vector<int32_t>& side = text_seen ? suffix : prefix;
    side.insert(side.end(), ids.begin(), ids.end());
  }
  if (!text_seen) return unsupported("{}.single without the text", fields.where());
  // Around what an earlier processor added.
  parts.prefix.insert(parts.prefix.begin(), prefix.begin(), prefix.end());
  parts.suffix.insert(parts.suffix.end(), suffix.begin(), suffix.end());
  return ok_status();
}

}  // namespace

Status read_normalizer(const json& value, const std::string& where, Normalizer& normalizer) {
  return for_each_step(
      value, where, "normalizers", [&](const std::string& type, JsonFields& fields) -> Status {
        if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
          normalizer.add(
              UnicodeForm{.compose = type.back() == 'C', .compatibility = type.size() == 4});
        } else if (type == "Prepend") {
          TENON_ASSIGN_OR_RETURN(std::string text, fields.required_text("prepend"));
          normalizer.add(PrependText{std::move(text)});
        } else if (type == "Replace") {
          ReplaceMatches step;
          TENON_ASSIGN_OR_RETURN(step.pattern, read_pattern(fields));
          TENON_ASSIGN_OR_RETURN(step.content, fields.required_text("content"));
          normalizer.add(std::move(step));
        } else {
          return unknown_type(fields, type, "Sequence, NFC, NFD, NFKC, NFKD, Prepend, Replace");
        }
        return ok_status();
      });
}

Status read_pre_tokenizer(const json& value,
                          const std::string& where,
                          PreTokenizer& pre_tokenizer,
                          bool& byte_level) {
  byte_level = false;
  return for_each_step(
      value, where, "pretokenizers", [&](const std::string& type, JsonFields& fields) -> Status {
        if (byte_level) return unsupported("{} behind a ByteLevel pre-tokenizer", fields.where());
        if (type == "Split") return read_split(fields, pre_tokenizer);
        if (type == "Digits") return read_digits(fields, pre_tokenizer);
        if (type == "Metaspace") return read_metaspace(fields, pre_tokenizer);
        if (type != "ByteLevel")
          return unknown_type(fields, type, "Sequence, Split, Digits, Metaspace, ByteLevel");
        byte_level = true;
        return read_byte_level(fields, pre_tokenizer);
      });
}

Status read_post_processor(const json& value, const std::string& where, BpeTokenizerParts& parts) {
  return for_each_step(
      value, where, "processors", [&](const std::string& type, JsonFields& fields) -> Status {
        if (type == "TemplateProcessing") return read_template(fields, parts);
        if (type != "ByteLevel")
          return unknown_type(fields, type, "Sequence, TemplateProcessing, ByteLevel");
        for (const char* name : {"add_prefix_space", "trim_offsets", "use_regex"})
          fields.get(name);  // offsets alone
        return ok_status();
      });
}

Status read_decoder(const json& value, const std::string& where, BpeTokenizerParts& parts) {
  bool byte_level = false;
  bool fused = false;
  TENON_RETURN_IF_ERROR(for_each_step(
      value, where, "decoders", [&](const std::string& type, JsonFields& fields) -> Status {
        if (type == "ByteLevel") {
          for (const char* name : {"add_prefix_space", "trim_offsets", "use_regex"})
            fields.get(name);  // no effect
          byte_level = true;
        } else if (type == "ByteFallback") {
          parts.decodes_byte_pieces = true;
        } else if (type == "Fuse") {
          fused = true;
        } else if (type == "Metaspace") {
          TENON_ASSIGN_OR_RETURN(const std::string mark, read_mark(fields));
          TENON_ASSIGN_OR_RETURN(const PrefixScheme scheme, read_prefix_scheme(fields));
          fields.get("split");
          if (mark != kWordMark) return unsupported("{}.replacement '{}'", fields.where(), mark);
          parts.decodes_word_marks = true;
          parts.strips_leading_space = scheme != PrefixScheme::kNever;
        } else if (type == "Replace") {
          const json* pattern = fields.get("pattern");
          TENON_ASSIGN_OR_RETURN(const std::string content, fields.required_text("content"));
          if (pattern == nullptr || *pattern != json{{"String", kWordMark}} || content != " ") {
            return unsupported("{}: a replacement other than of '{}' by a space", fields.where(),
                               kWordMark);
          }
          parts.decodes_word_marks = true;
        } else if (type == "Strip") {
          TENON_ASSIGN_OR_RETURN(const std::string content, fields.required_text("content"));
          TENON_ASSIGN_OR_RETURN(const int64_t start, fields.integer("start", 0));
          TENON_ASSIGN_OR_RETURN(const int64_t stop, fields.integer("stop", 0));
          if (content != " " || start < 0 || start > 1 || stop != 0 || !fused) {
            return unsupported("{}: a Strip other than of one leading space behind a Fuse",
                               fields.where());
          }
          parts.strips_leading_space = start == 1;
        } else {
          return unknown_type(fields, type,
                              "Sequence, ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip");
        }
        return ok_status();
      }));
  if (byte_level != parts.bpe.byte_level)
    return unsupported("a ByteLevel step in only one of pre_tokenizer and decoder");
  return ok_status();
}

}  // namespace tenon
