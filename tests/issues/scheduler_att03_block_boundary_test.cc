// ATT-03: a block appended one token too early or too late, last block of length 0
// (GeeeekExplorer/nano-vllm issue #240 and PR #71, Wenyueh/MinivLLM PR #85 and #87).
#include <gtest/gtest.h>

#include <numeric>

#include "tests/unit/scheduler/simulated_engine.h"

namespace tenon::testing {
namespace {

TEST(Att03, CanAppendExactlyWhileTheLastBlockHasRoom) {
  for (int32_t length = 1; length <= 9; ++length) {
    BlockManager manager({.num_blocks = 1 + (length + 3) / 4, .block_size = 4});
    std::vector<int32_t> table;
    manager.allocate(manager.blocks_for(length), table);
    ASSERT_EQ(manager.num_free(), 0);
    EXPECT_EQ(manager.can_append(length), length != 4 && length != 8) << length;
  }
}

TEST(Att03, LengthsGiveTheRightBlocksAndTheLastIsNeverEmpty) {
  const BlockManager manager({.num_blocks = 8, .block_size = 4});
  const int32_t lengths[] = {0, 1, 3, 4, 5, 7, 8, 9};
  const int32_t blocks[] = {0, 1, 1, 1, 2, 2, 2, 3};
  const int32_t last_lengths[] = {0, 1, 3, 4, 1, 3, 4, 1};
  for (size_t i = 0; i < std::size(lengths); ++i) {
    EXPECT_EQ(manager.blocks_for(lengths[i]), blocks[i]) << lengths[i];
    if (lengths[i] > 0) {
      EXPECT_EQ(lengths[i] - (blocks[i] - 1) * manager.block_size(), last_lengths[i]);
    }
  }
}

TEST(Att03, ForkedAndFreedTwiceEveryBlockIsFreeOnce) {
  BlockManager manager({.num_blocks = 8, .block_size = 4});
  std::vector<int32_t> table;
  manager.allocate(3, table);
  manager.acquire(table);  // the fork
  manager.release(table);
  for (const int32_t block : table) EXPECT_EQ(manager.ref_count(block), 1);
  EXPECT_EQ(manager.num_free(), 4);
  manager.release(table);
  for (const int32_t block : table) EXPECT_EQ(manager.ref_count(block), 0);
  EXPECT_EQ(manager.num_free(), 7);
  EXPECT_TRUE(manager.check_invariants().ok());
}

// From every start length 3 * B tokens are decoded; the simulated cells say whether one was written
// outside, and the table grows exactly when the token to compute is the first of a block.
TEST(Att03, DecodeTakesABlockWhenItsFirstTokenIsComputed) {
  constexpr int32_t kBlock = 4;
  for (int32_t start = 1; start <= 2 * kBlock + 1; ++start) {
    SCOPED_TRACE(start);
    SchedulerConfig config;
    config.block_size = kBlock;
    config.num_blocks =
        1 + (start + 3 * kBlock - 1 + kBlock - 1) / kBlock;  // exactly what is needed
    SimulatedEngine engine(config, {});
    std::vector<int32_t> prompt(static_cast<size_t>(start));
    std::iota(prompt.begin(), prompt.end(), 1);
    engine.add({.id = 1, .prompt = prompt, .max_total_tokens = start + 3 * kBlock});
    for (int32_t computed = start; engine.scheduler.has_requests(); ++computed) {
      ASSERT_TRUE(engine.issue());
      ASSERT_EQ(engine.scheduler.find(1)->block_table.size(),
                static_cast<size_t>((computed + kBlock - 1) / kBlock));
      engine.commit();
    }
    EXPECT_EQ(engine.finished[1].size(), 3U * kBlock);
    EXPECT_EQ(engine.scheduler.stats().preemptions_recompute, 0U);
  }
}

}  // namespace
}  // namespace tenon::testing
