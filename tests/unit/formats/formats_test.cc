// What the containers hold when all is well; hostile input is in tests/issues/formats_lod*_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "formats/gguf.h"
#include "formats/json_text.h"
#include "formats/quote.h"
#include "formats/safetensors.h"
#include "tests/unit/formats/file_helpers.h"

namespace tenon {
namespace {

using ::testing::HasSubstr;
using testing_files::GgufBuilder;
using testing_files::little_endian;
using testing_files::SafetensorsBuilder;
using testing_files::TempFolder;

TEST(Gguf, EveryValueType) {
  GgufBuilder gguf;
  gguf.add("u8", 0, little_endian(uint8_t{200})).add("i8", 1, little_endian(int8_t{-3}));
  gguf.add("u16", 2, little_endian(uint16_t{60000})).add("i16", 3, little_endian(int16_t{-300}));
  gguf.add_u32("u32", 4000000000U).add_i32("i32", -5).add_f32("f32", 0.5F).add_bool("flag", true);
  gguf.add_string("text", "h\xC3\xA9").add_strings("texts", {"", "b"});
  gguf.add("u64", 10, little_endian(~uint64_t{0})).add("i64", 11, little_endian(int64_t{-6}));
  gguf.add("f64", 12, little_endian(1e300));
  gguf.add("bools", 9,
           little_endian(uint32_t{7}) + little_endian(uint64_t{2}) + std::string("\1\0", 2));
  gguf.add("floats", 9,
           little_endian(uint32_t{6}) + little_endian(uint64_t{4}) + little_endian(2.5F) +
               little_endian(-1e30F) + little_endian(std::nanf("")) + little_endian(1e30F));
  const TempFolder folder;
  const auto opened = GgufFile::open(folder.write("a.gguf", gguf.build()));
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const GgufFile& file = **opened;
  EXPECT_EQ(*file.get_int("u8"), 200);
  EXPECT_EQ(*file.get_int("i8"), -3);
  EXPECT_EQ(*file.get_int("u16"), 60000);
  EXPECT_EQ(*file.get_int("i16"), -300);
  EXPECT_EQ(*file.get_int("u32"), 4000000000);
  EXPECT_EQ(*file.get_int("i32"), -5);
  EXPECT_EQ(*file.get_float("f32"), 0.5);
  EXPECT_EQ(*file.get_float("i32"), -5.0);
  EXPECT_EQ(*file.get_bool("flag"), true);
  EXPECT_EQ(*file.get_string("text"), "h\xC3\xA9");
  EXPECT_EQ((*file.get_array("texts"))->strings, (std::vector<std::string_view>{"", "b"}));
  EXPECT_EQ(file.get_int("u64").status().code(), StatusCode::kInvalidArgument);  // above 2^63
  EXPECT_EQ(std::get<uint64_t>(*file.find("u64")), ~uint64_t{0});
  EXPECT_EQ(*file.get_int("i64"), -6);
  EXPECT_EQ(*file.get_float("f64"), 1e300);
  EXPECT_EQ((*file.get_array("bools"))->int_at(0), 1);
  EXPECT_EQ((*file.get_array("bools"))->int_at(1), 0);
  const GgufArray& floats = **file.get_array("floats");
  EXPECT_EQ(floats.float_at(0), 2.5);
  EXPECT_EQ(floats.int_at(0), 2);
  EXPECT_EQ(floats.int_at(1), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(floats.int_at(2), 0);
  EXPECT_EQ(floats.int_at(3), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(file.metadata().size(), 15U);
  EXPECT_EQ(file.metadata()[3].first, "i16");  // in file order
}

TEST(Gguf, TensorsOfEveryTypeHaveTheirBytes) {
  GgufBuilder gguf;
  const std::vector<uint32_t> types = {0, 1, 30, 2, 3, 6, 7, 8, 12, 13, 14};
  for (const uint32_t type : types) {
    const GgmlTypeInfo* info = ggml_type_info(type);
    ASSERT_NE(info, nullptr) << type;
    const size_t bytes = static_cast<size_t>(2 * 256 / info->block_elements * info->block_bytes);
    gguf.add_tensor("t" + std::to_string(type), type, {2, 256},
                    std::string(bytes, static_cast<char>(type)));
  }
  const TempFolder folder;
  const auto opened = GgufFile::open(folder.write("a.gguf", gguf.build()));
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  for (const uint32_t type : types) {
    const GgufTensor* tensor = (*opened)->find_tensor("t" + std::to_string(type));
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->type, type);
    EXPECT_EQ(tensor->shape, (std::vector<int64_t>{2, 256}));
    for (const std::byte byte : tensor->data) ASSERT_EQ(byte, static_cast<std::byte>(type));
  }
  EXPECT_EQ(ggml_type_list(), "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K");
}

TEST(Safetensors, TensorsMetadataAndScalars) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"I64","shape":[],"data_offsets":[4,12]},)"
      R"("a":{"shape":[2,1],"data_offsets":[0,4],"dtype":"BF16"},"none":{"dtype":"F32","shape":[0,5],"data_offsets":[12,12]}}   )";
  const TempFolder folder;
  const auto opened = SafetensorsFile::open(folder.write(
      "a.safetensors", little_endian(uint64_t{header.size()}) + header + "abcdefghijkl"));
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_EQ((*opened)->metadata().at("format"), "pt");
  ASSERT_EQ((*opened)->tensors().size(), 3U);
  const SafetensorsTensor* a = (*opened)->find_tensor("a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->dtype, "BF16");
  EXPECT_EQ(a->shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(a->data.data()), a->data.size()), "abcd");
  EXPECT_EQ((*opened)->find_tensor("b")->data.size(), 8U);
  EXPECT_TRUE((*opened)->find_tensor("b")->shape.empty());
  EXPECT_EQ((*opened)->find_tensor("none")->data.size(), 0U);
  EXPECT_EQ((*opened)->find_tensor("c"), nullptr);
}

