#include "attention/synthetic_batch.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "base/check.h"

namespace tenon {
namespace {

constexpr int32_t kShortExtend = 16;  // query tokens up to which an extend counts as short

// 0 decode, 1 short extend, 2 long extend, 3 prefill.
int row_class(const BatchSpecRow& row) {
  if (row.seq_len > row.query_len || row.query_len == 0) {
    if (row.query_len <= 1) return 0;
    return row.query_len <= kShortExtend ? 1 : 2;
  }
  return 3;
}

}  // namespace

int64_t blocks_needed(const std::vector<BatchSpecRow>& rows, int32_t block_size) {
  int64_t blocks = 1;
  for (const BatchSpecRow& row : rows) blocks += num_pages(row.seq_len, block_size);
  return blocks;
}

void fill_view(SyntheticBatch& batch) {
  BatchView& view = batch.view;
  view = {};
  view.query_start_loc = batch.query_start_loc;
  view.seq_lens = batch.seq_lens;
  view.page_indptr = batch.page_indptr;
  view.page_indices = batch.page_indices;
  view.slot_mapping = batch.slot_mapping;
  for (int32_t row = 0; row < view.num_rows(); ++row) {
    const BatchSpecRow facts = {view.query_len(row), view.seq_lens[static_cast<size_t>(row)]};
    switch (row_class(facts)) {
      case 0:
        ++view.num_decode_rows;
        view.num_decode_tokens += facts.query_len;
        break;
      case 3:
        ++view.num_prefill_rows;
        view.num_prefill_tokens += facts.query_len;
        break;
      default:
        ++view.num_extend_rows;
        view.num_extend_tokens += facts.query_len;
        break;
    }
    view.max_query_len = std::max(view.max_query_len, facts.query_len);
    view.max_seq_len = std::max(view.max_seq_len, facts.seq_len);
  }
}

SyntheticBatch make_batch(std::vector<BatchSpecRow> rows,
                          int32_t block_size,
                          int64_t num_blocks,
                          uint64_t seed) {
  TENON_CHECK_GE(num_blocks, blocks_needed(rows, block_size));
  std::stable_sort(rows.begin(), rows.end(), [](const BatchSpecRow& a, const BatchSpecRow& b) {
    return row_class(a) < row_class(b);
  });
  std::vector<int32_t> free_blocks(static_cast<size_t>(num_blocks - 1));
  std::iota(free_blocks.begin(), free_blocks.end(), 1);
  if (seed != 0) {
    std::mt19937_64 random(seed);
    for (size_t i = free_blocks.size(); i > 1; --i)
      std::swap(free_blocks[i - 1], free_blocks[random() % i]);
  }
  SyntheticBatch batch;
  batch.query_start_loc.push_back(0);
  batch.page_indptr.push_back(0);
  for (const BatchSpecRow& row : rows) {
    const auto pages = static_cast<size_t>(num_pages(row.seq_len, block_size));
    const auto first_page = static_cast<size_t>(batch.page_indptr.back());
    for (size_t i = 0; i < pages; ++i) batch.page_indices.push_back(free_blocks[first_page + i]);
    batch.page_indptr.push_back(static_cast<int32_t>(first_page + pages));
    batch.query_start_loc.push_back(batch.query_start_loc.back() + row.query_len);
    batch.seq_lens.push_back(row.seq_len);
    for (int32_t i = 0; i < row.query_len; ++i) {
      const int32_t key = row.seq_len - row.query_len + i;
      batch.slot_mapping.push_back(
          key < 0
              ? -1
              : int64_t{batch.page_indices[first_page + static_cast<size_t>(key / block_size)]} *
                        block_size +
                    key % block_size);
    }
  }
  fill_view(batch);
  return batch;  // vectors keep their memory when they move, so the spans stay right
}

std::vector<float> random_floats(size_t count, uint64_t seed) {
  // The sum of four uniforms, by splitmix64: quick, portable, bell-shaped enough.
  std::vector<float> values(count);
  uint64_t state = seed * 0x9E3779B97F4A7C15ULL + 1;
  for (float& value : values) {
    state += 0x9E3779B97F4A7C15ULL;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    z ^= z >> 31;
    const double sum = static_cast<double>((z & 0xFFFF) + ((z >> 16) & 0xFFFF) +
                                           ((z >> 32) & 0xFFFF) + (z >> 48)) /
                       65536.0;
    value = static_cast<float>((sum - 2.0) * 1.7320508);  // variance 4/12 -> 1
  }
  return values;
}

}  // namespace tenon
