// TOK-05: lstrip, rstrip, single_word and the longest match of added tokens (transformers issue
// #33371).
#include "tests/issues/text_tiny_vocabularies.h"

namespace tenon {
namespace {

using namespace testing_support;

std::shared_ptr<const Tokenizer> tiny() {
  json value = tiny_byte_level();
  json left = added_token(300, "<L>"), right = added_token(301, "<R>"),
       word = added_token(304, "kat", false);
  left["lstrip"] = true;
  right["rstrip"] = true;
  word["single_word"] = true;
  value["added_tokens"] = {left, right, added_token(302, "<P>"), added_token(303, "<P><Q>"), word};
  return load(value);
}

TEST(Tok05AddedTokens, StripUnicodeWhiteSpaceOnTheirSideOnly) {
  const auto tokenizer = tiny();
  EXPECT_EQ(encode(*tokenizer, "x  <L>  y"), (Ids{120, 300, 32, 32, 121}));
  EXPECT_EQ(encode(*tokenizer, "x  <R>  y"), (Ids{120, 32, 32, 301, 121}));
  EXPECT_EQ(encode(*tokenizer, "x  <P>  y"), (Ids{120, 32, 32, 302, 32, 32, 121}));
  EXPECT_EQ(encode(*tokenizer, "x\u00A0<L>"), (Ids{120, 300}));
  EXPECT_EQ(encode(*tokenizer, "x\u3000<L>"), (Ids{120, 300}));
  EXPECT_EQ(encode(*tokenizer, "x\u200B<L>"), (Ids{120, 226, 128, 139, 300}));
  EXPECT_EQ(encode(*tokenizer, "x\n<L>\ny"), (Ids{120, 300, 10, 121}));
  EXPECT_EQ(encode(*tokenizer, "<R> \t<L>"), (Ids{301, 300}));
}

TEST(Tok05AddedTokens, LongestMatchWins) {
  const auto tokenizer = tiny();
  EXPECT_EQ(encode(*tokenizer, "<P><Q>"), (Ids{303}));
  EXPECT_EQ(encode(*tokenizer, "<P> <Q>"), (Ids{302, 32, 60, 81, 62}));
  EXPECT_EQ(encode(*tokenizer, "<P><P><Q><Q"), (Ids{302, 303, 60, 81}));
}

TEST(Tok05AddedTokens, SingleWordNeedsWordEdges) {
  const auto tokenizer = tiny();
  EXPECT_EQ(encode(*tokenizer, "a kat."), (Ids{97, 32, 304, 46}));
  EXPECT_EQ(encode(*tokenizer, "kat"), (Ids{304}));
  EXPECT_EQ(encode(*tokenizer, "katt"), (Ids{107, 97, 116, 116}));
  EXPECT_EQ(encode(*tokenizer, "_kat_"), (Ids{95, 107, 97, 116, 95}));
  EXPECT_EQ(encode(*tokenizer, "ékat"), (Ids{195, 169, 107, 97, 116}));
}

}  // namespace
}  // namespace tenon
