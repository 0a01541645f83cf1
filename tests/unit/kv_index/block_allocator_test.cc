#include "kv_cache/index/block_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

namespace tenon {
namespace {

using NullBlock = BlockAllocator::NullBlock;

TEST(BlockAllocator, HandsOutEveryBlockButTheNullBlock) {
  BlockAllocator blocks(4, NullBlock::kReserved);
  EXPECT_EQ(blocks.num_blocks(), 3);
  std::set<int32_t> ids;
  while (blocks.num_free() > 0) ids.insert(blocks.allocate());
  EXPECT_EQ(ids, (std::set<int32_t>{1, 2, 3}));
  EXPECT_EQ(blocks.num_used(), 3);
  EXPECT_TRUE(blocks.check_invariants().ok());
}

TEST(BlockAllocator, WithoutNullBlockZeroIsAnOrdinaryId) {
  BlockAllocator blocks(2, NullBlock::kNone);
  EXPECT_EQ(blocks.allocate(), 0);
  EXPECT_EQ(blocks.allocate(), 1);
}

TEST(BlockAllocator, AnEmptyPoolIsFine) {
  const BlockAllocator blocks(0, NullBlock::kNone);
  EXPECT_EQ(blocks.num_free(), 0);
  EXPECT_TRUE(blocks.check_invariants().ok());
}

// The tail of a sequence is worth less than its beginning, and a kept block more than one without
// content.
TEST(BlockAllocator, ReusesUnkeptFirstThenTheTailOfTheOldest) {
  BlockAllocator blocks(6, NullBlock::kReserved);
  std::vector<int32_t> sequence;
  for (int i = 0; i < 4; ++i) sequence.push_back(blocks.allocate());
  for (size_t i = 0; i < 3; ++i) blocks.set_keep(sequence[i], true);
  blocks.release(sequence);  // three kept, one not; block 5 was never used
  std::vector<int32_t> order;
  while (blocks.num_free() > 0) order.push_back(blocks.allocate());
  EXPECT_EQ(order, (std::vector<int32_t>{sequence[3], 5, sequence[2], sequence[1], sequence[0]}));
}

TEST(BlockAllocator, AcquireTakesAFreeBlockOffTheList) {
  BlockAllocator blocks(3, NullBlock::kReserved);
  const int32_t block = blocks.allocate();
  blocks.release(std::span(&block, 1));
  blocks.acquire(block);
  EXPECT_EQ(blocks.num_free(), 1);
  EXPECT_NE(blocks.allocate(), block);
  EXPECT_TRUE(blocks.check_invariants().ok());
}

TEST(BlockAllocator, AFencedBlockIsFreeOnlyAfterItsStep) {
  BlockAllocator blocks(3, NullBlock::kReserved);
  const int32_t early = blocks.allocate();
  const int32_t late = blocks.allocate();
  blocks.release(std::span(&late, 1), 8);
  blocks.release(std::span(&early, 1), 7);
  EXPECT_EQ(blocks.num_free(), 0);
  EXPECT_EQ(blocks.num_fenced(), 2);
  blocks.complete(6);
  EXPECT_EQ(blocks.num_free(), 0);
  blocks.complete(7);
  EXPECT_EQ(blocks.num_free(), 1);
  EXPECT_EQ(blocks.ref_count(early), 0);
  EXPECT_EQ(blocks.ref_count(late), 1);
  blocks.complete(8);
  EXPECT_EQ(blocks.num_free(), 2);
  blocks.acquire(early);
  blocks.release(std::span(&early, 1), 8);  // that step is over
  EXPECT_EQ(blocks.num_free(), 2);
  EXPECT_TRUE(blocks.check_invariants().ok());
}

TEST(BlockAllocatorDeathTest, ReleasingTwiceIsABug) {
  BlockAllocator blocks(3, NullBlock::kReserved);
  const int32_t block = blocks.allocate();
  blocks.release(std::span(&block, 1));
  EXPECT_DEATH(blocks.release(std::span(&block, 1)), "refs");
}

TEST(BlockAllocatorDeathTest, TheNullBlockIsNotForUse) {
  BlockAllocator blocks(3, NullBlock::kReserved);
  EXPECT_DEATH(blocks.acquire(kNullBlock), "first_id_");
  EXPECT_DEATH(blocks.release(std::span(&kNullBlock, 1)), "first_id_");
}

TEST(BlockAllocator, RandomUseAgreesWithAModel) {
  std::mt19937 random(7);
  BlockAllocator blocks(12, NullBlock::kReserved);
  std::vector<int32_t> held;  // one entry a reference
  for (StepId step = 1; step < 5000; ++step) {
    const uint32_t action = random() % 4;
    if (action == 0 && blocks.num_free() > 0) {
      const int32_t block = blocks.allocate();
      EXPECT_EQ(std::count(held.begin(), held.end(), block), 0);
      held.push_back(block);
    } else if (action == 1 && !held.empty()) {
      const int32_t block = held[random() % held.size()];
      blocks.acquire(block);
      held.push_back(block);
    } else if (action == 2 && !held.empty()) {
      const size_t at = random() % held.size();
      blocks.set_keep(held[at], random() % 2 == 0);
      blocks.release(std::span(&held[at], 1));
      held.erase(held.begin() + static_cast<int64_t>(at));
    }
    blocks.complete(step);
    ASSERT_TRUE(blocks.check_invariants().ok()) << blocks.check_invariants().message();
    ASSERT_EQ(std::set<int32_t>(held.begin(), held.end()).size(),
              static_cast<size_t>(blocks.num_used()));
  }
}

}  // namespace
}  // namespace tenon
