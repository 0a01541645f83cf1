// ATT-02: a prompt that is a multiple of the block size and fully cached (vllm-project/vllm PR
// #17999 and others). There must be something left to compute, the estimate must be what is taken,
// and what was evicted must not answer.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/unit/scheduler/simulated_engine.h"

namespace tenon::testing {
namespace {

std::vector<int32_t> iota_tokens(int32_t count, int32_t first = 1) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

struct Outcome {
  std::vector<int32_t> output;
  int32_t num_cached = 0;
};

// Runs one request to its end; the plan's counts must be those of the blocks really taken.
Outcome run(SimulatedEngine& engine,
            RequestId id,
            std::vector<int32_t> prompt,
            int32_t num_output) {
  const BlockManager& blocks = engine.scheduler.blocks();
  const auto num_prompt = static_cast<int32_t>(prompt.size());
  const int32_t free_before = blocks.num_free();
  engine.add({.id = id, .prompt = std::move(prompt), .max_total_tokens = num_prompt + num_output});
  EXPECT_TRUE(engine.issue());
  const Admission admission = engine.newest_plan().admissions.at(0);
  EXPECT_EQ(admission.num_hits + admission.num_new_blocks, blocks.blocks_for(num_prompt));
  EXPECT_EQ(free_before - blocks.num_free(),
            blocks.blocks_for(num_prompt));  // nobody else holds the hits
  EXPECT_EQ(engine.scheduler.find(id)->block_table.size(),
            static_cast<size_t>(blocks.blocks_for(num_prompt)));
  EXPECT_GE(engine.newest_plan().rows.at(0).num_tokens, 1);
  engine.commit();
  engine.run_to_end();
  EXPECT_EQ(blocks.num_free(), blocks.num_blocks());
  return {engine.finished[id], admission.num_cached};
}

TEST(Att02, ColdWarmAndEvictedRunsAgree) {
  constexpr int32_t kBlock = 16;
  for (const int32_t length : {1, kBlock - 1, kBlock, kBlock + 1, 2 * kBlock - 1, 2 * kBlock,
                               2 * kBlock + 1, 4 * kBlock}) {
    SCOPED_TRACE(length);
    SchedulerConfig config;
    config.num_blocks = 12;
    config.block_size = kBlock;
    SimulatedEngine engine(config, {});
    const Outcome cold = run(engine, 1, iota_tokens(length), 8);
    const Outcome warm = run(engine, 2, iota_tokens(length), 8);
    run(engine, 3, iota_tokens(11 * kBlock, 5000), 0);  // filler: all blocks of the pool
    const Outcome again = run(engine, 4, iota_tokens(length), 8);
    EXPECT_EQ(cold.output.size(), 8U);
    EXPECT_EQ(cold.output, warm.output);
    EXPECT_EQ(cold.output, again.output);
    EXPECT_EQ(cold.num_cached, 0);
    EXPECT_EQ(warm.num_cached,
              (length - 1) / kBlock * kBlock);  // at most length - 1, in whole blocks
    EXPECT_EQ(again.num_cached, 0);
  }
}

TEST(Att02, FreeAndCachedBlocksAreThePool) {
  SchedulerConfig config;
  config.num_blocks = 12;
  SimulatedEngine engine(config, {});
  run(engine, 1, iota_tokens(64), 8);
  const BlockManager& blocks = engine.scheduler.blocks();
  int32_t num_plain = 0;
  for (int32_t block = 1; block <= blocks.num_blocks(); ++block) {
    if (!blocks.allocator().keep(block)) ++num_plain;
  }
  EXPECT_EQ(blocks.num_cached(), 4);  // 71 tokens were computed
  EXPECT_EQ(num_plain + blocks.num_cached(), blocks.num_blocks());
}

TEST(Att02, AReusedBlockNoLongerAnswersForItsOldContent) {
  BlockManager manager({.num_blocks = 3, .block_size = 4});
  const auto publish = [&](const std::vector<int32_t>& tokens, std::vector<BlockHash>& chain) {
    std::vector<int32_t> table;
    manager.begin_chain("", chain);
    manager.extend_chain(tokens, chain);
    manager.allocate(2, table);
    for (int32_t i = 0; i < 2; ++i)
      manager.publish(table[static_cast<size_t>(i)], i, tokens, chain);
    manager.release(table);
  };
  const auto find = [&](const std::vector<int32_t>& tokens, const std::vector<BlockHash>& chain) {
    std::vector<int32_t> hits;
    return manager.find_prefix(tokens, 8, chain, hits);
  };
  std::vector<BlockHash> chain_a, chain_b;
  publish(iota_tokens(8), chain_a);
  EXPECT_EQ(find(iota_tokens(8), chain_a), 2);
  publish(iota_tokens(8, 100), chain_b);  // takes the same two blocks
  EXPECT_EQ(find(iota_tokens(8), chain_a), 0);
  EXPECT_EQ(find(iota_tokens(8, 100), chain_b), 2);
}

}  // namespace
}  // namespace tenon::testing
