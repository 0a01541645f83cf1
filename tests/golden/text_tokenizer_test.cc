// Token for token what Hugging Face `tokenizers` gives, on 2 MB of mixed text and real
// vocabularies: byte-level BPE from GGUF and tokenizer.json, SentencePiece BPE from GGUF (a mark in
// front of every text) and tokenizer.json (Metaspace). Goldens: text_tokenizer.py.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/assets.h"
#include "tests/golden/sentencepiece_model.h"
#include "tests/golden/text_corpus.h"
#include "tests/unit/text/metadata_gguf.h"
#include "text/bpe_model.h"
#include "text/sentencepiece_merges.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

namespace tenon {
namespace {

using nlohmann::json;
using testing::asset_path;

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw std::runtime_error("cannot read " + path +
                             " (make test fetches it: tools/test_assets.txt)");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

const std::vector<std::string>& chunks() {
  static const std::vector<std::string> kChunks =
      golden::Corpus(TENON_SOURCE_DIR "/tests/golden/text_tokenizer_seed.json").chunks();
  return kChunks;
}

// As hashes() in text_tokenizer.py.
constexpr size_t kBlock = 64;
std::string hashes(const std::vector<int32_t>& ids) {
  std::string out;
  uint64_t value = 0xCBF29CE484222325ULL;
  for (size_t i = 0; i < ids.size(); ++i) {
    for (int shift = 0; shift < 32; shift += 8) {
      value = (value ^ ((static_cast<uint32_t>(ids[i]) >> shift) & 0xFF)) * 0x100000001B3ULL;
    }
    if ((i + 1) % kBlock == 0 || i + 1 == ids.size())
      out += fmt::format("{:06x}", value & 0xFFFFFF);
  }
  return out;
}

// The first block of ids that is not the reference's, with the pieces.
std::string first_difference(const Tokenizer& tokenizer,
                             const std::vector<int32_t>& ids,
                             const std::string& expected) {
  const std::string found = hashes(ids);
  size_t block = 0;
  while (found.compare(block * 6, 6, expected, block * 6, 6) == 0 && block * 6 < found.size())
    ++block;
  std::string text = fmt::format("first different block: ids {}..", block * kBlock);
  for (size_t i = block * kBlock; i < std::min(ids.size(), (block + 1) * kBlock); ++i) {
    text += fmt::format(" {}:'{}'", ids[i], tokenizer.token_text(ids[i]));
  }
  return text;
}

void expect_golden(const std::string& name, const Tokenizer& tokenizer, bool all_bytes) {
  const json golden =
      json::parse(read(TENON_SOURCE_DIR "/tests/golden/text_tokenizer_" + name + ".json"));
  ASSERT_EQ(golden.at("chunks").size(), chunks().size());
  size_t bytes = 0;
  for (const std::string& chunk : chunks()) bytes += chunk.size();
  ASSERT_EQ(golden.at("text_bytes").get<size_t>(), bytes)
      << "the corpus is not the one the golden was made from";
  ASSERT_GE(bytes, size_t{2} << 20);
  size_t different = 0;
  for (size_t i = 0; i < chunks().size() && different < 3; ++i) {
    const Result<std::vector<int32_t>> ids = tokenizer.encode(chunks()[i], {.add_special = false});
    ASSERT_TRUE(ids.ok()) << ids.status().message();
    const json& row = golden.at("chunks")[i];
    const auto expected = row.at(1).get<std::string>();
    if (ids->size() != row.at(0).get<size_t>() || hashes(*ids) != expected) {
      ++different;
      ADD_FAILURE() << name << ", chunk " << i << ": " << ids->size() << " ids, reference "
                    << row.at(0) << "; " << first_difference(tokenizer, *ids, expected)
                    << "\nreference: text_tokenizer.py --show " << name << " " << i;
    }
    if (all_bytes) {
      EXPECT_TRUE(tokenizer.decode_bytes(*ids, {.skip_special = false}) == chunks()[i])
          << name << ", chunk " << i;
    }
  }
}

TEST(TextTokenizerGolden, SmolLm2FromGguf) {
  const Result<TextAssets> assets = load_text_assets(testing::test_model_path());
  ASSERT_TRUE(assets.ok()) << assets.status().message();
  expect_golden("smollm2", *assets->tokenizer, false);  // this vocabulary lacks some bytes
}

std::shared_ptr<const Tokenizer> from_json(const json& value, const std::string& name) {
  Result<std::shared_ptr<const Tokenizer>> tokenizer = load_tokenizer_json(value.dump(), name);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return tokenizer.ok() ? *tokenizer : nullptr;
}

TEST(TextTokenizerGolden, Llama3FromTokenizerJson) {
  const Result<TextAssets> assets = load_text_assets(asset_path("test_assets/llama3"));
  ASSERT_TRUE(assets.ok()) << assets.status().message();
  expect_golden("llama3", *assets->tokenizer, true);
}

TEST(TextTokenizerGolden, Llama3WithNfc) {
  json value = json::parse(read(asset_path("test_assets/llama3/tokenizer.json")));
  value["normalizer"] = {{"type", "NFC"}};
  const auto tokenizer = from_json(value, "llama3_nfc");
  ASSERT_NE(tokenizer, nullptr);
  expect_golden("llama3_nfc", *tokenizer, false);
}

TEST(TextTokenizerGolden, DeepSeekFromTokenizerJson) {
  const Result<TextAssets> assets = load_text_assets(asset_path("test_assets/deepseek"));
  ASSERT_TRUE(assets.ok()) << assets.status().message();
  expect_golden("deepseek", *assets->tokenizer, true);
}

TEST(TextTokenizerGolden, MistralSentencePieceFromGguf) {
  std::vector<std::string> texts;
  std::vector<float> scores;
  std::vector<int32_t> types;
  for (const auto& entry :
       golden::read_sentencepiece_model(read(asset_path("test_assets/mistral/tokenizer.model")))) {
    texts.push_back(entry.text);
    scores.push_back(entry.score);
    types.push_back(entry.type);
  }
  testing_support::MetadataGguf gguf;
  gguf.add("general.architecture", "llama");
  gguf.add("tokenizer.ggml.model", "llama");
  gguf.add("tokenizer.ggml.tokens", texts);
  gguf.add("tokenizer.ggml.scores", scores);
  gguf.add("tokenizer.ggml.token_type", types);
  gguf.add("tokenizer.ggml.unknown_token_id", uint32_t{0});
  gguf.add("tokenizer.ggml.bos_token_id", uint32_t{1});
  gguf.add("tokenizer.ggml.eos_token_id", uint32_t{2});
  const std::string path =
      ::testing::TempDir() + "/mistral_" + std::to_string(::getpid()) + ".gguf";
  gguf.write(path);
  const Result<TextAssets> assets = load_text_assets(path);
  std::filesystem::remove(path);
  ASSERT_TRUE(assets.ok()) << assets.status().message();
  EXPECT_TRUE(assets->tokenizer->adds_bos());
  EXPECT_EQ(assets->tokenizer->encode("Hello")->front(), 1);
  expect_golden("mistral", *assets->tokenizer, false);  // a mark is put behind control tokens, too
}

TEST(TextTokenizerGolden, MistralSentencePieceFromTokenizerJson) {
  const auto entries =
      golden::read_sentencepiece_model(read(asset_path("test_assets/mistral/tokenizer.model")));
  Vocabulary vocabulary;
  std::vector<float> scores;
  std::vector<bool> skipped;
  json model_vocab = json::object(), added = json::array(), merges = json::array();
  for (const auto& entry : entries) {
    const auto id = static_cast<int32_t>(scores.size());
    ASSERT_TRUE(vocabulary.add(id, entry.text));
    scores.push_back(entry.score);
    skipped.push_back(entry.type == 2 || entry.type == 3);
    model_vocab[entry.text] = id;
    if (skipped.back())
      added.push_back(
          {{"id", id}, {"content", entry.text}, {"special", true}, {"normalized", false}});
  }
  for (const BpeMerge& merge : merges_from_scores(vocabulary, scores, skipped)) {
    merges.push_back({vocabulary.text(merge.left), vocabulary.text(merge.right)});
  }
  const json value = {
      {"added_tokens", added},
      {"normalizer", nullptr},
      {"pre_tokenizer",
       {{"type", "Metaspace"},
        {"replacement", kWordMark},
        {"prepend_scheme", "first"},
        {"split", false}}},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders",
         {{{"type", "Replace"}, {"pattern", {{"String", kWordMark}}}, {"content", " "}},
          {{"type", "ByteFallback"}},
          {{"type", "Fuse"}},
          {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
      {"model",
       {{"type", "BPE"},
        {"unk_token", "<unk>"},
        {"fuse_unk", true},
        {"byte_fallback", true},
        {"vocab", model_vocab},
        {"merges", merges}}}};
  const auto tokenizer = from_json(value, "mistral_metaspace");
  ASSERT_NE(tokenizer, nullptr);
  expect_golden("mistral_metaspace", *tokenizer,
                false);  // a text that begins with a space gets no second one
}

}  // namespace
}  // namespace tenon
