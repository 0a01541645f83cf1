#include <gtest/gtest.h>

#include "tests/issues/text_tiny_vocabularies.h"

namespace tenon {
namespace {

using namespace testing_support;

void expect_refused(const json& value,
                    const std::string& mention,
                    StatusCode code = StatusCode::kUnsupported) {
  const auto tokenizer = load_tokenizer_json(value.dump(), "file.json");
  ASSERT_FALSE(tokenizer.ok()) << mention;
  EXPECT_EQ(tokenizer.status().code(), code) << tokenizer.status().message();
  EXPECT_NE(tokenizer.status().message().find(mention), std::string::npos)
      << tokenizer.status().message();
  EXPECT_TRUE(tokenizer.status().message().starts_with("file.json: "));
}

json with(const char* part, const json& replacement) {
  json value = tiny_byte_level({{"a", "b"}});
  value[part] = replacement;
  return value;
}

TEST(TokenizerJson, WhatCannotBeReproducedIsRefusedByName) {
  for (const char* type : {"Lowercase", "BertNormalizer", "Precompiled", "Strip"}) {
    expect_refused(with("normalizer", {{"type", type}}), type);
  }
  for (const char* type : {"BertPreTokenizer", "Whitespace", "UnicodeScripts"}) {
    expect_refused(with("pre_tokenizer", {{"type", type}}), type);
  }
  expect_refused(with("post_processor", {{"type", "BertProcessing"}}), "BertProcessing");
  expect_refused(with("decoder", {{"type", "WordPiece"}}), "WordPiece");
  expect_refused(with("decoder", nullptr), "decoder");
  expect_refused(with("new_thing", true), "new_thing");
  json value = tiny_byte_level();
  value["model"]["type"] = "Unigram";
  expect_refused(value, "Unigram");
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    value = tiny_byte_level();
    value["model"][name] = "##";
    expect_refused(value, name);
  }
  value = tiny_byte_level();
  value["model"]["dropout"] = 0.1;
  expect_refused(value, "model.dropout");
  value = tiny_byte_level();
  value["pre_tokenizer"]["surprise"] = 1;
  expect_refused(value, "'surprise'");
  value = tiny_byte_level();
  value["pre_tokenizer"] = {{"type", "Split"},
                            {"pattern", {{"Regex", R"(\w+)"}}},
                            {"behavior", "Isolated"},
                            {"invert", false}};
  expect_refused(value, R"(\w)");
}

TEST(TokenizerJson, BrokenFilesAreNamed) {
  EXPECT_EQ(load_tokenizer_json("{\"model\":", "x").status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(load_tokenizer_json("[1]", "x").status().code(), StatusCode::kDataLoss);
  json value = tiny_byte_level();
  value["model"]["merges"] = json::array({"a"});
  expect_refused(value, "model.merges[0]", StatusCode::kDataLoss);
  value["model"]["merges"] = json::array({"a zz"});
  expect_refused(value, "model.merges[0]", StatusCode::kDataLoss);
  value = tiny_byte_level();
  value["model"]["vocab"]["far"] = 1 << 30;
  expect_refused(value, "far", StatusCode::kInvalidArgument);
  value = tiny_byte_level();
  value["model"]["vocab"]["twice"] = 7;
  expect_refused(value, "7");
  value = tiny_byte_level();
  value["added_tokens"] = {added_token(300, "a")};
  expect_refused(value, "added_tokens[0]");
  json nested = {{"type", "NFC"}};
  for (int i = 0; i < 1000; ++i)
    nested = {{"type", "Sequence"}, {"normalizers", json::array({nested})}};
  expect_refused(with("normalizer", nested), "nested too deeply", StatusCode::kInvalidArgument);
  value["added_tokens"] = {{{"id", "x"}, {"content", "a"}}};
  expect_refused(value, "added_tokens[0].id", StatusCode::kInvalidArgument);
}

TEST(TokenizerJson, TemplateAddsBosAndEos) {
  json value = tiny_byte_level();
  value["added_tokens"] = {added_token(256, "<s>"), added_token(257, "</s>")};
  value["post_processor"] = {
      {"type", "Sequence"},
      {"processors",
       {{{"type", "ByteLevel"}, {"trim_offsets", true}},
        {{"type", "TemplateProcessing"},
         {"single",
          {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
           {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
           {{"SpecialToken", {{"id", "</s>"}, {"type_id", 0}}}}}},
         {"pair", json::array()},
         {"special_tokens",
          {{"<s>", {{"id", "<s>"}, {"ids", {256}}, {"tokens", {"<s>"}}}},
           {"</s>", {{"id", "</s>"}, {"ids", {257}}, {"tokens", {"</s>"}}}}}}}}}};
  const auto tokenizer = load(value);
  EXPECT_EQ(encode(*tokenizer, "a"), (Ids{256, 97, 257}));
  EXPECT_EQ(encode(*tokenizer, ""), (Ids{256, 257}));
  EXPECT_EQ(encode(*tokenizer, "a", {.add_special = false}), (Ids{97}));
  EXPECT_TRUE(tokenizer->adds_bos());
  EXPECT_EQ(tokenizer->bos_id(), 256);
  EXPECT_EQ(tokenizer->end_ids(), (Ids{257}));
  EXPECT_EQ(tokenizer->decode(Ids{256, 97, 257}), "a");
  EXPECT_EQ(tokenizer->decode(Ids{256, 97, 257}, {.skip_special = false}), "<s>a</s>");
}

// Each behaviour on the text "a--b-", split at "-"; pieces are told apart by a merge ("-","-") that
// a cut prevents.
TEST(TokenizerJson, SplitBehaviours) {
  const auto ids_with = [](const char* behavior, bool invert) {
    json value = tiny_byte_level({{"-", "-"}, {"a", "-"}, {"-", "b"}, {"b", "-"}});
    const json split = {{"type", "Split"},
                        {"pattern", {{"String", "-"}}},
                        {"behavior", behavior},
                        {"invert", invert}};
    value["pre_tokenizer"] = {{"type", "Sequence"},
                              {"pretokenizers", {split, value["pre_tokenizer"]}}};
    return encode(*load(value), "a--b-");
  };
  EXPECT_EQ(ids_with("Isolated", false), (Ids{'a', '-', '-', 'b', '-'}));
  EXPECT_EQ(ids_with("Removed", false), (Ids{'a', 'b'}));
  EXPECT_EQ(ids_with("Removed", true), (Ids{'-', '-', '-'}));
  EXPECT_EQ(ids_with("Contiguous", false), (Ids{'a', 256, 'b', '-'}));
  EXPECT_EQ(ids_with("MergedWithPrevious", false), (Ids{257, '-', 259}));
  EXPECT_EQ(ids_with("MergedWithNext", false), (Ids{'a', '-', 258, '-'}));
}

TEST(TokenizerJson, ByteLevelPrefixSpaceAndDigits) {
  json value = tiny_byte_level({{" ", "a"}, {"1", "2"}});
  value["pre_tokenizer"]["add_prefix_space"] = true;
  EXPECT_EQ(encode(*load(value), "a12"), (Ids{256, 257}));
  EXPECT_EQ(encode(*load(value), " a12"), (Ids{256, 257}));
  const json digits = {{"type", "Digits"}, {"individual_digits", true}};
  value["pre_tokenizer"] = {{"type", "Sequence"},
                            {"pretokenizers", {digits, value["pre_tokenizer"]}}};
  EXPECT_EQ(encode(*load(value), "a12"), (Ids{256, 32, '1', 32, '2'}));
}

}  // namespace
}  // namespace tenon
