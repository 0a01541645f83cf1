#include "attention/batch_view.h"

#include <gmock/gmock.h>

#include <functional>

#include "attention/synthetic_batch.h"

namespace tenon {
namespace {

using ::testing::HasSubstr;

TEST(BatchGrammar, ReadsCountsQueriesAndKeys) {
  auto rows = parse_batch_spec("2q2k_32q1s8k_q5_q3s0_1q0s4");
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  ASSERT_EQ(rows->size(), 37U);
  EXPECT_EQ((*rows)[0].query_len, 2048);
  EXPECT_EQ((*rows)[1].seq_len, 2048);
  EXPECT_EQ((*rows)[2].query_len, 1);
  EXPECT_EQ((*rows)[33].seq_len, 8192);
  EXPECT_EQ((*rows)[34].query_len, 5);
  EXPECT_EQ((*rows)[34].seq_len, 5);
  EXPECT_EQ((*rows)[35].query_len, 3);
  EXPECT_EQ((*rows)[35].seq_len, 0);
  EXPECT_EQ((*rows)[36].seq_len, 4);
}

TEST(BatchGrammar, NamesTheMistakeAndItsPlace) {
  const struct {
    const char* spec;
    const char* what;
  } cases[] = {
      {"", "expected 'q' at position 0"},
      {"2", "expected 'q' at position 1"},
      {"0q1", "expected a number of requests from 1 on"},
      {"q", "expected a query length at position 1"},
      {"q4s", "expected a number of keys at position 3"},
      {"q4s2", "fewer keys than queries"},
      {"q4x", "expected '_' or the end at position 2"},
      {"q4_", "expected 'q' at position 3"},
      {"q-4", "expected a query length at position 1"},
      {"q99999999999", "expected a query length"},
      {"q3000m", "expected a query length"},
      {"2mq1", "too many requests"},
  };
  for (const auto& c : cases) {
    const Status status = parse_batch_spec(c.spec).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << c.spec;
    EXPECT_THAT(status.message(), HasSubstr(c.what)) << c.spec;
  }
}

TEST(ValidateBatchView, AcceptsWhatMakeBatchBuilds) {
  for (const char* spec : {"q0", "q1", "3q1s70_q5s37_q20s41_q33", "q1s4_q2s0_q1s7_q0s4"}) {
    auto rows = parse_batch_spec(spec);
    ASSERT_TRUE(rows.ok());
    const int64_t blocks = blocks_needed(*rows, 8);
    const SyntheticBatch batch = make_batch(*rows, 8, blocks, 5);
    const Status status = validate_batch_view(batch.view, 8, blocks);
    EXPECT_TRUE(status.ok()) << spec << ": " << status.message();
  }
  EXPECT_TRUE(validate_batch_view(BatchView(), 16, 1).ok());
}

TEST(ValidateBatchView, NamesTheRowThatIsWrong) {
  const auto rows = parse_batch_spec("2q1s20_q4s10_q9");
  const struct {
    std::function<void(SyntheticBatch&)> spoil;
    const char* what;
  } cases[] = {
      {[](SyntheticBatch& b) { b.seq_lens[1] = 25; },
       "row 1: seq_len 25 needs 4 pages of 8 tokens, 3 given"},
      {[](SyntheticBatch& b) { b.seq_lens[2] = 3; }, "row 2: 4 query tokens but seq_len 3"},
      {[](SyntheticBatch& b) { b.seq_lens[0] = -1; }, "row 0: seq_len -1"},
      {[](SyntheticBatch& b) { b.query_start_loc[2] = 0; }, "row 1: query_start_loc decreases"},
      {[](SyntheticBatch& b) { b.page_indptr[0] = 1; }, "must start at 0"},
      {[](SyntheticBatch& b) { b.page_indices[4] = -2; }, "row 1: page 1 is block -2"},
      {[](SyntheticBatch& b) { b.page_indices[6] = 100; }, "row 2: page 0 is block 100"},
      {[](SyntheticBatch& b) { b.slot_mapping[3] = 800; }, "row 2: token 1 goes to slot 800"},
      {[](SyntheticBatch& b) { b.slot_mapping[3] = -2; }, "row 2: token 1 goes to slot -2"},
      {[](SyntheticBatch& b) { --b.view.num_decode_rows, ++b.view.num_extend_rows; },
       "token counts"},
      {[](SyntheticBatch& b) { b.view.num_prefill_rows = 2; }, "are not 4 rows"},
      {[](SyntheticBatch& b) { b.view.max_seq_len = 21; }, "max_seq_len 21 should be"},
      {[](SyntheticBatch& b) { b.view.page_indices = b.view.page_indices.first(3); },
       "page indices"},
      {[](SyntheticBatch& b) { b.view.slot_mapping = b.view.slot_mapping.first(3); }, "3 slots"},
      {[](SyntheticBatch& b) { b.view.page_indptr = b.view.page_indptr.first(3); },
       "page_indptr 3 entries"},
      {[](SyntheticBatch& b) {
         b.view.num_extend_rows = 0, b.view.num_prefill_rows = 2;
         b.view.num_extend_tokens = 0, b.view.num_prefill_tokens = 13;
       },
       "row 2: a prefill row with 10 keys for 4 queries"},
  };
  for (const auto& c : cases) {
    SyntheticBatch batch = make_batch(*rows, 8, 100, 0);
    c.spoil(batch);
    const Status status = validate_batch_view(batch.view, 8, 100);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << c.what;
    EXPECT_THAT(status.message(), HasSubstr(c.what));
  }
}

}  // namespace
}  // namespace tenon
