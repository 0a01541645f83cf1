// The tiny vocabularies of the tokenizer cases, as tokenizer.json.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "text/byte_alphabet.h"
#include "text/tokenizer.h"

namespace tenon::testing_support {

using Ids = std::vector<int32_t>;
using nlohmann::json;

inline json added_token(int32_t id, const std::string& content, bool special = true) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

// Vocabulary Y: id = byte for 0..255 in GPT-2's byte alphabet. No pre-tokenizer pattern: a text is
// one word. Merges are given in plain bytes and add pieces from 256 on, in order.
inline json tiny_byte_level(const std::vector<std::pair<std::string, std::string>>& merges = {},
                            bool merges_as_pairs = true) {
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte)
    vocab[std::string(byte_to_alphabet(static_cast<uint8_t>(byte)))] = byte;
  json list = json::array();
  for (const auto& [left, right] : merges) {
    std::string spelt_left, spelt_right;
    append_in_alphabet(left, spelt_left);
    append_in_alphabet(right, spelt_right);
    const auto next = static_cast<int32_t>(vocab.size());
    vocab.emplace(spelt_left + spelt_right, next);
    list.push_back(merges_as_pairs ? json::array({spelt_left, spelt_right})
                                   : json(spelt_left + " " + spelt_right));
  }
  return {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", json::array()},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", nullptr},
        {"fuse_unk", false},
        {"byte_fallback", false},
        {"ignore_merges", false},
        {"vocab", vocab},
        {"merges", list}}}};
}

// Vocabulary S: SentencePiece style. prepend_scheme: never, first or always.
inline json tiny_sentencepiece(const std::string& prepend_scheme,
                               bool byte_pieces = true,
                               bool fuse_unk = true) {
  json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256 && byte_pieces; ++byte) {
    constexpr char kDigits[] = "0123456789ABCDEF";
    vocab[std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">"] = 3 + byte;
  }
  const std::vector<std::string> pieces = {"▁", "a", "b", "▁a", "▁▁", "ab", "▁ab", "▁▁▁", "é"};
  for (size_t i = 0; i < pieces.size(); ++i) vocab[pieces[i]] = 259 + i;
  json added = json::array({added_token(0, "<unk>"), added_token(1, "<s>"), added_token(2, "</s>"),
                            added_token(268, "<eot>")});
  return {{"added_tokens", added},
          {"pre_tokenizer",
           {{"type", "Metaspace"},
            {"replacement", "▁"},
            {"prepend_scheme", prepend_scheme},
            {"split", false}}},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
              {{"type", "ByteFallback"}},
              {{"type", "Fuse"}},
              {{"type", "Strip"},
               {"content", " "},
               {"start", prepend_scheme == "never" ? 0 : 1},
               {"stop", 0}}}}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"fuse_unk", fuse_unk},
            {"byte_fallback", true},
            {"vocab", vocab},
            {"merges", {"▁ ▁", "a b", "▁ ab", "▁ a", "▁▁ ▁"}}}}};
}

inline std::shared_ptr<const Tokenizer> load(const json& value) {
  Result<std::shared_ptr<const Tokenizer>> tokenizer = load_tokenizer_json(value.dump(), "tiny");
  if (!tokenizer.ok()) throw std::runtime_error(tokenizer.status().message());
  return *tokenizer;
}

inline Ids encode(const Tokenizer& tokenizer,
                  std::string_view text,
                  const EncodeOptions& options = {}) {
  Result<Ids> ids = tokenizer.encode(text, options);
  if (!ids.ok()) throw std::runtime_error(ids.status().message());
  return *ids;
}

}  // namespace tenon::testing_support
