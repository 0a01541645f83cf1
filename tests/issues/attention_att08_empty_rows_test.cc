// Case ATT-08 (b) to (e): rows without keys or queries, padding slots, garbage in unused cells. (a)
// is with the merge tests of ATT-01.
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/issues/attention_layer.h"

namespace tenon {
namespace {

using Att08 = EveryBackend;

// A row of `query_len` queries and its keys, written into `layer`.
std::vector<float> keys(size_t count, uint64_t seed) {
  return random_floats(count * 64, seed);
}

TEST_P(Att08, RowsWithoutKeysOrQueriesLeaveTheOthersAlone) {
  LayerOptions options;
  options.block_size = 8;
  TestLayer layer(GetParam(), options, 8);
  // Query lengths 0, 2, 1 and key lengths 4, 0, 7, in this order.
  const std::vector<int32_t> query_start_loc = {0, 0, 2, 3};
  const std::vector<int32_t> seq_lens = {4, 0, 7};
  const std::vector<int32_t> page_indptr = {0, 1, 1, 2};
  const std::vector<int32_t> page_indices = {3, 5};
  const std::vector<int64_t> slots = {-1, -1, 5 * 8 + 6};
  BatchView view;
  view.query_start_loc = query_start_loc;
  view.seq_lens = seq_lens;
  view.page_indptr = page_indptr;
  view.page_indices = page_indices;
  view.slot_mapping = slots;
  view.num_decode_rows = 3;
  view.num_decode_tokens = 3;
  view.max_query_len = 2;
  view.max_seq_len = 7;
  ASSERT_TRUE(validate_batch_view(view, 8, 8).ok());
  layer.write(keys(7, 1), keys(7, 2), {40, 41, 42, 43, 44, 45, 46});
  const std::vector<float> q = random_floats(3 * 64, 3);
  const auto together = layer.forward(view, q);
  for (size_t i = 0; i < 2 * 64; ++i) EXPECT_EQ(together.out[i], 0.0F);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(together.lse[i], -std::numeric_limits<float>::infinity());
  }
  SyntheticBatch alone = make_batch({{1, 7}}, 8, 8, 0);
  alone.page_indices[0] = 5;
  const auto single = layer.forward(alone.view, {q.begin() + 128, q.end()});
  EXPECT_EQ(std::memcmp(single.out.data(), together.out.data() + 128, 64 * sizeof(float)), 0);
  EXPECT_EQ(single.lse[0], together.lse[2]);
}

TEST_P(Att08, PaddingSlotsWriteNothing) {
  LayerOptions options;
  options.block_size = 4;
  TestLayer layer(GetParam(), options, 2);
  const std::vector<int64_t> all = {0, 1, 2, 3, 4, 5, 6, 7};
  layer.write(std::vector<float>(8 * 64, 7.0F), std::vector<float>(8 * 64, 7.0F), all);
  std::vector<float> fresh(64, 1.0F);
  fresh.insert(fresh.end(), 128, 9.0F);
  layer.write(fresh, fresh, {1, -1, -1});
  const auto* base = static_cast<const float*>(layer.kv().base);
  for (int64_t slot = 0; slot < 8; ++slot) {
    const int64_t cell = layer.kv().k_offset(slot / 4, 0, slot % 4);
    for (int64_t i = 0; i < 64; ++i) {
      EXPECT_EQ(base[cell + i], slot == 1 ? 1.0F : 7.0F);
      EXPECT_EQ(base[cell + layer.kv().v_offset + i], slot == 1 ? 1.0F : 7.0F);
    }
  }
}

TEST_P(Att08, GarbageInUnusedCellsHasNoEffect) {
  LayerOptions options;
  options.block_size = 8;
  // Decode, and a prefill of the same five keys.
  for (const BatchSpecRow& row : {BatchSpecRow{1, 5}, BatchSpecRow{5, 5}}) {
    std::vector<TestLayer::Output> outputs;
    for (const bool garbage : {false, true}) {
      TestLayer layer(GetParam(), options, 2);
      const SyntheticBatch batch = make_batch({row}, 8, 2, 0);
      if (garbage) {
        std::vector<float> bad(16 * 64, std::nanf(""));
        for (size_t i = 0; i < bad.size(); i += 2) bad[i] = std::numeric_limits<float>::infinity();
        std::vector<int64_t> all(16);
        for (size_t i = 0; i < 16; ++i) all[i] = static_cast<int64_t>(i);
        layer.write(bad, bad, all);
      }
      layer.write(keys(5, 1), keys(5, 2), slots_of(batch, 0, 8));
      outputs.push_back(
          layer.forward(batch.view, random_floats(static_cast<size_t>(row.query_len) * 64, 3)));
    }
    for (const float value : outputs[1].out) EXPECT_TRUE(std::isfinite(value));
    EXPECT_EQ(outputs[0].out, outputs[1].out);
    EXPECT_EQ(outputs[0].lse, outputs[1].lse);
  }
}

// Later tokens of the same prompt are not garbage, but an earlier token must not see them either.
TEST_P(Att08, InfinityInALaterTokenDoesNotReachEarlierOnes) {
  LayerOptions options;
  TestLayer layer(GetParam(), options, 4);
  const SyntheticBatch batch = make_batch({{40, 40}}, 16, 4, 0);
  std::vector<float> v = keys(40, 2);
  std::vector<float> k = keys(40, 1);
  std::fill(v.begin() + 37 * 64, v.end(), std::numeric_limits<float>::infinity());
  std::fill(k.begin() + 37 * 64, k.end(), std::nanf(""));
  layer.write(k, v, slots_of(batch, 0, 16));
  const auto output = layer.forward(batch.view, random_floats(40 * 64, 3));
  for (size_t i = 0; i < 37 * 64; ++i) ASSERT_TRUE(std::isfinite(output.out[i])) << i / 64;
  for (size_t i = 37 * 64; i < 40 * 64; ++i) ASSERT_FALSE(std::isfinite(output.out[i])) << i / 64;
}

TEST_P(Att08, EmptyBatchReturnsAtOnce) {
  TestLayer layer(GetParam(), LayerOptions(), 2);
  EXPECT_TRUE(layer.forward(BatchView(), {}).out.empty());
  const SyntheticBatch batch = make_batch({{0, 0}, {0, 0}}, 16, 2, 0);
  EXPECT_TRUE(layer.forward(batch.view, {}).out.empty());
}

TENON_FOR_EVERY_BACKEND(Att08);

}  // namespace
}  // namespace tenon
