// LOD-01: a truncated file read through mmap (ggml-org/llama.cpp issue 6774 and others). Every cut
// is refused at load, quickly, with the file and what is missing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <functional>

#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "tests/unit/formats/file_helpers.h"

namespace tenon {
namespace {

using ::testing::HasSubstr;
using testing_files::from_hex;
using testing_files::TempFolder;

std::string gguf_file() {
  return from_hex(
             "474755460300000001000000000000000200000000000000 1400000000000000 "
             "67656e6572616c2e617263686974656374757265 08000000 0100000000000000 74 "
             "1100000000000000 "
             "67656e6572616c2e616c69676e6d656e74 04000000 20000000 0100000000000000 77 01000000 "
             "0400000000000000 00000000 0000000000000000") +
         std::string(29, '\0') + from_hex("0000803f000000400000404000008040");
}

std::string safetensors_file() {
  return from_hex(
      "36000000000000007b2261223a7b226474797065223a22463332222c227368617065223a5b325d2c2264"
      "6174615f6f666673657473223a5b302c385d7d7d0000803f00000040");
}

template <typename T>
void expect_numbers(std::span<const std::byte> data, const std::vector<T>& expected) {
  ASSERT_EQ(data.size(), expected.size() * sizeof(T));
  std::vector<T> values(expected.size());
  std::memcpy(values.data(), data.data(), data.size());
  EXPECT_EQ(values, expected);
}

double seconds_of(const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(Lod01, WholeFilesLoad) {
  const TempFolder folder;
  ASSERT_EQ(gguf_file().size(), 176U);
  const auto gguf = GgufFile::open(folder.write("f.gguf", gguf_file()));
  ASSERT_TRUE(gguf.ok()) << gguf.status().message();
  const GgufTensor* w = (*gguf)->find_tensor("w");
  ASSERT_NE(w, nullptr);
  EXPECT_EQ(w->data.data() - (*gguf)->file()->bytes().data(), 160);
  expect_numbers<float>(w->data, {1, 2, 3, 4});

  ASSERT_EQ(safetensors_file().size(), 70U);
  const auto safetensors = SafetensorsFile::open(folder.write("f.safetensors", safetensors_file()));
  ASSERT_TRUE(safetensors.ok()) << safetensors.status().message();
  const SafetensorsTensor* a = (*safetensors)->find_tensor("a");
  ASSERT_NE(a, nullptr);
  expect_numbers<float>(a->data, {1, 2});
}

TEST(Lod01, EveryCutIsRefused) {
  const TempFolder folder;
  const auto check = [&](const std::string& whole, const std::string& name,
                         const std::string& tensor, size_t header_end,
                         const std::function<Status(const std::string&)>& open) {
    for (size_t length = 0; length < whole.size(); ++length) {
      const std::string path = folder.write(name, whole.substr(0, length));
      Status status;
      EXPECT_LT(seconds_of([&] { status = open(path); }), 0.1) << length;
      ASSERT_FALSE(status.ok()) << name << " cut to " << length;
      EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.message();
      EXPECT_THAT(status.message(), HasSubstr(name));
      if (length > 0) {
        EXPECT_THAT(status.message(), HasSubstr(std::to_string(length))) << "actual size";
      }
      if (length >= header_end) {
        EXPECT_THAT(status.message(), HasSubstr("'" + tensor + "'"));
      }
    }
  };
  check(gguf_file(), "cut.gguf", "w", 131,
        [](const std::string& path) { return GgufFile::open(path).status(); });
  check(safetensors_file(), "cut.safetensors", "a", 62,
        [](const std::string& path) { return SafetensorsFile::open(path).status(); });
}

TEST(Lod01, TheMessageHasNeededAndActualSize) {
  const TempFolder folder;
  const Status gguf = GgufFile::open(folder.write("f.gguf", gguf_file().substr(0, 170))).status();
  EXPECT_THAT(
      gguf.message(),
      HasSubstr("f.gguf: tensor 'w': needs 16 bytes at data offset 0 (file offset 160 + 0), "
                "but the file has 170 bytes"));
  const Status safetensors =
      SafetensorsFile::open(folder.write("f.safetensors", safetensors_file().substr(0, 66)))
          .status();
  EXPECT_THAT(safetensors.message(),
              HasSubstr("f.safetensors: tensor 'a': needs bytes up to data offset 8 (file "
                        "offset 70), but the file has 66 bytes"));
}

TEST(Lod01, AFileThatShrinksIsNoticedBeforeUse) {
  const TempFolder folder;
  const std::string path = folder.write("f.gguf", gguf_file());
  const auto opened = GgufFile::open(path);
  ASSERT_TRUE(opened.ok());
  EXPECT_TRUE((*opened)->file()->check_unchanged().ok());
  std::filesystem::resize_file(path, 100);
  const Status status = (*opened)->file()->check_unchanged();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("shrank from 176 to 100 bytes"));
}

TEST(Lod01, NotARegularFile) {
  const TempFolder folder;
  const std::string fifo = folder.path("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& path : {folder.path(), fifo}) {
    const Status gguf = GgufFile::open(path).status();
    EXPECT_EQ(gguf.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(gguf.message(), HasSubstr(path + ": not a regular file"));
    EXPECT_THAT(SafetensorsFile::open(path).status().message(),
                HasSubstr(path + ": not a regular file"));
  }
  EXPECT_EQ(GgufFile::open(folder.path("none")).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace tenon
