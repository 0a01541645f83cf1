// TOK-08: merges by rank, leftmost among equals; ignore_merges takes a whole word from the
// vocabulary (llama.cpp PR #7193).
#include <unistd.h>

#include <filesystem>

#include "tests/issues/text_tiny_vocabularies.h"
#include "tests/unit/text/metadata_gguf.h"

namespace tenon {
namespace {

using namespace testing_support;

TEST(Tok08MergeOrder, IgnoreMergesTakesTheWholeWordAlone) {
  json value = tiny_byte_level({{"e", "a"}, {"t", "e"}});
  value["model"]["vocab"]["tea"] = 258;
  const auto merging = load(value);
  EXPECT_EQ(encode(*merging, "tea"), (Ids{116, 256}));
  EXPECT_EQ(encode(*merging, "teatea"), (Ids{116, 256, 116, 256}));
  value["model"]["ignore_merges"] = true;
  const auto ignoring = load(value);
  EXPECT_EQ(encode(*ignoring, "tea"), (Ids{258}));
  EXPECT_EQ(encode(*ignoring, "teatea"), (Ids{116, 256, 116, 256}));
}

TEST(Tok08MergeOrder, LowestRankFirst) {
  const auto tokenizer = load(tiny_byte_level({{"b", "c"}, {"a", "b"}}));
  EXPECT_EQ(encode(*tokenizer, "abc"), (Ids{97, 256}));
  EXPECT_EQ(encode(*tokenizer, "abab"), (Ids{257, 257}));
  EXPECT_EQ(encode(*tokenizer, "abcab"), (Ids{97, 256, 257}));
}

TEST(Tok08MergeOrder, LeftmostAmongEquals) {
  const auto tokenizer = load(tiny_byte_level({{"a", "a"}, {"aa", "aa"}}));
  const std::vector<Ids> expected = {{97},           {256},      {256, 97},
                                     {257},          {257, 97},  {257, 256},
                                     {257, 256, 97}, {257, 257}, {257, 257, 97}};
  for (size_t n = 1; n <= expected.size(); ++n)
    EXPECT_EQ(encode(*tokenizer, std::string(n, 'a')), expected[n - 1]);
}

TEST(Tok08MergeOrder, MergesAsStringsAndAsPairs) {
  const std::vector<std::pair<std::string, std::string>> merges = {
      {"b", "c"}, {"a", "b"}, {"a", "bc"}};
  for (const bool pairs : {true, false}) {
    EXPECT_EQ(encode(*load(tiny_byte_level(merges, pairs)), "abcab"), (Ids{258, 257})) << pairs;
  }
  // A piece that contains a space can only be written as a pair.
  json value = tiny_sentencepiece("never");
  value["pre_tokenizer"] = nullptr;
  value["model"]["vocab"][" "] = 269;
  value["model"]["vocab"]["a "] = 270;
  value["model"]["merges"] = json::array({json::array({"a", " "})});
  EXPECT_EQ(encode(*load(value), "a b"), (Ids{270, 261}));
  value["model"]["merges"] = json::array({"a  "});
  const auto refused = load_tokenizer_json(value.dump(), "tiny");
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("model.merges[0]"), std::string::npos);
}

TEST(Tok08MergeOrder, GgufOfTheLlama3FamilyIgnoresMerges) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte)
    tokens.emplace_back(byte_to_alphabet(static_cast<uint8_t>(byte)));
  for (const char* piece : {"ea", "te", "tea"}) tokens.emplace_back(piece);
  for (const auto& [pre, expected] :
       {std::pair<std::string, Ids>{"llama-bpe", {258}}, {"gpt-2", {116, 256}}}) {
    MetadataGguf gguf;
    gguf.add("general.architecture", "llama");
    gguf.add("tokenizer.ggml.model", "gpt2");
    gguf.add("tokenizer.ggml.pre", pre);
    gguf.add("tokenizer.ggml.tokens", tokens);
    gguf.add("tokenizer.ggml.merges", std::vector<std::string>{"e a", "t e"});
    const std::string path =
        ::testing::TempDir() + "/tok08_" + std::to_string(::getpid()) + ".gguf";
    gguf.write(path);
    const Result<TextAssets> assets = load_text_assets(path);
    std::filesystem::remove(path);
    ASSERT_TRUE(assets.ok()) << assets.status().message();
    EXPECT_EQ(encode(*assets->tokenizer, "tea"), expected) << pre;
  }
}

}  // namespace
}  // namespace tenon
