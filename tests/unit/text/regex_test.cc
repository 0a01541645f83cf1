#include "text/regex.h"

#include <gtest/gtest.h>

#include "text/pre_tokenizer.h"

namespace tenon {
namespace {

std::vector<std::string> matches(std::string_view pattern, std::string_view text) {
  const auto regex = Regex::compile(pattern);
  EXPECT_TRUE(regex.ok()) << regex.status().message();
  Regex::Matcher matcher;
  std::vector<TextRange> ranges;
  EXPECT_TRUE((*regex)->find_all(text, matcher, ranges).ok());
  std::vector<std::string> result;
  for (const TextRange& range : ranges)
    result.emplace_back(text.substr(range.begin, range.end - range.begin));
  return result;
}

using Texts = std::vector<std::string>;

TEST(Regex, Gpt2Pattern) {
  EXPECT_EQ(matches(kGpt2Pattern, "I'm  42 émus!!\n\n x"),
            (Texts{"I", "'m", " ", " 42", " émus", "!!", "\n\n", " x"}));
}

// Oniguruma's meaning, where PCRE2's own would differ.
TEST(Regex, MeansWhatOnigurumaMeans) {
  EXPECT_EQ(matches(R"(\s+)", "a\u0085\u00A0b\u180Ec\u3000"), (Texts{"\u0085\u00A0", "\u3000"}));
  EXPECT_EQ(matches(R"(\S+)", "a\u180Eb c"), (Texts{"a\u180Eb", "c"}));
  EXPECT_EQ(matches(R"(\d+)", "1٣x৩"), (Texts{"1٣", "৩"}));
  EXPECT_EQ(matches(R"(a{,2}b)", "aab b"), (Texts{"aab", "b"}));
  EXPECT_EQ(matches(R"(\v)", "\n\v"), (Texts{"\v"}));
  EXPECT_EQ(matches(R"(x.)", "x\nx\rxy"), (Texts{"x\r", "xy"}));
  EXPECT_EQ(matches(R"(^b$)", "a\nb\nc"), (Texts{"b"}));
  EXPECT_EQ(matches("(?i:'s)", "'S'ſ"), (Texts{"'S", "'ſ"}));
  // U+1C89 came with Unicode 16.
  EXPECT_EQ(matches(R"(\p{Lu}+)", "A\u1C89b"), (Texts{"A\u1C89"}));
  EXPECT_EQ(matches(R"([^\p{L}]+)", "A\u1C89-"), (Texts{"-"}));
  EXPECT_EQ(matches(R"(\P{L}+)", "A\u1C89-"), (Texts{"-"}));
}

TEST(Regex, EmptyMatchesMoveOn) {
  EXPECT_EQ(matches("x*", "éxxa"), (Texts{"", "xx", ""}));
}

TEST(Regex, RefusesWhatMayMeanSomethingElse) {
  for (const char* pattern :
       {R"(\w+)",         R"(\bx)",   R"(\h)",     R"(\1)",     R"([a[bc]])", R"([a-z&&[^b]])",
        R"([[:alpha:]])", R"(x{2}+)", R"(x{2}?)",  R"((?m:x))", R"(a(?i)b)",  R"(\p{Han})",
        R"(\p{^L})",      R"([\S])",  R"(\p{Mn})", R"(\xE9)",   R"(a{b)",     R"(\R)",
        R"(\X)",          R"(\K)",    R"(\G)"}) {
    const auto regex = Regex::compile(pattern);
    ASSERT_FALSE(regex.ok()) << pattern;
    EXPECT_EQ(regex.status().code(), StatusCode::kUnsupported);
    EXPECT_NE(regex.status().message().find(pattern), std::string::npos)
        << regex.status().message();
  }
  EXPECT_FALSE(Regex::compile("(a").ok());
  EXPECT_FALSE(Regex::compile("[a").ok());
  EXPECT_FALSE(Regex::compile("\xFF").ok());
}

TEST(Regex, GivesUpOnRunawayBacktracking) {
  const auto regex = Regex::compile("(?:a|aa)+[bc]");
  ASSERT_TRUE(regex.ok());
  Regex::Matcher matcher;
  std::vector<TextRange> ranges;
  const Status status = (*regex)->find_all(std::string(200, 'a'), matcher, ranges);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tenon
