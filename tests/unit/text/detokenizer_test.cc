#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include "tests/issues/text_tiny_vocabularies.h"
#include "text/utf8.h"

namespace tenon {
namespace {

using namespace testing_support;

std::shared_ptr<const Tokenizer> with_control_token() {
  json value = tiny_byte_level();
  value["added_tokens"] = {added_token(256, "<end>")};
  return load(value);
}

struct Outcome {
  std::string text;
  std::optional<std::string> stopped_by;
};

// Feeds `text` byte by byte.
Outcome feed(const std::string& text, DetokenizerOptions options) {
  Detokenizer detokenizer(with_control_token(), std::move(options));
  Outcome outcome;
  for (const char byte : text) {
    const Detokenizer::Delta delta = detokenizer.push(static_cast<uint8_t>(byte));
    EXPECT_TRUE(is_valid_utf8(delta.text));
    outcome.text += delta.text;
    if (delta.stopped_by) {
      outcome.stopped_by = delta.stopped_by;
      break;
    }
  }
  outcome.text += detokenizer.finish().text;
  EXPECT_EQ(outcome.text, detokenizer.text());
  return outcome;
}

TEST(Detokenizer, StopStringAcrossTokensIsCutOff) {
  const Outcome outcome = feed("Hello\n\nUser: x", {.stop = {"\n\nUser:"}});
  EXPECT_EQ(outcome.text, "Hello");
  EXPECT_EQ(outcome.stopped_by, "\n\nUser:");
  EXPECT_EQ(feed("Hello\n\nUser: x", {.stop = {"\n\nUser:"}, .include_stop_string = true}).text,
            "Hello\n\nUser:");
}

TEST(Detokenizer, HoldsOnlyTheLongestPossibleHead) {
  Detokenizer detokenizer(with_control_token(), {.stop = {"aab", "xyz"}});
  EXPECT_EQ(detokenizer.push('a').text, "");
  EXPECT_EQ(detokenizer.push('a').text, "");
  EXPECT_EQ(detokenizer.push('a').text, "a");  // "aa" may still begin "aab"
  EXPECT_EQ(detokenizer.push('x').text, "aa");
  EXPECT_EQ(detokenizer.push('y').text, "");
  EXPECT_EQ(detokenizer.finish().text, "xy");
  EXPECT_EQ(detokenizer.finish().text, "");
}

TEST(Detokenizer, TheStopThatEndsFirstCounts) {
  EXPECT_EQ(feed("zabcd", {.stop = {"abcd", "bc"}}).stopped_by, "bc");
  EXPECT_EQ(feed("zabcd", {.stop = {"abcd", "bc"}}).text, "za");
  // Of two that end together, the longer one.
  EXPECT_EQ(feed("zabc", {.stop = {"c", "abc"}}).text, "z");
  EXPECT_EQ(feed("aabaabaac", {.stop = {"aabaac"}}).text, "aab");
}

TEST(Detokenizer, StopsInOneLargeDeltaAndSaysNothingAfterwards) {
  json value = tiny_byte_level({{"S", "T"}, {"x", "ST"}, {"xST", "y"}});
  Detokenizer detokenizer(load(value), {.stop = {"ST"}});
  const Detokenizer::Delta delta = detokenizer.push(258);  // "xSTy"
  EXPECT_EQ(delta.text, "x");
  EXPECT_EQ(delta.stopped_by, "ST");
  EXPECT_EQ(detokenizer.push('q').text, "");
  EXPECT_EQ(detokenizer.finish().text, "");
  EXPECT_EQ(detokenizer.text(), "x");
}

TEST(Detokenizer, StopStringOfSeveralByteCharacters) {
  EXPECT_EQ(feed("é你好吗", {.stop = {"好"}}).text, "é你");
  // The same lead bytes, another character: nothing is lost, nothing is cut.
  EXPECT_EQ(feed("é你她吗", {.stop = {"好"}}).text, "é你她吗");
  EXPECT_EQ(feed("ab\xE4\xBD", {.stop = {"你"}}).text, "ab\uFFFD");
}

TEST(Detokenizer, ControlTokensAreSkippedOrWritten) {
  Detokenizer skipping(with_control_token(), {});
  EXPECT_EQ(skipping.push('a').text + skipping.push(256).text + skipping.push('b').text, "ab");
  Detokenizer writing(with_control_token(), {.skip_special = false});
  EXPECT_EQ(writing.push('a').text + writing.push(256).text + writing.push('b').text, "a<end>b");
}

TEST(Detokenizer, SentencePieceSpaceAtTheBeginning) {
  const auto tokenizer = load(tiny_sentencepiece("first"));
  const Ids ids = encode(*tokenizer, "ab ab");
  Detokenizer beginning(tokenizer, {});
  Detokenizer continuing(tokenizer, {.continues_text = true});
  std::string from_start, in_the_middle;
  for (const int32_t id : ids) {
    from_start += beginning.push(id).text;
    in_the_middle += continuing.push(id).text;
  }
  EXPECT_EQ(from_start, "ab ab");
  EXPECT_EQ(from_start, tokenizer->decode(ids));
  EXPECT_EQ(in_the_middle, " ab ab");
}

}  // namespace
}  // namespace tenon
