#include "base/hash.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tenon {
namespace {

std::string hex(const Hash128& hash) {
  std::string out;
  for (const uint64_t word : {hash.lo, hash.hi}) {
    for (int i = 0; i < 8; ++i) out += fmt::format("{:02X}", word >> (8 * i) & 0xff);
  }
  return out;
}

// Key 00 01 .. 0f, input 00 01 .. n-1; values from OpenSSL's SIPHASH with size 16.
TEST(SipHash, EqualsPublishedVectors) {
  const HashKey key{0x0706050403020100, 0x0f0e0d0c0b0a0908};
  const std::pair<size_t, const char*> vectors[] = {
      {0, "A3817F04BA25A8E66DF67214C7550293"},  {1, "DA87C1D86B99AF44347659119B22FC45"},
      {7, "A1F1EBBED8DBC153C0B84AA61FF08239"},  {8, "3B62A9BA6258F5610F83E264F31497B4"},
      {9, "264499060AD9BAABC47F8B02BB6D71ED"},  {15, "5493E99933B0A8117E08EC0F97CFC3D9"},
      {16, "6EE2A4CA67B054BBFD3315BF85230577"}, {63, "5150D1772F50834A503E069A973FBD7C"}};
  for (const auto& [size, expected] : vectors) {
    std::vector<std::byte> input;
    for (size_t i = 0; i < size; ++i) input.push_back(static_cast<std::byte>(i));
    SipHasher whole(key);
    whole.update(input);
    EXPECT_EQ(hex(whole.finish()), expected) << size;
    for (size_t cut = 0; cut <= size; ++cut) {  // fed in two pieces
      SipHasher pieces(key);
      pieces.update(std::span(input).first(cut));
      pieces.update(std::span(input).subspan(cut));
      EXPECT_EQ(hex(pieces.finish()), expected) << size << " cut at " << cut;
    }
  }
}

TEST(FieldHasher, FieldsDoNotRunIntoEachOther) {
  const HashKey key{1, 2};
  const auto pair = [&](std::string_view a, std::string_view b) {
    return FieldHasher(key).add(1, a).add(2, b).finish();
  };
  EXPECT_EQ(pair("ab", "c"), pair("ab", "c"));
  EXPECT_NE(pair("ab", "c"), pair("a", "bc"));
  EXPECT_NE(pair("ab", ""), pair("", "ab"));
  EXPECT_NE(FieldHasher(key).add(1, std::string_view("x")).finish(),
            FieldHasher(key).add(2, std::string_view("x")).finish());
  EXPECT_NE(FieldHasher(key).add(1, uint64_t{0}).finish(), FieldHasher(key).finish());
}

TEST(HashKey, DiffersEachTime) {
  const HashKey a = random_hash_key();
  const HashKey b = random_hash_key();
  EXPECT_TRUE(a.k0 != b.k0 && a.k1 != b.k1);
}

}  // namespace
}  // namespace tenon
