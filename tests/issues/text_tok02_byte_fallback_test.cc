// TOK-02: characters outside the vocabulary become their bytes or one <unk>, never nothing
// (llama.cpp issue #167).
#include "tests/issues/text_tiny_vocabularies.h"

namespace tenon {
namespace {

using namespace testing_support;

TEST(Tok02ByteFallback, UnknownCharactersBecomeTheirBytes) {
  const auto tokenizer = load(tiny_sentencepiece("never"));
  EXPECT_EQ(encode(*tokenizer, "a🦙"), (Ids{260, 243, 162, 169, 156}));
  EXPECT_EQ(encode(*tokenizer, "ç"), (Ids{198, 170}));
  EXPECT_EQ(encode(*tokenizer, "é"), (Ids{267}));
  EXPECT_EQ(encode(*tokenizer, "e\u0301"), (Ids{104, 207, 132}));
  EXPECT_EQ(encode(*tokenizer, "a\nb"), (Ids{260, 13, 261}));
}

TEST(Tok02ByteFallback, InvalidBytesComeBackAsTheyWere) {
  const auto tokenizer = load(tiny_sentencepiece("never"));
  const std::string invalid = "a\xC3\x28\xFF";
  EXPECT_EQ(encode(*tokenizer, invalid), (Ids{260, 198, 43, 258}));
  EXPECT_EQ(tokenizer->decode_bytes(encode(*tokenizer, invalid)), invalid);
  // Also where the text uses the private characters that stand for invalid bytes on the way.
  const std::string hard = "\xF4\x80\x80\x80 \xFF\xF4\x80\x84\x81\xC3";
  EXPECT_EQ(tokenizer->decode_bytes(encode(*tokenizer, hard)), hard);
  // In a later piece of the same text too, which has no invalid bytes itself.
  json added = tiny_byte_level();
  added["added_tokens"] = json::array({added_token(256, "<|im_end|>", false)});
  const auto with_added = load(added);
  const std::string later = "\xFF<|im_end|>\xF4\x80\x81\x81";
  EXPECT_EQ(with_added->decode_bytes(encode(*with_added, later)), later);
  const auto byte_level = load(tiny_byte_level({{"\xC3", "("}}));
  EXPECT_EQ(encode(*byte_level, invalid), (Ids{97, 256, 255}));
}

TEST(Tok02ByteFallback, WithoutBytePiecesUnknownIsNeverEmpty) {
  const auto fused = load(tiny_sentencepiece("never", false, true));
  EXPECT_EQ(encode(*fused, "a🦙"), (Ids{260, 0}));
  EXPECT_EQ(encode(*fused, "ç"), (Ids{0}));
  EXPECT_EQ(encode(*fused, "🦙çab"), (Ids{0, 264}));
  EXPECT_EQ(encode(*fused, "e\u0301"), (Ids{0}));
  EXPECT_EQ(encode(*fused, "a\xC3\x28\xFF"), (Ids{260, 0}));
  const auto single = load(tiny_sentencepiece("never", false, false));
  EXPECT_EQ(encode(*single, "a🦙"), (Ids{260, 0}));
  EXPECT_EQ(encode(*single, "🦙çab"), (Ids{0, 0, 264}));
  EXPECT_EQ(encode(*single, "e\u0301"), (Ids{0, 0}));
}

TEST(Tok02ByteFallback, PrefixRules) {
  const auto first = load(tiny_sentencepiece("first"));
  EXPECT_EQ(encode(*first, "ab"), (Ids{265}));
  EXPECT_EQ(encode(*first, "ab<eot>ab"), (Ids{265, 268, 264}));
  EXPECT_EQ(first->decode(encode(*first, "ab ab")), "ab ab");
  const auto always = load(tiny_sentencepiece("always"));
  EXPECT_EQ(encode(*always, "ab<eot>ab"), (Ids{265, 268, 265}));
  const auto never = load(tiny_sentencepiece("never"));
  EXPECT_EQ(encode(*never, "ab  ab"), (Ids{264, 263, 264}));
}

}  // namespace
}  // namespace tenon
