#include "text/tokenizer_gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "tests/assets.h"
#include "tests/issues/text_tiny_vocabularies.h"
#include "tests/unit/text/metadata_gguf.h"

namespace tenon {
namespace {

using namespace testing_support;

Result<TextAssets> load_metadata(const MetadataGguf& gguf) {
  const std::string path =
      ::testing::TempDir() + "/tokenizer_" + std::to_string(::getpid()) + ".gguf";
  gguf.write(path);
  Result<TextAssets> assets = load_text_assets(path);
  std::filesystem::remove(path);
  return assets;
}

MetadataGguf sentencepiece(size_t scores = 6) {
  MetadataGguf gguf;
  gguf.add("general.architecture", "llama");
  gguf.add("tokenizer.ggml.model", "llama");
  gguf.add("tokenizer.ggml.tokens",
           std::vector<std::string>{"<unk>", "<s>", "</s>", "▁", "a", "▁a"});
  gguf.add("tokenizer.ggml.scores", std::vector<float>(scores, -1.0F));
  gguf.add("tokenizer.ggml.token_type", std::vector<int32_t>{2, 3, 3, 1, 1, 1});
  gguf.add("tokenizer.ggml.unknown_token_id", uint32_t{0});
  gguf.add("tokenizer.ggml.bos_token_id", uint32_t{1});
  gguf.add("tokenizer.ggml.eos_token_id", uint32_t{2});
  return gguf;
}

TEST(TokenizerGguf, SmolLm2) {
  const Result<TextAssets> assets = load_text_assets(testing::test_model_path());
  ASSERT_TRUE(assets.ok()) << assets.status().message();
  const Tokenizer& tokenizer = *assets->tokenizer;
  EXPECT_EQ(tokenizer.vocab_size(), 49152);
  EXPECT_EQ(tokenizer.bos_id(), 1);
  EXPECT_EQ(tokenizer.end_ids(), (Ids{2}));
  EXPECT_FALSE(tokenizer.adds_bos());
  EXPECT_EQ(tokenizer.find_token("<|im_end|>"), 2);
  EXPECT_EQ(tokenizer.token_text(encode(tokenizer, " the").at(0)), "Ġthe");
  EXPECT_EQ(tokenizer.token_bytes(encode(tokenizer, " the").at(0)), " the");
  EXPECT_EQ(tokenizer.decode(encode(tokenizer, "Hello, world! 123")), "Hello, world! 123");
  EXPECT_NE(assets->chat_template.find("im_start"), std::string::npos);
}

TEST(TokenizerGguf, SentencePieceDefaults) {
  const Result<TextAssets> assets = load_metadata(sentencepiece());
  ASSERT_TRUE(assets.ok()) << assets.status().message();
  EXPECT_EQ(encode(*assets->tokenizer, "a a"), (Ids{1, 5, 5}));
  EXPECT_EQ(encode(*assets->tokenizer, "<s>a</s>"), (Ids{1, 1, 5, 2}));
  EXPECT_EQ(encode(*assets->tokenizer, "zz"), (Ids{1, 3, 0}));
  EXPECT_EQ(assets->tokenizer->decode(Ids{5, 5}), "a a");
}

TEST(TokenizerGguf, FlagsOfTheFileCount) {
  MetadataGguf gguf = sentencepiece();
  gguf.add("tokenizer.ggml.add_bos_token", false);
  gguf.add("tokenizer.ggml.add_eos_token", true);
  gguf.add("tokenizer.ggml.add_space_prefix", false);
  const Result<TextAssets> assets = load_metadata(gguf);
  ASSERT_TRUE(assets.ok()) << assets.status().message();
  EXPECT_EQ(encode(*assets->tokenizer, "a a"), (Ids{4, 5, 2}));
  EXPECT_FALSE(assets->tokenizer->strips_leading_space());
}

TEST(TokenizerGguf, WhatIsWrongIsNamed) {
  const auto message = [](const MetadataGguf& gguf) {
    const Result<TextAssets> assets = load_metadata(gguf);
    EXPECT_FALSE(assets.ok());
    return assets.ok() ? "" : assets.status().message();
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(message(sentencepiece(5)), HasSubstr("tokenizer.ggml.scores has 5 entries"));
  MetadataGguf gguf = sentencepiece();
  gguf.add("tokenizer.ggml.eot_token_id", uint32_t{6});
  EXPECT_THAT(message(gguf), HasSubstr("tokenizer.ggml.eot_token_id is 6"));
  gguf = sentencepiece();
  gguf.add("tokenizer.ggml.remove_extra_whitespaces", true);
  EXPECT_THAT(message(gguf), HasSubstr("remove_extra_whitespaces"));

  const auto byte_level = [](const char* model, const char* pre,
                             const std::vector<std::string>& merges) {
    MetadataGguf file;
    file.add("general.architecture", "llama");
    file.add("tokenizer.ggml.model", model);
    file.add("tokenizer.ggml.pre", pre);
    file.add("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b", "ab"});
    file.add("tokenizer.ggml.merges", merges);
    return file;
  };
  EXPECT_THAT(message(byte_level("bert", "gpt-2", {})), HasSubstr("tokenizer.ggml.model 'bert'"));
  EXPECT_THAT(message(byte_level("gpt2", "falcon", {})), HasSubstr("tokenizer.ggml.pre 'falcon'"));
  EXPECT_THAT(message(byte_level("gpt2", "gpt-2", {"a b", "ab c"})),
              HasSubstr("tokenizer.ggml.merges[1] 'ab c'"));
  EXPECT_THAT(message(byte_level("gpt2", "gpt-2", {"ab"})),
              HasSubstr("tokenizer.ggml.merges[0] 'ab'"));
}

}  // namespace
}  // namespace tenon
