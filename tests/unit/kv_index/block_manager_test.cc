#include "kv_cache/index/block_manager.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace tenon {
namespace {

std::vector<int32_t> iota_tokens(int32_t count, int32_t first = 1) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// A sequence whose KV was computed and published.
struct Sequence {
  Sequence(BlockManager& manager, std::vector<int32_t> ids, std::string_view salt = "")
      : tokens(std::move(ids)) {
    manager.begin_chain(salt, chain);
    manager.extend_chain(tokens, chain);
    manager.allocate(manager.blocks_for(static_cast<int64_t>(tokens.size())), table);
    for (size_t i = 0; i < tokens.size() / static_cast<size_t>(manager.block_size()); ++i) {
      manager.publish(table[i], static_cast<int32_t>(i), tokens, chain);
    }
  }
  std::vector<int32_t> find(const BlockManager& manager, int64_t max_tokens) const {
    std::vector<int32_t> hits;
    manager.find_prefix(tokens, max_tokens, chain, hits);
    return hits;
  }
  std::vector<int32_t> tokens, table;
  std::vector<BlockHash> chain;
};

TEST(BlockManager, FindsWholeBlocksOnlyAndNoMoreThanAskedFor) {
  BlockManager manager({.num_blocks = 8, .block_size = 4});
  const Sequence sequence(manager, iota_tokens(10));
  EXPECT_EQ(sequence.find(manager, 10), (std::vector{sequence.table[0], sequence.table[1]}));
  EXPECT_EQ(sequence.find(manager, 8).size(), 2U);
  EXPECT_EQ(sequence.find(manager, 7).size(), 1U);
  EXPECT_EQ(sequence.find(manager, 3).size(), 0U);
  EXPECT_EQ(manager.num_cached(), 2);
}

TEST(BlockManager, ContentSurvivesReleaseAndIsFoundAgain) {
  BlockManager manager({.num_blocks = 8, .block_size = 4});
  const Sequence sequence(manager, iota_tokens(8));
  manager.release(sequence.table);
  EXPECT_EQ(manager.num_used(), 0);
  const std::vector<int32_t> hits = sequence.find(manager, 8);
  ASSERT_EQ(hits, sequence.table);
  manager.acquire(hits);
  EXPECT_EQ(manager.num_used(), 2);
  EXPECT_TRUE(manager.check_invariants().ok());
}

TEST(BlockManager, EvictionTakesTheTailAndForgetsIt) {
  BlockManager manager({.num_blocks = 4, .block_size = 4});  // three to use
  const Sequence sequence(manager, iota_tokens(12));
  manager.release(sequence.table);
  std::vector<int32_t> other;
  manager.allocate(1, other);
  EXPECT_EQ(other[0], sequence.table[2]);
  EXPECT_EQ(sequence.find(manager, 12).size(), 2U);
  manager.allocate(2, other);
  EXPECT_EQ(sequence.find(manager, 12).size(), 0U);
  EXPECT_EQ(manager.num_cached(), 0);
  EXPECT_TRUE(manager.check_invariants().ok());
}

TEST(BlockManager, AHoleInThePrefixEndsTheHit) {
  BlockManager manager({.num_blocks = 6, .block_size = 4});
  const Sequence a(manager, iota_tokens(12));
  auto tokens = a.tokens;
  tokens[1] = 99;  // other first block, then equal ones
  std::vector<BlockHash> chain;
  std::vector<int32_t> hits;
  manager.begin_chain("", chain);
  manager.extend_chain(tokens, chain);
  EXPECT_EQ(manager.find_prefix(tokens, 12, chain, hits), 0);
}

TEST(BlockManager, SaltsKeepSequencesApart) {
  BlockManager manager({.num_blocks = 8, .block_size = 4});
  const Sequence a(manager, iota_tokens(8), "tenant a");
  const Sequence b(manager, iota_tokens(8), "tenant b");
  EXPECT_EQ(a.find(manager, 8), a.table);
  EXPECT_EQ(b.find(manager, 8), b.table);
}

TEST(BlockManager, WithoutPrefixCachingNothingIsFound) {
  BlockManager manager({.num_blocks = 8, .block_size = 4, .prefix_caching = false});
  const Sequence sequence(manager, iota_tokens(8));
  EXPECT_TRUE(sequence.chain.empty());
  EXPECT_TRUE(sequence.find(manager, 8).empty());
  manager.release(sequence.table);
  EXPECT_EQ(manager.num_free(), 7);
  EXPECT_TRUE(manager.check_invariants().ok());
}

}  // namespace
}  // namespace tenon
