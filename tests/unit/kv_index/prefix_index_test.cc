#include "kv_cache/index/prefix_index.h"

#include <gtest/gtest.h>

#include <array>

namespace tenon {
namespace {

constexpr HashKey kKey{11, 22};
using Tokens = std::array<int32_t, 4>;
constexpr Tokens kFirst{1, 2, 3, 4};
constexpr Tokens kSecond{5, 6, 7, 8};

TEST(PrefixIndex, FindsWhatWasInsertedUntilItIsErased) {
  PrefixIndex index(8, 4, kKey);
  const BlockHash root = index.root({});
  const BlockHash first = index.extend(root, kFirst);
  const BlockHash second = index.extend(first, kSecond);
  EXPECT_EQ(index.find(first, root, kFirst), -1);
  EXPECT_TRUE(index.insert(3, first, root, kFirst));
  EXPECT_TRUE(index.insert(5, second, first, kSecond));
  EXPECT_EQ(index.find(first, root, kFirst), 3);
  EXPECT_EQ(index.find(second, first, kSecond), 5);
  EXPECT_TRUE(index.check_invariants().ok());
  index.erase(3);
  EXPECT_EQ(index.find(first, root, kFirst), -1);
  EXPECT_EQ(index.find(second, first, kSecond), 5);
  EXPECT_EQ(index.size(), 1);
  EXPECT_TRUE(index.check_invariants().ok());
}

// A hash alone is never believed: equal hashes with other tokens, or after another prefix, are a
// miss.
TEST(PrefixIndex, AHashThatCollidesIsAMiss) {
  PrefixIndex index(8, 4, kKey);
  const BlockHash root = index.root({});
  const BlockHash hash{42, 43};
  EXPECT_TRUE(index.insert(1, hash, root, kFirst));
  EXPECT_EQ(index.find(hash, root, kFirst), 1);
  EXPECT_EQ(index.find(hash, root, kSecond), -1);
  EXPECT_EQ(index.find(hash, BlockHash{9, 9}, kFirst), -1);
  EXPECT_FALSE(index.check_invariants().ok());  // such a hash cannot come from extend()
}

TEST(PrefixIndex, TheFirstOfTwoEqualBlocksStays) {
  PrefixIndex index(8, 4, kKey);
  const BlockHash root = index.root({});
  const BlockHash hash = index.extend(root, kFirst);
  EXPECT_TRUE(index.insert(1, hash, root, kFirst));
  EXPECT_FALSE(index.insert(2, hash, root, kFirst));
  EXPECT_FALSE(index.contains(2));
  EXPECT_EQ(index.find(hash, root, kFirst), 1);
  EXPECT_EQ(index.size(), 1);
}

TEST(PrefixIndex, ScopesAndKeysDoNotMeet) {
  const PrefixIndex index(8, 4, kKey);
  const BlockHash plain = index.root({});
  EXPECT_NE(plain, index.root({.cache_salt = "a"}));
  EXPECT_NE(index.root({.cache_salt = "a"}), index.root({.cache_salt = "b"}));
  EXPECT_NE(plain, index.root({.kv_group = 1}));
  EXPECT_NE(index.extend(plain, kFirst), index.extend(index.root({.cache_salt = "a"}), kFirst));
  EXPECT_NE(plain, PrefixIndex(8, 4, HashKey{11, 23}).root({}));
}

TEST(PrefixIndex, EraseWorksWithinOneBucket) {
  PrefixIndex index(3, 4, kKey);  // 4 buckets
  const BlockHash root = index.root({});
  std::array<BlockHash, 3> hashes;
  for (int32_t i = 0; i < 3; ++i) {
    hashes[static_cast<size_t>(i)] = {8, static_cast<uint64_t>(i)};  // same bucket
    EXPECT_TRUE(index.insert(i, hashes[static_cast<size_t>(i)], root, kFirst));
  }
  index.erase(1);
  EXPECT_EQ(index.find(hashes[0], root, kFirst), 0);
  EXPECT_EQ(index.find(hashes[1], root, kFirst), -1);
  EXPECT_EQ(index.find(hashes[2], root, kFirst), 2);
}

}  // namespace
}  // namespace tenon
