// LOD-03: a shard is missing (sgl-project/sglang PR 32279 and others). Refused before any weight is
// used, naming the files or tensors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/gguf_split.h"
#include "formats/safetensors.h"
#include "kernels/ops.h"
#include "models/model.h"
#include "tests/unit/formats/file_helpers.h"
#include "tests/unit/models/tiny_model.h"

namespace tenon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing_files::GgufBuilder;
using testing_files::SafetensorsBuilder;
using testing_files::TempFolder;

const char* const kFirst = "m-00001-of-00002.safetensors";
const char* const kSecond = "m-00002-of-00002.safetensors";
const std::string kEight("\0\0\x80\x3f\0\0\0\x40", 8);

std::string with_tensor(std::string_view name) {
  return SafetensorsBuilder().add(name, "F32", {2}, kEight).build();
}

std::string index_of(const std::string& file_of_b) {
  return R"({"metadata":{"total_size":16},"weight_map":{"a":")" + std::string(kFirst) +
         R"(","b":")" + file_of_b + "\"}}";
}

void write_index(const TempFolder& folder, const std::string& text) {
  folder.write("model.safetensors.index.json", text);
}

Status folder_error(const TempFolder& folder) {
  return open_safetensors_folder(folder.path()).status();
}

TEST(Lod03, WholeFolderLoads) {
  const TempFolder folder;
  write_index(folder, index_of(kSecond));
  folder.write(kFirst, with_tensor("a"));
  folder.write(kSecond, with_tensor("b"));
  const auto opened = open_safetensors_folder(folder.path());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_EQ(opened->files.size(), 2U);
  EXPECT_EQ(opened->index.size(), 2U);
  EXPECT_THAT(opened->notes, IsEmpty());
}

TEST(Lod03, SecondFileAbsent) {
  const TempFolder folder;
  write_index(folder, index_of(kSecond));
  folder.write(kFirst, with_tensor("a"));
  const Status status = folder_error(folder);
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr(kSecond));
  EXPECT_THAT(status.message(), Not(HasSubstr(kFirst)));
}

TEST(Lod03, FilePresentWithoutItsTensor) {
  const TempFolder folder;
  write_index(folder, index_of(kSecond));
  folder.write(kFirst, with_tensor("a"));
  folder.write(kSecond, with_tensor("c"));
  const Status status = folder_error(folder);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("'b' (m-00002-of-00002.safetensors)"));
}

TEST(Lod03, StrayFileIsIgnoredWithANote) {
  const TempFolder folder;
  write_index(folder, index_of(kSecond));
  folder.write(kFirst, with_tensor("a"));
  folder.write(kSecond, with_tensor("b"));
  folder.write("stray.safetensors", with_tensor("a"));
  const auto opened = open_safetensors_folder(folder.path());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_EQ(opened->files.size(), 2U);
  EXPECT_THAT(opened->notes, ElementsAre(HasSubstr("stray.safetensors")));
}

TEST(Lod03, CopyOfATensorInTheWrongShardIsIgnoredWithANote) {
  const TempFolder folder;
  write_index(folder, index_of(kSecond));
  folder.write(
      kFirst,
      SafetensorsBuilder().add("a", "F32", {2}, kEight).add("b", "F32", {2}, kEight).build());
  folder.write(kSecond, with_tensor("b"));
  const auto opened = open_safetensors_folder(folder.path());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_THAT(opened->notes,
              ElementsAre(HasSubstr("'b' is in m-00002-of-00002.safetensors by the index")));
}

TEST(Lod03, PathsOutsideTheFolderAreRefused) {
  const TempFolder outside;
  const std::string absolute = outside.write("x.safetensors", with_tensor("b"));
  for (const std::string& target :
       {std::string("../x.safetensors"), absolute, std::string("sub/x.safetensors"),
        std::string(".."), std::string(), std::string("..\\\\x.safetensors")}) {
    const TempFolder folder;
    folder.write(kFirst, with_tensor("a"));
    write_index(folder, index_of(target));
    const Status status = folder_error(folder);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << target;
    EXPECT_THAT(status.message(), HasSubstr("not a plain file name")) << target;
    EXPECT_THAT(status.message(), HasSubstr("'b'"));
  }
}

TEST(Lod03, BadIndex) {
  for (const std::string text : {"not json", "[]", "{}", "{\"weight_map\": 3}",
                                 "{\"weight_map\": {}}", "{\"weight_map\": {\"a\": 3}}", ""}) {
    const TempFolder folder;
    folder.write(kFirst, with_tensor("a"));
    write_index(folder, text);
    const Status status = folder_error(folder);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << text;
    EXPECT_THAT(status.message(), HasSubstr("model.safetensors.index.json")) << text;
  }
}

TEST(Lod03, ADirectoryInPlaceOfAFile) {
  const TempFolder folder;
  std::filesystem::create_directory(folder.path("x.safetensors"));
  EXPECT_THAT(folder_error(folder).message(), HasSubstr("x.safetensors: not a regular file"));
  write_index(folder, index_of("x.safetensors"));
  folder.write(kFirst, with_tensor("a"));
  EXPECT_THAT(folder_error(folder).message(), HasSubstr("x.safetensors: not a regular file"));
}

