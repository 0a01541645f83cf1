// Case ATT-07: ratios of query heads to KV heads that are no power of two.
#include <gmock/gmock.h>

#include "tests/issues/attention_layer.h"

namespace tenon {
namespace {

using Att07 = EveryBackend;

TEST_P(Att07, QueryHeadsReadTheirOwnKvHead) {
  const int32_t ratios[][2] = {{14, 2}, {12, 2}, {10, 2}, {9, 3}, {24, 4},
                               {28, 4}, {64, 4}, {16, 1}, {8, 8}};
  for (const auto& [q_heads, kv_heads] : ratios) {
    for (const int32_t dim : {64, 128}) {
      // Decode, prefill, and both in one batch.
      for (const char* spec : {"q1s33", "q33", "2q1s33_q4s33_q33"}) {
        LayerOptions options;
        options.num_q_heads = q_heads;
        options.num_kv_heads = kv_heads;
        options.head_dim = dim;
        const auto rows = parse_batch_spec(spec);
        const int64_t blocks = blocks_needed(*rows, 16);
        const SyntheticBatch batch = make_batch(*rows, 16, blocks, 2);
        TestLayer layer(GetParam(), options, blocks);
        for (size_t row = 0; row < batch.seq_lens.size(); ++row) {
          std::vector<float> v;
          for (int32_t key = 0; key < 33; ++key) {
            for (int32_t head = 0; head < kv_heads; ++head) {
              v.insert(v.end(), static_cast<size_t>(dim), static_cast<float>(head + 1));
            }
          }
          layer.write(std::vector<float>(v.size(), 0.0F), v, slots_of(batch, row, 16));
        }
        const auto tokens = static_cast<size_t>(batch.view.num_tokens());
        const auto output = layer.forward(batch.view, random_floats(tokens * layer.q_width(), 4));
        int wrong = 0;
        for (size_t i = 0; i < output.out.size(); ++i) {
          const auto head = static_cast<int32_t>(i % layer.q_width() / static_cast<size_t>(dim));
          // Equal up to one rounding: sums of up to 33 equal values over their count.
          const auto expected = static_cast<float>(head * kv_heads / q_heads + 1);
          if (std::abs(output.out[i] - expected) > expected * 1.2e-7F) ++wrong;
        }
        EXPECT_EQ(wrong, 0) << q_heads << "/" << kv_heads << " dim " << dim << " " << spec;
      }
    }
  }
}

TEST_P(Att07, HeadsThatDoNotDivideAreRefusedWithBothNumbers) {
  BackendContext context;
  context.requirements.num_q_heads = 15;
  context.requirements.num_kv_heads = 2;
  context.requirements.head_dim_qk = context.requirements.head_dim_v = 64;
  const Status status = get_attention_backend(test_registry(), GetParam(), context).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(),
              testing::HasSubstr("15 query heads are not divisible by 2 KV heads"));
}

TENON_FOR_EVERY_BACKEND(Att07);

}  // namespace
}  // namespace tenon
