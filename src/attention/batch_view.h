// BatchView: what one step looks like to an attention backend. Built by the engine, read by every
// backend.
//
// Row order: decode rows first (query length <= decode threshold and context present), then short
// extends, long extends, prefills (no context). The batch grammar writes it: "2q2k_32q1s8k" is two
// requests of 2048 query tokens on 2048 keys and 32 of 1 query token on 8192 keys ("s" defaults to
// the query length). "16q1s4kp2k": the 16 share the keys of their first 2048 tokens;
// "8q1s4kp1k+2k_8q1s4kp1k+2k": all 16 share their first 1024, and each eight the 2048 after them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tenon {

// Rows whose tables begin alike: a node of the batch's prefix tree. Its keys are read once for all
// of its rows (cascade attention). A level covers pages [begin_page, end_page) of each of its rows'
// tables, which are the same blocks; its parent covers [.., begin_page).
struct PrefixGroup {
  int32_t parent = -1;  // index of an earlier group; -1: none
  int32_t first = 0;    // its rows are prefix_rows[first, first + count)
  int32_t count = 0;
  int32_t begin_page = 0;
  int32_t end_page = 0;
};

// Borrowed spans, valid for the step. B rows, T tokens.
struct BatchView {
  std::span<const int32_t>
      query_start_loc;  // [B + 1], tokens; row b owns query tokens [loc[b], loc[b+1])
  std::span<const int32_t>
      seq_lens;  // [B], keys visible to the last query token, this step's included
  std::span<const int32_t> page_indptr;   // [B + 1] into page_indices
  std::span<const int32_t> page_indices;  // block ids, row by row: ceil(seq_len / block_size) each
  std::span<const int64_t> slot_mapping;  // [T] where token t's K and V go; -1: nowhere (padding)
  // What a backend may use, or not: see attention/cascade.h. Only decode rows are in groups; every
  // row has keys of its own behind its groups' pages; parents come before their children.
  std::span<const PrefixGroup> prefix_groups = {};
  std::span<const int32_t> prefix_rows = {};  // a row at most once
  int32_t num_decode_rows = 0, num_extend_rows = 0, num_prefill_rows = 0;
  int32_t num_decode_tokens = 0, num_extend_tokens = 0, num_prefill_tokens = 0;
  int32_t max_query_len = 0;
  int32_t max_seq_len = 0;

  [[nodiscard]] int32_t num_rows() const { return static_cast<int32_t>(seq_lens.size()); }
  [[nodiscard]] int32_t num_tokens() const {
    return query_start_loc.empty() ? 0 : query_start_loc.back();
  }
  [[nodiscard]] int32_t query_len(int32_t row) const {
    return query_start_loc[static_cast<size_t>(row) + 1] -
           query_start_loc[static_cast<size_t>(row)];
  }
};

// Pages that `seq_len` keys take, and keys in the last of them (block_size when it is full; 0
// without keys).
[[nodiscard]] inline int32_t num_pages(int32_t seq_len, int32_t block_size) {
  return static_cast<int32_t>((int64_t{seq_len} + block_size - 1) / block_size);
}
[[nodiscard]] inline int32_t last_page_len(int32_t seq_len, int32_t block_size) {
  return seq_len == 0 ? 0 : (seq_len - 1) % block_size + 1;
}

// One term of the batch grammar.
struct BatchSpecRow {
  int32_t query_len = 0;
  int32_t seq_len = 0;
  int32_t root_prefix = 0;  // first keys, shared by all rows of the batch with the same number here
  int32_t term_prefix = 0;  // first keys, root included, shared by the rows of the term
  int32_t term = 0;
};
// "2q2k_32q1s8k" -> 34 rows. Errors: kInvalidArgument with the position of the mistake.
Result<std::vector<BatchSpecRow>> parse_batch_spec(std::string_view spec);

// Checks the shape of the view in O(rows): monotone indptrs, page counts, seq_len >= query_len (or
// 0: a row without keys, whose output is 0 and lse -inf), row classes and maxima. Errors name the
// row. Every build_metadata runs it.
Status validate_batch_rows(const BatchView& view, int32_t block_size);

// validate_batch_rows, and everything against the pool: page ids in [0, num_blocks), slots in
// range. Errors name the row. Run in tests and debug builds.
Status validate_batch_view(const BatchView& view, int32_t block_size, int64_t num_blocks);

}  // namespace tenon
