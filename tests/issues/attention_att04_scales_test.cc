// Case ATT-04: scales of fp8 cells, on the write and on the read path; saturation.
#include <cmath>

#include "tests/issues/attention_layer.h"

namespace tenon {
namespace {

using Att04 = EveryBackend;

// One head, q = e0; K {0, e0}, V {0, 3 e0}. Decode, extend and prefix level all have to apply both
// scales: 3 e / (1 + e).
TEST_P(Att04, BothScalesOnBothPaths) {
  for (const bool by_head : {false, true}) {
    const float k_scale[] = {0.5F};
    const float v_scale[] = {0.25F};
    LayerOptions options;
    options.dtype = DType::kF8E4M3;
    if (by_head) {
      options.kv_scales.k_heads = k_scale;
      options.kv_scales.v_heads = v_scale;
    } else {
      options.kv_scales.k = k_scale[0];
      options.kv_scales.v = v_scale[0];
    }
    TestLayer layer(GetParam(), options, 4);
    std::vector<float> k(2 * 64, 0.0F), v(2 * 64, 0.0F), q(2 * 64, 0.0F);
    k[64] = 1.0F;
    v[64] = 3.0F;
    q[0] = q[64] = 1.0F;
    const auto rows = parse_batch_spec("q1s2_q1s2");
    SyntheticBatch batch = make_batch(*rows, 16, 4, 0);
    for (size_t row = 0; row < 2; ++row) layer.write(k, v, slots_of(batch, row, 16));
    const auto output = layer.forward(batch.view, q);
    const double expected = 3 * std::exp(1.0) / (1 + std::exp(1.0));
    EXPECT_NEAR(output.out[0], expected, 1e-5);
    EXPECT_NEAR(output.out[64], expected, 1e-5);
    EXPECT_NEAR(output.lse[0], std::log(1 + std::exp(1.0)), 1e-5);
  }
}

TEST_P(Att04, LargeValuesSaturate) {
  LayerOptions options;
  options.dtype = DType::kF8E4M3;
  TestLayer layer(GetParam(), options, 4);
  const auto rows = parse_batch_spec("q1s2");
  const SyntheticBatch batch = make_batch(*rows, 16, 4, 0);
  layer.write(std::vector<float>(2 * 64, 0.0F), std::vector<float>(2 * 64, 500.0F),
              slots_of(batch, 0, 16));
  for (const float value : layer.forward(batch.view, std::vector<float>(64, 1.0F)).out) {
    EXPECT_EQ(value, 448.0F);
  }
}

TENON_FOR_EVERY_BACKEND(Att04);

}  // namespace
}  // namespace tenon
