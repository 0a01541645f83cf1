// JSON from the network. ROB-04.
#include "server/json_input.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace tenon {
namespace {

std::string nested(size_t depth, const std::string& open, const std::string& close) {
  std::string text = "{\"x\":";
  for (size_t i = 0; i < depth; ++i) text += open;
  text += "0";
  for (size_t i = 0; i < depth; ++i) text += close;
  return text + "}";
}

TEST(JsonInput, KeepsOrderAndTheLastOfEqualKeys) {
  const auto value = parse_json(R"({"b":1,"a":[true,null,-2,1.5,"x"],"b":{"c":"d"},"z":0})", {});
  ASSERT_TRUE(value.ok()) << value.status().message();
  EXPECT_EQ(dump_json(*value), R"({"b":{"c":"d"},"a":[true,null,-2,1.5,"x"],"z":0})");
}

TEST(JsonInput, Rob04RefusesWhatIsNotJson) {
  const std::string rows[] = {"",
                              " ",
                              "{",
                              "[1,]",
                              R"({"model":"m",})",
                              "{\"a\":NaN}",
                              "{'a':1}",
                              "1 2",
                              "{\"prompt\":\"a\xff\"}",
                              "{\"prompt\":\"\xc4\xe3\xba\xc3\"}",  // GBK
                              R"({"p":"\ud800"})",
                              R"({"p":"\udc00\ud800"})",
                              R"({"p":"\ud800x"})",
                              "{\"t\":1e999}",
                              "{\"t\":-1e999}",
                              "{\"t\":" + std::string(1 << 20, '9') + "}",
                              "\xef\xbb",
                              "{\"p\":\"\xed\xa0\x80\"}",
                              "{\"p\":\"\xc0\x80\"}",
                              "{\"a\nb\":1}"};
  for (const std::string& text : rows) {
    const auto value = parse_json(text, {});
    EXPECT_FALSE(value.ok()) << text.substr(0, 40);
    EXPECT_EQ(value.status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(JsonInput, ErrorsNameThePlaceButNotTheText) {
  const auto value = parse_json("{\"prompt\":\"my secret\xff\"}", {});
  ASSERT_FALSE(value.ok());
  EXPECT_EQ(value.status().message().find("secret"), std::string::npos) << value.status().message();
  EXPECT_NE(value.status().message().find("column"), std::string::npos) << value.status().message();
}

TEST(JsonInput, AcceptsZeroBytesAndPairs) {
  const auto value = parse_json(R"({"p":"a\u0000b\ud83d\ude00"})", {});
  ASSERT_TRUE(value.ok());
  EXPECT_EQ((*value)["p"].get<std::string>(), std::string("a\0b\xF0\x9F\x98\x80", 7));
}

TEST(JsonInput, Rob04LimitsDepthAndSize) {
  EXPECT_TRUE(parse_json(nested(100, "[", "]"), {}).ok());
  for (const size_t depth : {10'000, 1'000'000}) {
    EXPECT_FALSE(parse_json(nested(depth, "[", "]"), {}).ok());
    EXPECT_FALSE(parse_json(nested(depth, "{\"y\":", "}"), {}).ok());
  }
  std::string list = "[0";
  for (int i = 0; i < 2000; ++i) list += ",0";
  EXPECT_TRUE(parse_json(list + "]", {}).ok());
  EXPECT_FALSE(parse_json(list + "]", {.max_depth = 8, .max_values = 1000}).ok());
}

TEST(JsonInput, ManyKeysTakeLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 200'000; ++i)
    text += "\"k" + std::to_string(i % 150'000) + "\":" + std::to_string(i) + ",";
  text += "\"end\":1}";
  const double start = now_seconds();
  const auto value = parse_json(text, {});
  EXPECT_LT(now_seconds() - start, 2.0);
  ASSERT_TRUE(value.ok());
  EXPECT_EQ(value->size(), 150'001U);
  EXPECT_EQ(value->begin().value(), 150'000);  // the last "k0"
}

// Keys that an unkeyed hash (MurmurHash64A with the fixed seed of libstdc++) sends to one place:
// two pairs of 8-byte blocks where each block of the second pair takes back what one of the first
// does.
std::string colliding_key(size_t number, size_t bits) {
  constexpr std::array<std::string_view, 2> kFirst = {"`fvcjxrw", "`f3}\x05^\x1a\x06"};
  constexpr std::array<std::string_view, 2> kSecond = {"LTV.l;su", "LT\x13H\x07!\x1b\x04"};
  std::string key;
  for (size_t i = 0; i < bits; ++i) {
    const size_t bit = number >> i & 1U;
    key += std::string(kFirst[bit]) + std::string(kSecond[bit]);
  }
  return key;
}

TEST(JsonInput, Rob04PreparedKeysTakeLinearTimeToo) {
#ifdef __GLIBCXX__
  EXPECT_EQ(std::hash<std::string>()(colliding_key(0, 2)),
            std::hash<std::string>()(colliding_key(3, 2)));
#endif
  constexpr size_t kBits = 15;
  std::string text = "{";
  for (size_t i = 0; i < size_t{1} << kBits; ++i) {
    text += OrderedJson(colliding_key(i, kBits)).dump() + ":1,";
  }
  text += "\"end\":1}";
  const double start = now_seconds();
  const auto value = parse_json(text, {});
  EXPECT_LT(now_seconds() - start, 1.0);
  ASSERT_TRUE(value.ok()) << value.status().message();
  EXPECT_EQ(value->size(), (size_t{1} << kBits) + 1);
}

TEST(JsonInput, DumpReplacesInvalidUtf8) {
  EXPECT_EQ(dump_json({{"a", "x\xc3"}}), "{\"a\":\"x\xEF\xBF\xBD\"}");
}

}  // namespace
}  // namespace tenon
