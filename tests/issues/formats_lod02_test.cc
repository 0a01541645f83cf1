// LOD-02: hostile headers and unknown tensor types (ggml-org/ggml PR 709 and others). Lengths and
// counts of the file never drive loops, allocations or indices: each is refused naming the field,
// fast, in little memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <new>

#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "tests/unit/formats/file_helpers.h"

// Every allocation of this test program is counted, to see the peak while a file is read.
namespace {
size_t live_bytes = 0;
size_t peak_bytes = 0;
}  // namespace

void* operator new(size_t size) {
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  live_bytes += ::malloc_usable_size(memory);
  peak_bytes = std::max(peak_bytes, live_bytes);
  return memory;
}
void operator delete(void* memory) noexcept {
  if (memory != nullptr) live_bytes -= ::malloc_usable_size(memory);
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  operator delete(memory);
}

namespace tenon {
namespace {

using ::testing::HasSubstr;
using testing_files::from_hex;
using testing_files::little_endian;
using testing_files::TempFolder;

std::string base_file() {
  return from_hex(
             "474755460300000001000000000000000200000000000000 1400000000000000 "
             "67656e6572616c2e617263686974656374757265 08000000 0100000000000000 74 "
             "1100000000000000 "
             "67656e6572616c2e616c69676e6d656e74 04000000 20000000 0100000000000000 77 01000000 "
             "0400000000000000 00000000 0000000000000000") +
         std::string(29, '\0') + from_hex("0000803f000000400000404000008040");
}

struct Cost {
  double seconds = 0;
  size_t peak_bytes = 0;  // obtained from operator new beyond what was held before
};
Cost cost_of(const std::function<void()>& call) {
  const size_t before = live_bytes;
  peak_bytes = before;
  const auto start = std::chrono::steady_clock::now();
  call();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return {seconds, peak_bytes - before};
}

struct Case {
  const char* what;
  size_t offset;
  std::string bytes;
  const char* message;  // the field
  StatusCode code = StatusCode::kDataLoss;
};

std::string u64(uint64_t value) {
  return little_endian(value);
}
std::string u32(uint32_t value) {
  return little_endian(value);
}

void expect_refused(const TempFolder& folder,
                    const std::string& what,
                    const std::string& bytes,
                    const std::string& message,
                    StatusCode code) {
  const std::string path = folder.write("hostile.gguf", bytes);
  Status status;
  const Cost cost = cost_of([&] { status = GgufFile::open(path).status(); });
  ASSERT_FALSE(status.ok()) << what;
  EXPECT_EQ(status.code(), code) << what << ": " << status.message();
  EXPECT_THAT(status.message(), HasSubstr("hostile.gguf")) << what;
  EXPECT_THAT(status.message(), HasSubstr(message)) << what;
  EXPECT_LT(cost.seconds, 0.1) << what;
  EXPECT_LT(cost.peak_bytes, size_t{64} << 20) << what;
}

TEST(Lod02, EveryOverwriteIsRefusedNamingTheField) {
  constexpr uint64_t kTop = uint64_t{1} << 63;
  const std::vector<Case> cases = {
      {"n_tensors 2^63", 8, u64(kTop), "tensor count 9223372036854775808"},
      {"n_tensors 2", 8, u64(2), "tensor 1: name"},
      {"n_kv 2^63-1", 16, u64(kTop - 1), "metadata count 9223372036854775807"},
      {"n_kv 3", 16, u64(3), "tensor 0: name"},
      {"key length 2^63", 24, u64(kTop), "metadata key 0: length 9223372036854775808"},
      {"key length 2^64-1", 24, u64(~uint64_t{0}), "metadata key 0: length 18446744073709551615"},
      {"key length 0", 24, u64(0), "metadata key 0: length 0"},
      {"value type 13", 52, u32(13), "'general.architecture': value type 13"},
      {"value type 2^32-1", 52, u32(~0U), "'general.architecture': value type 4294967295"},
      {"value length 200", 56, u64(200), "'general.architecture' needs 200 bytes"},
      {"value length 2^63", 56, u64(kTop),
       "'general.architecture' needs 9223372036854775808 bytes"},
      {"alignment 0", 94, u32(0), "'general.alignment': 0"},
      {"alignment 3", 94, u32(3), "'general.alignment': 3"},
      {"alignment 2^30", 94, u32(1U << 30), "'general.alignment': 1073741824"},
      {"name length 0", 98, u64(0), "tensor 0: name length 0"},
      {"name length 2^40", 98, u64(uint64_t{1} << 40), "tensor 0: name: length 1099511627776"},
      {"n_dims 0", 107, u32(0), "tensor 'w': number of dimensions 0"},
      {"n_dims 5", 107, u32(5), "tensor 'w': number of dimensions 5"},
      {"n_dims 9", 107, u32(9), "tensor 'w': number of dimensions 9"},
      {"n_dims 2^32-1", 107, u32(~0U), "tensor 'w': number of dimensions 4294967295"},
      {"ne0 0", 111, u64(0), "tensor 'w': dimension 0 is 0"},
      {"ne0 2^62", 111, u64(uint64_t{1} << 62),
       "tensor 'w': 4611686018427387904 F32 elements are too large"},
      {"ne0 2^62+4", 111, u64((uint64_t{1} << 62) + 4),
       "tensor 'w': 4611686018427387908 F32 elements are too large"},
      {"ne0 2^63", 111, u64(kTop), "tensor 'w': dimension 0 is 9223372036854775808"},
      {"type 42", 119, u32(42), "tensor 'w': type 42", StatusCode::kUnsupported},
      {"type 99", 119, u32(99),
       "tensor 'w': type 99 (unknown) is not supported; supported: F32, F16",
       StatusCode::kUnsupported},
      {"type IQ4_NL", 119, u32(20), "tensor 'w': type 20 (IQ4_NL)", StatusCode::kUnsupported},
      {"type Q4_1, ne0 33", 111, u64(33) + u32(3),
       "tensor 'w': dimension 0 is 33, not a multiple of the Q4_1 block of 32"},
      {"offset 1", 123, u64(1), "tensor 'w': offset 1 is not a multiple of the alignment 32"},
      {"offset 32", 123, u64(32), "tensor 'w': needs 16 bytes at data offset 32"},
      {"offset 2^64-16", 123, u64(~uint64_t{0} - 15), "tensor 'w': offset 18446744073709551600"},
      {"offset 2^64-32", 123, u64(~uint64_t{0} - 31),
       "tensor 'w': needs 16 bytes at data offset 18446744073709551584"},
      {"magic GGUX", 0, "GGUX", "magic is 'GGUX'"},
      {"version 0", 4, u32(0), "version 0", StatusCode::kUnsupported},
      {"version 1", 4, u32(1), "version 1 is not supported; supported: 2, 3",
       StatusCode::kUnsupported},
      {"version 4", 4, u32(4), "version 4", StatusCode::kUnsupported},
      {"big endian", 4, u32(0x03000000), "big-endian", StatusCode::kUnsupported},
  };
  const TempFolder folder;
  for (const Case& c : cases) {
    std::string bytes = base_file();
    bytes.replace(c.offset, c.bytes.size(), c.bytes);
    expect_refused(folder, c.what, bytes, c.message, c.code);
  }
}

TEST(Lod02, VersionTwoAndNoTensorsLoad) {
  const TempFolder folder;
  std::string two = base_file();
  two.replace(4, 4, u32(2));
  const auto version_two = GgufFile::open(folder.write("two.gguf", two));
  ASSERT_TRUE(version_two.ok()) << version_two.status().message();
  EXPECT_EQ((*version_two)->version(), 2U);
  std::string none = base_file();
  none.replace(8, 8, u64(0));
  const auto empty = GgufFile::open(folder.write("none.gguf", none));
  ASSERT_TRUE(empty.ok()) << empty.status().message();
  EXPECT_TRUE((*empty)->tensors().empty());
}

TEST(Lod02, Duplicates) {
  const TempFolder folder;
  testing_files::GgufBuilder tensors;
  tensors.add_tensor("w", 0, {4}, std::string(16, '\0'))
      .add_tensor("w", 0, {4}, std::string(16, '\0'));
  expect_refused(folder, "two tensors", tensors.build(), "tensor 'w': the name appears twice",
                 StatusCode::kDataLoss);
  testing_files::GgufBuilder keys;
  keys.add_u32("a.b", 1).add_string("a.b", "x");
  expect_refused(folder, "two keys", keys.build(), "metadata 'a.b': the key appears twice",
                 StatusCode::kDataLoss);
}

TEST(Lod02, OverlappingTensors) {
  testing_files::GgufBuilder gguf;
  gguf.add_tensor("a", 0, {64}, std::string(256, '\0'))
      .add_tensor("b", 0, {8}, std::string(32, '\0'));
  std::string bytes = gguf.build();
  const std::string offset = u64(256);
  const size_t at = bytes.find(offset, 60);
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, 8, u64(128));
  expect_refused(TempFolder(), "overlap", bytes, "tensors 'a' and 'b' overlap",
                 StatusCode::kDataLoss);
}

TEST(Lod02, Arrays) {
  const TempFolder folder;
  std::string nested;  // [[[...]]]: type array, count 1, type array, count 1, ...
  for (int i = 0; i < 10000; ++i) nested += u32(9) + u64(1);
  testing_files::GgufBuilder deep;
  deep.add("deep", 9, nested + u32(0) + u64(0));
  expect_refused(folder, "nested arrays", deep.build(), "'deep': nested arrays",
                 StatusCode::kUnsupported);
  for (const uint32_t type : {0U, 7U, 8U, 10U, 12U}) {
    for (const uint64_t count :
         {uint64_t{1} << 62, uint64_t{1} << 63, ~uint64_t{0}, uint64_t{1} << 61}) {
      testing_files::GgufBuilder huge;
      huge.add("huge", 9, u32(type) + u64(count) + std::string(64, '\1'));
      expect_refused(folder, "array count", huge.build(),
                     "'huge': array count " + std::to_string(count), StatusCode::kDataLoss);
    }
  }
  testing_files::GgufBuilder flag;
  flag.add("flag", 7, "\2");
  expect_refused(folder, "bool 2", flag.build(), "'flag': bool value 2", StatusCode::kDataLoss);
  testing_files::GgufBuilder strings;
  strings.add("list", 9, u32(8) + u64(2) + u64(1) + "a" + u64(uint64_t{1} << 30) + "b");
  expect_refused(folder, "string in array", strings.build(),
                 "'list': element 1: string needs 1073741824 bytes", StatusCode::kDataLoss);
}

// A file that really is large and full of small entries: work and memory stay proportional to it.
TEST(Lod02, ManyEntriesStayCheap) {
  std::string body;
  constexpr uint64_t kEntries = 10000;
  for (uint64_t i = 0; i < kEntries; ++i)
    body += u64(4) + little_endian(static_cast<uint32_t>(i)) + u32(0) + "x";
  const std::string bytes = "GGUF" + u32(3) + u64(0) + u64(kEntries) + body;
  const TempFolder folder;
  const std::string path = folder.write("many.gguf", bytes);
  Status status;
  const Cost cost = cost_of([&] { status = GgufFile::open(path).status(); });
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_GT(cost.peak_bytes, bytes.size());  // the counter works
  EXPECT_LT(cost.peak_bytes, 20 * bytes.size());
}

TEST(Lod02, HostileSafetensorsHeaders) {
  struct SafetensorsCase {
    std::string header;
    std::string message;
    std::string data = std::string(8, '\0');
    StatusCode code = StatusCode::kDataLoss;
  };
  const auto one = [](const std::string& fields) { return "{\"a\":{" + fields + "}}"; };
  const std::string shape = "\"dtype\":\"F32\",\"shape\":[2],";
  const std::vector<SafetensorsCase> cases = {
      {"[1]", "does not start with '{'"},
      {"", "does not start with '{'"},
      {"{\"a\":", "not valid JSON"},
      {"{\"a\xFF\":1}", "not valid JSON"},
      {"{\"a\":1}", "tensor 'a': a number"},
      {"{\"a\":null}", "tensor 'a': null"},
      {"{\"a\":[]}", "tensor 'a': an array"},
      {std::string("{\"a\":") + std::string(100000, '['), "tensor 'a': an array"},
      {"{\"a\":{\"b\":{}}}", "the field 'b' is unknown"},
      {"{\"__metadata__\":{\"a\":1}}", "a number where the format has none"},
      {"{\"__metadata__\":{\"a\":\"x\",\"a\":\"y\"}}", "__metadata__ key 'a' appears twice"},
      {one("\"dtype\":\"F32\""), "tensor 'a': dtype, shape and data_offsets are not all there"},
      {one(shape + "\"data_offsets\":[0,8],\"dtype\":\"F32\""), "tensor 'a': dtype appears twice"},
      {one("\"dtype\":\"F33\",\"shape\":[2],\"data_offsets\":[0,8]"),
       "tensor 'a': dtype 'F33' is not known; known: BOOL", std::string(8, '\0'),
       StatusCode::kUnsupported},
      {one(shape + "\"data_offsets\":[0,8,9]"), "more than two numbers"},
      {one(shape + "\"data_offsets\":[8]"), "has not two numbers"},
      {one(shape + "\"data_offsets\":[-1,7]"), "a negative number"},
      {one(shape + "\"data_offsets\":[0,8.0]"), "no integer"},
      {one(shape + "\"data_offsets\":[0,18446744073709551616]"), "no integer below 2^64"},
      {one(shape + "\"data_offsets\":[8,0]"), "need 8 bytes, but data_offsets are [8, 0]"},
      {one(shape + "\"data_offsets\":[0,4]"), "need 8 bytes, but data_offsets are [0, 4]"},
      {one(shape + "\"data_offsets\":[8,16]"), "up to data offset 16"},
      {one(shape + "\"data_offsets\":[18446744073709551608,18446744073709551615]"), "need 8 bytes"},
      {one("\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]"),
       "is too large"},
      {one("\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]"),
       "more than 8 dimensions"},
      {"{\"a\":{" + shape + "\"data_offsets\":[0,8]},\"a\":{" + shape + "\"data_offsets\":[0,8]}}",
       "'a' appears twice"},
      {"{\"a\":{" + shape + "\"data_offsets\":[0,8]},\"b\":{" + shape + "\"data_offsets\":[0,8]}}",
       "the tensor before it ends at 8"},
      {one(shape + "\"data_offsets\":[0,8]"), "end at data offset 8, but the file has 12 bytes",
       std::string(12, '\0')},
  };
  const TempFolder folder;
  for (const SafetensorsCase& c : cases) {
    const std::string path = folder.write(
        "hostile.safetensors", little_endian(uint64_t{c.header.size()}) + c.header + c.data);
    Status status;
    const Cost cost = cost_of([&] { status = SafetensorsFile::open(path).status(); });
    ASSERT_FALSE(status.ok()) << c.header.substr(0, 100);
    EXPECT_EQ(status.code(), c.code) << status.message();
    EXPECT_THAT(status.message(), HasSubstr(c.message));
    EXPECT_THAT(status.message(), HasSubstr("hostile.safetensors"));
    EXPECT_LT(cost.seconds, 0.1);
    EXPECT_LT(cost.peak_bytes, size_t{64} << 20);
  }
  for (const uint64_t length :
       {uint64_t{1} << 63, ~uint64_t{0}, uint64_t{100'000'001}, uint64_t{63}}) {
    const std::string path =
        folder.write("hostile.safetensors", u64(length) + "{}" + std::string(8, ' '));
    EXPECT_THAT(SafetensorsFile::open(path).status().message(), HasSubstr("header"));
  }
}

}  // namespace
}  // namespace tenon
