#include "attention/synthetic_batch.h"

#include <algorithm>
#include <map>
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

// Numbers the pages of rows in order; shared ones once.
class PageTables {
 public:
  explicit PageTables(int32_t block_size) : block_size_(block_size) {}

  // The pages of the next row.
  void next(const BatchSpecRow& row, std::vector<int32_t>& table) {
    table.clear();
    const int32_t root = row.root_prefix / block_size_;
    const int32_t term = row.term_prefix / block_size_;
    take_shared(roots_[row.root_prefix], root, table);
    take_shared(terms_[row.term], term - root, table);
    while (static_cast<int32_t>(table.size()) < num_pages(row.seq_len, block_size_)) {
      table.push_back(next_++);
    }
  }
  [[nodiscard]] int64_t num_pages_used() const { return next_; }

 private:
  void take_shared(std::vector<int32_t>& pages, int32_t count, std::vector<int32_t>& table) {
    while (static_cast<int32_t>(pages.size()) < count) pages.push_back(next_++);
    table.insert(table.end(), pages.begin(), pages.begin() + count);
  }

  int32_t block_size_;
  int32_t next_ = 0;
  std::map<int32_t, std::vector<int32_t>> roots_, terms_;
};

}  // namespace

int64_t blocks_needed(const std::vector<BatchSpecRow>& rows, int32_t block_size) {
  PageTables tables(block_size);
  std::vector<int32_t> table;
  for (const BatchSpecRow& row : rows) tables.next(row, table);
  return 1 + tables.num_pages_used();
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
  PageTables tables(block_size);
  std::vector<int32_t> table;
  for (const BatchSpecRow& row : rows) {
    tables.next(row, table);
    const auto first_page = static_cast<size_t>(batch.page_indptr.back());
    for (const int32_t page : table) {
      batch.page_indices.push_back(free_blocks[static_cast<size_t>(page)]);
    }
    batch.page_indptr.push_back(static_cast<int32_t>(batch.page_indices.size()));
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

void share_prefixes(SyntheticBatch& batch, int32_t block_size) {
  PrefixPlanner planner;
  planner.prepare(batch.view.num_rows());
  batch.prefixes = planner.find(batch.view, block_size);
  batch.view.prefix_groups = batch.prefixes.groups;
  batch.view.prefix_rows = batch.prefixes.rows;
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
