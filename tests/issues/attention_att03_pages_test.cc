// Case ATT-03, paged metadata: pages and last-page lengths at block boundaries, and decoding across
// them.
#include <gmock/gmock.h>

#include <cstring>

#include "tests/issues/attention_layer.h"

namespace tenon {
namespace {

TEST(Att03, PagesAndLastPageLengths) {
  const int32_t lengths[] = {0, 1, 3, 4, 5, 7, 8, 9};
  const int32_t pages[] = {0, 1, 1, 1, 2, 2, 2, 3};
  const int32_t last[] = {0, 1, 3, 4, 1, 3, 4, 1};
  std::vector<BatchSpecRow> rows;
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(num_pages(lengths[i], 4), pages[i]) << lengths[i];
    EXPECT_EQ(last_page_len(lengths[i], 4), last[i]) << lengths[i];
    rows.push_back({0, lengths[i]});
  }
  const SyntheticBatch batch = make_batch(rows, 4, 20, 0);
  EXPECT_EQ(batch.page_indptr, (std::vector<int32_t>{0, 0, 1, 2, 3, 5, 7, 9, 12}));
  EXPECT_TRUE(validate_batch_view(batch.view, 4, 20).ok());
}

using Att03Backend = EveryBackend;

TEST_P(Att03Backend, BuilderRefusesAPageTooManyOrTooFew) {
  LayerOptions options;
  options.block_size = 4;
  TestLayer layer(GetParam(), options, 20);
  for (const int32_t wrong : {3, 9}) {  // 8 keys are two pages: neither one nor three
    SyntheticBatch batch = make_batch({{1, 8}}, 4, 20, 0);
    batch.seq_lens[0] = wrong;
    batch.view.max_seq_len = wrong;
    const Status status = layer.backend().build_metadata(batch.view).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), testing::HasSubstr("row 0"));
  }
}

// Decodes 3 * B tokens from every start length, in pages of B in any order, against one contiguous
// page: the same bits.
TEST_P(Att03Backend, DecodesAcrossPagesLikeAContiguousCache) {
  constexpr int32_t kBlock = 4;
  for (int32_t start = 1; start <= 2 * kBlock + 1; ++start) {
    const int32_t total = start + 3 * kBlock;
    LayerOptions paged_options;
    paged_options.head_dim = 20;
    paged_options.num_q_heads = 2;
    paged_options.block_size = kBlock;
    LayerOptions flat_options = paged_options;
    flat_options.block_size = 64;
    TestLayer paged(GetParam(), paged_options, 16);
    TestLayer flat(GetParam(), flat_options, 2);
    const std::vector<float> k = random_floats(static_cast<size_t>(total) * 20, 1);
    const std::vector<float> v = random_floats(static_cast<size_t>(total) * 20, 2);
    const std::vector<float> q = random_floats(static_cast<size_t>(total) * 40, 3);
    const auto rows_of = [](const std::vector<float>& all, int32_t begin, int32_t end,
                            int32_t width) {
      return std::vector<float>(all.begin() + begin * width, all.begin() + end * width);
    };
    for (int32_t len = start; len < total; ++len) {
      const int32_t first = len == start ? 0 : len - 1;  // the prompt first, then one token a step
      std::vector<TestLayer::Output> outputs;
      for (TestLayer* layer : {&paged, &flat}) {
        const int32_t block = layer == &paged ? kBlock : 64;
        // One page order for all lengths: that of the longest, cut short.
        SyntheticBatch batch = make_batch({{1, total}}, block, layer == &paged ? 16 : 2, 9);
        batch.seq_lens[0] = batch.view.max_seq_len = len;
        batch.page_indptr[1] = num_pages(len, block);
        const std::vector<int64_t> slots = slots_of(batch, 0, block);
        batch.slot_mapping[0] = slots.back();
        layer->write(rows_of(k, first, len, 20), rows_of(v, first, len, 20),
                     {slots.begin() + first, slots.end()});
        outputs.push_back(layer->forward(batch.view, rows_of(q, len - 1, len, 40)));
      }
      ASSERT_EQ(std::memcmp(outputs[0].out.data(), outputs[1].out.data(), 40 * sizeof(float)), 0)
          << "start " << start << " length " << len;
      ASSERT_EQ(outputs[0].lse, outputs[1].lse);
    }
  }
}

TENON_FOR_EVERY_BACKEND(Att03Backend);

}  // namespace
}  // namespace tenon
