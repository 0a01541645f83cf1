// TOK-04: a character that several tokens make up is sent once, whole (llama.cpp PR #4446).
#include "tests/issues/text_tiny_vocabularies.h"
#include "text/detokenizer.h"
#include "text/utf8.h"

namespace tenon {
namespace {

using namespace testing_support;

const std::shared_ptr<const Tokenizer>& tiny() {
  static const std::shared_ptr<const Tokenizer> kTokenizer = load(tiny_byte_level());
  return kTokenizer;
}

// One delta an id, and what finish() gives last.
std::vector<std::string> deltas(const std::string& bytes) {
  Detokenizer detokenizer(tiny(), {});
  std::vector<std::string> result;
  for (const char byte : bytes) result.push_back(detokenizer.push(static_cast<uint8_t>(byte)).text);
  result.push_back(detokenizer.finish().text);
  return result;
}

using Deltas = std::vector<std::string>;

TEST(Tok04SplitCharacters, EachCharacterWithItsLastByte) {
  EXPECT_EQ(deltas("👩\u200D💻"), (Deltas{"", "", "", "👩", "", "", "\u200D", "", "", "", "💻", ""}));
  EXPECT_EQ(deltas("e\u0301x"), (Deltas{"e", "", "\u0301", "x", ""}));
  EXPECT_EQ(deltas(" ďa"), (Deltas{" ", "", "ď", "a", ""}));
  EXPECT_EQ(deltas("你好"), (Deltas{"", "", "你", "", "", "好", ""}));
}

TEST(Tok04SplitCharacters, CutAndInvalidBytes) {
  EXPECT_EQ(deltas("a\xF0\x9F\x91"), (Deltas{"a", "", "", "", "\uFFFD"}));
  EXPECT_EQ(deltas("a\xC3("), (Deltas{"a", "", "\uFFFD(", ""}));
  EXPECT_EQ(deltas("\x80x"), (Deltas{"\uFFFD", "x", ""}));
  EXPECT_EQ(deltas("\xF0\x9F\xC3\xA9"), (Deltas{"", "", "\uFFFD", "é", ""}));
}

// Every way to cut the bytes into tokens gives the same text, valid at every step. The tokens are
// pieces of 1 to n bytes, spelt as merges of the tiny vocabulary.
TEST(Tok04SplitCharacters, AnyChunkingGivesTheSameText) {
  for (const std::string& bytes : {std::string("👩\u200D💻"), std::string("e\u0301x ďa"),
                                   std::string("a\xF0\x9F\x91"), std::string("a\xC3(\xE4\xBD")}) {
    Ids all;
    for (const char byte : bytes) all.push_back(static_cast<uint8_t>(byte));
    const std::string whole = tiny()->decode(all);
    for (uint32_t cuts = 0; cuts < (1U << (bytes.size() - 1)); ++cuts) {
      Utf8Assembler assembler;
      std::string text, part;
      for (size_t i = 0; i < bytes.size(); ++i) {
        part += bytes[i];
        if (i + 1 < bytes.size() && (cuts >> i & 1) == 0) continue;
        assembler.push(part, text);
        part.clear();
        ASSERT_TRUE(is_valid_utf8(text));
      }
      assembler.finish(text);
      ASSERT_EQ(text, whole) << "cuts " << cuts;
    }
  }
}

}  // namespace
}  // namespace tenon
