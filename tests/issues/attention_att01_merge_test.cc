// Case ATT-01 (b), (c): closed forms of attention over split keys and of the merge of partial
// states.
#include <cmath>
#include <limits>

#include "attention/merge.h"
#include "tests/issues/attention_layer.h"

namespace tenon {
namespace {

constexpr float kEmpty = -std::numeric_limits<float>::infinity();

using Att01 = EveryBackend;

TEST_P(Att01, MeanOfPositionsWhenAllScoresAreEqual) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    LayerOptions options;
    options.block_size = 4;
    options.dtype = dtype;
    const auto rows = parse_batch_spec("q1s9_q1s11_q1s12");
    const int64_t blocks = blocks_needed(*rows, 4);
    const SyntheticBatch batch = make_batch(*rows, 4, blocks, 3);
    TestLayer layer(GetParam(), options, blocks);
    for (size_t row = 0; row < 3; ++row) {
      const std::vector<int64_t> slots = slots_of(batch, row, 4);
      std::vector<float> k(slots.size() * 64, 0.0F);
      std::vector<float> v;
      for (size_t key = 0; key < slots.size(); ++key) {
        v.insert(v.end(), 64, static_cast<float>(key));
      }
      layer.write(k, v, slots);
    }
    const auto output = layer.forward(batch.view, random_floats(3 * 64, 1));
    const double tolerance = dtype == DType::kF32 ? 1e-6 : 1e-2;
    const float expected[] = {4.0F, 5.0F, 5.5F};
    for (size_t row = 0; row < 3; ++row) {
      for (size_t i = 0; i < 64; ++i) {
        EXPECT_NEAR(output.out[row * 64 + i], expected[row], tolerance);
      }
      EXPECT_NEAR(output.lse[row], std::log(batch.seq_lens[row]), 1e-6);
    }
  }
}

// The same with the first 64 keys shared (the least that the CPU's levels cover), cascade on and
// off: equal values, and the plan says which it was.
TEST_P(Att01, TheSameWithASharedPrefix) {
  for (const CascadeMode mode : {CascadeMode::kOff, CascadeMode::kOn}) {
    LayerOptions options;
    options.block_size = 4;
    options.cascade = mode;
    const auto rows = parse_batch_spec("2q1s70p64_q1s67p64");
    auto shared = *rows;
    for (BatchSpecRow& row : shared) row.term = 0;
    const int64_t blocks = blocks_needed(shared, 4);
    SyntheticBatch batch = make_batch(shared, 4, blocks, 3);
    share_prefixes(batch, 4);
    TestLayer layer(GetParam(), options, blocks);
    for (size_t row = 0; row < 3; ++row) {
      const std::vector<int64_t> slots = slots_of(batch, row, 4);
      std::vector<float> v;
      for (size_t key = 0; key < slots.size(); ++key) {
        v.insert(v.end(), 64, static_cast<float>(key));
      }
      layer.write(std::vector<float>(slots.size() * 64, 0.0F), v, slots);
    }
    const auto metadata = layer.backend().build_metadata(batch.view);
    ASSERT_TRUE(metadata.ok());
    EXPECT_EQ((*metadata)->cascade().groups, mode == CascadeMode::kOn ? 1 : 0);
    const auto output = layer.forward(batch.view, random_floats(3 * 64, 1));
    for (size_t row = 0; row < 3; ++row) {
      EXPECT_NEAR(output.out[row * 64], (batch.seq_lens[row] - 1) / 2.0, 1e-4);
      EXPECT_NEAR(output.lse[row], std::log(batch.seq_lens[row]), 1e-6);
    }
  }
}

TENON_FOR_EVERY_BACKEND(Att01);

TEST(Att01Merge, NaturalLogWeights) {
  std::vector<float> out = {1.0F};
  float lse = 0.0F;
  merge_states(out, lse, std::vector<float>{3.0F}, std::log(3.0F));
  EXPECT_NEAR(out[0], 2.5F, 1e-6);
  EXPECT_NEAR(lse, 1.3862944F, 1e-6);
}

TEST(Att01Merge, LargeScoresDoNotOverflow) {
  std::vector<float> out = {1.0F};
  float lse = 500.0F;
  merge_states(out, lse, std::vector<float>{3.0F}, 500.0F);
  EXPECT_EQ(out[0], 2.0F);
  EXPECT_NEAR(lse, 500.0 + std::log(2.0), 1e-4);
}

// Case ATT-08 (a).
TEST(Att08Merge, EmptySidesChangeNothing) {
  std::vector<float> out = {0.0F};
  float lse = kEmpty;
  merge_states(out, lse, std::vector<float>{0.0F}, kEmpty);
  EXPECT_EQ(out[0], 0.0F);
  EXPECT_EQ(lse, kEmpty);

  out = {5.0F};
  lse = 1.0F;
  merge_states(out, lse, std::vector<float>{std::nanf("")}, kEmpty);
  EXPECT_EQ(out[0], 5.0F);
  EXPECT_EQ(lse, 1.0F);

  out = {std::nanf("")};
  lse = kEmpty;
  merge_states(out, lse, std::vector<float>{5.0F}, 1.0F);
  EXPECT_EQ(out[0], 5.0F);
  EXPECT_EQ(lse, 1.0F);

  out = {std::nanf("")};
  lse = kEmpty;
  merge_states(out, lse, std::vector<float>{std::nanf("")}, kEmpty);
  EXPECT_EQ(out[0], 0.0F);
  EXPECT_EQ(lse, kEmpty);
}

}  // namespace
}  // namespace tenon