TEST(JsonText, LimitsAndPositions) {
  EXPECT_TRUE(parse_json_text(R"({"a": [1, {"a": 2}], "b": "ü"})").ok());
  EXPECT_THAT(parse_json_text("{\"a\": }").status().message(), HasSubstr("at byte 7"));
  EXPECT_FALSE(parse_json_text("").ok());
  EXPECT_FALSE(parse_json_text("\"\xFF\"").ok());
  EXPECT_THAT(parse_json_text(R"({"x": {"k": 1, "k": 2}})").status().message(),
              HasSubstr("'k' appears twice"));
  EXPECT_TRUE(parse_json_text(std::string(64, '[') + std::string(64, ']')).ok());
  EXPECT_THAT(parse_json_text(std::string(65, '[') + std::string(65, ']')).status().message(),
              HasSubstr("deeper than 64"));
  const TempFolder folder;
  const std::string path = folder.write("a.json", "{\"a\": 1}");
  EXPECT_TRUE(read_json_file(path, 100).ok());
  EXPECT_THAT(read_json_file(path, 7).status().message(), HasSubstr("above the limit of 7"));
}

TEST(Quote, OnlyPrintableTextComesOut) {
  EXPECT_EQ(quote_name("blk.0"), "'blk.0'");
  EXPECT_EQ(printable_text("a\n\t\x1b\x7f", 99), "a\\n\\t\\x1b\\x7f");
  EXPECT_EQ(printable_text("é漢🙂", 99), "é漢🙂");
  EXPECT_EQ(printable_text("\xC3(\xFF\xED\xA0\x80\xC2\x85\xF0\x9F", 99),
            "\\xc3(\\xff\\xed\\xa0\\x80\\xc2\\x85\\xf0\\x9f");
  EXPECT_EQ(printable_text(std::string(100, 'x'), 10), "xxxxxxxxxx...");
}

}  // namespace
}  // namespace tenon