TEST(Lod03, TwoFilesWithoutIndexAreMergedDuplicatesRefused) {
  const TempFolder folder;
  folder.write(kFirst, with_tensor("a"));
  folder.write(kSecond, with_tensor("b"));
  const auto opened = open_safetensors_folder(folder.path());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_EQ(opened->index.size(), 2U);
  folder.write(kSecond, with_tensor("a"));
  const Status status = folder_error(folder);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(),
              HasSubstr("tensor 'a' is in m-00001-of-00002.safetensors and in m-00002"));
}

TEST(Lod03, NoFileAtAll) {
  const TempFolder folder;
  EXPECT_THAT(folder_error(folder).message(), HasSubstr("no *.safetensors file"));
  EXPECT_EQ(open_safetensors_folder(folder.path("none")).status().code(), StatusCode::kNotFound);
}

std::string split_name(int number) {
  return "m-0000" + std::to_string(number) + "-of-00003.gguf";
}

std::string split_file(uint16_t number, const std::string& tensor, uint16_t count = 3) {
  return GgufBuilder()
      .add_u16("split.no", number)
      .add_u16("split.count", count)
      .add_i32("split.tensors.count", 3)
      .add_tensor(tensor, 0, {2}, kEight)
      .build();
}

TEST(Lod03, SplitGgufFromAnyFile) {
  const TempFolder folder;
  for (uint16_t i = 0; i < 3; ++i)
    folder.write(split_name(i + 1), split_file(i, "t" + std::to_string(i)));
  for (int start = 1; start <= 3; ++start) {
    const auto files = open_gguf_files(folder.path(split_name(start)));
    ASSERT_TRUE(files.ok()) << files.status().message();
    ASSERT_EQ(files->size(), 3U);
    EXPECT_EQ((*files)[0]->tensors()[0].name, "t0");
    EXPECT_EQ((*files)[2]->tensors()[0].name, "t2");
  }
}

TEST(Lod03, SplitGgufWithAMissingFile) {
  const TempFolder folder;
  folder.write(split_name(1), split_file(0, "a"));
  folder.write(split_name(3), split_file(2, "c"));
  for (int start : {1, 3}) {
    const Status status = open_gguf_files(folder.path(split_name(start))).status();
    EXPECT_EQ(status.code(), StatusCode::kNotFound);
    EXPECT_THAT(status.message(), HasSubstr("missing: " + folder.path(split_name(2))));
  }
  std::filesystem::remove(folder.path(split_name(1)));
  EXPECT_THAT(open_gguf_files(folder.path(split_name(3))).status().message(),
              HasSubstr(folder.path(split_name(1)) + ", " + folder.path(split_name(2))));
}

TEST(Lod03, SplitGgufThatContradictsItself) {
  const TempFolder folder;
  folder.write(split_name(1), split_file(0, "a"));
  folder.write(split_name(2), split_file(1, "b"));
  const auto with_third = [&](const std::string& bytes) {
    folder.write(split_name(3), bytes);
    const Status status = open_gguf_files(folder.path(split_name(1))).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.message();
    return status.message();
  };
  EXPECT_THAT(with_third(split_file(2, "a")), HasSubstr("tensor 'a' is also in another file"));
  EXPECT_THAT(with_third(split_file(1, "c")),
              HasSubstr("its metadata says file 2 of 3, its name says 3 of 3"));
  EXPECT_THAT(with_third(split_file(2, "c", 4)), HasSubstr("file 3 of 4"));
  EXPECT_THAT(with_third(split_file(7, "c")), HasSubstr("'split.no' 7 and 'split.count' 3"));
  const std::string empty = GgufBuilder()
                                .add_u16("split.no", 2)
                                .add_u16("split.count", 3)
                                .add_i32("split.tensors.count", 3)
                                .build();
  EXPECT_THAT(with_third(empty),
              HasSubstr("'split.tensors.count' is 3, but the 3 files hold 2 tensors"));
  const Status renamed = open_gguf_files(folder.write("other.gguf", split_file(0, "a"))).status();
  EXPECT_THAT(renamed.message(), HasSubstr("does not end in '-00001-of-00003.gguf'"));
}

// Through load_model: whatever is missing, no model comes out.
TEST(Lod03, LoadModelRefuses) {
  const tiny::TinyLlama m;
  const std::unique_ptr<Ops> ops = make_reference_ops();
  ModelLoadOptions options;
  const TempFolder folder;
  tiny::write_hf(folder, m, 2);
  options.path = folder.path();
  ASSERT_TRUE(load_model(options, ops.get()).ok());
  std::filesystem::remove(folder.path(tiny::shard_name(1, 2)));
  EXPECT_THAT(load_model(options, ops.get()).status().message(), HasSubstr(tiny::shard_name(1, 2)));
  // Without the index the one shard is all there is: the check-off finds what it lacks.
  std::filesystem::remove(folder.path("model.safetensors.index.json"));
  const Status status = load_model(options, ops.get()).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("10 tensors that LlamaForCausalLM needs are missing: "));
  EXPECT_THAT(status.message(), HasSubstr("model.norm.weight"));
}

}  // namespace
}  // namespace tenon
