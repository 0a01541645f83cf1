#include "text/pre_tokenizer_families.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <vector>

namespace tenon {
namespace {

// One pattern after the other, each isolating its matches.
constexpr std::string_view kGpt2[] = {kGpt2Pattern};
constexpr std::string_view kDigitsGpt2[] = {R"(\p{N})", kGpt2Pattern};
constexpr std::string_view kLlama3[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr std::string_view kQwen2[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr std::string_view kTekken[] = {
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr std::string_view kDeepseekCoder[] = {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)",
                                               "[一-龥ࠀ-一가-퟿]+", R"(\p{N})"};
constexpr std::string_view kDeepseekV3[] = {
    R"(\p{N}{1,3})", "[一-龥぀-ゟ゠-ヿ]+",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

struct Family {
  std::string_view name;
  std::span<const std::string_view> patterns;
  bool nfc = false;
  bool ignore_merges = false;
  bool add_bos = false;
};

constexpr Family kFamilies[] = {
    {"gpt-2", kGpt2},
    {"phi-2", kGpt2},
    {"smollm", kDigitsGpt2},
    {"starcoder", kDigitsGpt2},
    {"llama-bpe", kLlama3, false, true, true},
    {"llama3", kLlama3, false, true, true},
    {"llama-v3", kLlama3, false, true, true},
    {"qwen2", kQwen2, true},
    {"tekken", kTekken, false, true, true},
    {"deepseek-coder", kDeepseekCoder},
    {"deepseek-v3", kDeepseekV3},
};

}  // namespace

Result<PreTokenizerFamily> pre_tokenizer_family(std::string_view name) {
  const auto* known = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                   [&](const Family& family) { return family.name == name; });
  if (known == std::end(kFamilies)) {
    std::vector<std::string_view> names;
    for (const Family& family : kFamilies) names.push_back(family.name);
    return unsupported(
        "tokenizer.ggml.pre '{}' is not one that can be reproduced exactly (known: {})", name,
        fmt::join(names, ", "));
  }
  PreTokenizerFamily result;
  if (known->nfc) result.normalizer.add(UnicodeForm{.compose = true});
  for (const std::string_view pattern : known->patterns) {
    TENON_ASSIGN_OR_RETURN(auto regex, Regex::compile(pattern));
    result.pre_tokenizer.add(SplitStep{std::move(regex), SplitBehavior::kIsolated});
  }
  result.ignore_merges = known->ignore_merges;
  result.add_bos = known->add_bos;
  return result;
}

}  // namespace tenon
