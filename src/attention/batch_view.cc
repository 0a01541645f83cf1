#include "attention/batch_view.h"

#include <algorithm>
#include <limits>

namespace tenon {
namespace {

// Reads "12", "2k", "1m" at `pos`; -1 when there is no number, or it is too large.
int64_t parse_count(std::string_view text, size_t* pos) {
  int64_t value = 0;
  const size_t begin = *pos;
  while (*pos < text.size() && text[*pos] >= '0' && text[*pos] <= '9') {
    value = value * 10 + (text[(*pos)++] - '0');
    if (value > std::numeric_limits<int32_t>::max()) return -1;
  }
  if (*pos == begin) return -1;
  if (*pos < text.size() && (text[*pos] == 'k' || text[*pos] == 'm')) {
    value *= text[(*pos)++] == 'k' ? 1024 : 1024 * 1024;
  }
  return value > std::numeric_limits<int32_t>::max() ? -1 : value;
}

}  // namespace

Result<std::vector<BatchSpecRow>> parse_batch_spec(std::string_view spec) {
  constexpr int64_t kMaxRows = 1 << 20;  // a slip of the pen must not take gigabytes
  std::vector<BatchSpecRow> rows;
  size_t pos = 0;
  int32_t term = 0;
  const auto error = [&](std::string_view what) {
    return invalid_argument(
        "batch '{}': {} at position {} (grammar: [COUNT]qQUERY[sKEYS][pSHARED[+SHARED]]_..., "
        "numbers may end in k or m: 2q2k_32q1s8kp4k)",
        spec, what, pos);
  };
  while (true) {
    int64_t count = 1;
    if (pos < spec.size() && spec[pos] != 'q') {
      count = parse_count(spec, &pos);
      if (count <= 0) return error("expected a number of requests from 1 on, or 'q'");
    }
    if (pos >= spec.size() || spec[pos] != 'q') return error("expected 'q'");
    ++pos;
    const int64_t query_len = parse_count(spec, &pos);
    if (query_len < 0) return error("expected a query length");
    int64_t seq_len = query_len;
    if (pos < spec.size() && spec[pos] == 's') {
      ++pos;
      seq_len = parse_count(spec, &pos);
      if (seq_len < 0) return error("expected a number of keys");
      if (seq_len != 0 && seq_len < query_len) return error("fewer keys than queries");
    }
    int64_t root_prefix = 0;
    int64_t term_prefix = 0;
    if (pos < spec.size() && spec[pos] == 'p') {
      ++pos;
      term_prefix = parse_count(spec, &pos);
      if (term_prefix < 0) return error("expected a number of shared keys");
      if (pos < spec.size() && spec[pos] == '+') {
        ++pos;
        root_prefix = term_prefix;
        const int64_t more = parse_count(spec, &pos);
        if (more < 0) return error("expected a number of shared keys");
        term_prefix += more;
      }
      if (term_prefix > seq_len - query_len) {
        return error("shared keys must be computed before the queries: at most keys - query");
      }
    }
    if (count + static_cast<int64_t>(rows.size()) > kMaxRows) return error("too many requests");
    BatchSpecRow row;
    row.query_len = static_cast<int32_t>(query_len);
    row.seq_len = static_cast<int32_t>(seq_len);
    row.root_prefix = static_cast<int32_t>(root_prefix);
    row.term_prefix = static_cast<int32_t>(term_prefix);
    row.term = term++;
    rows.insert(rows.end(), static_cast<size_t>(count), row);
    if (pos == spec.size()) return rows;
    if (spec[pos] != '_') return error("expected '_' or the end");
    ++pos;
  }
}

Status validate_batch_rows(const BatchView& view, int32_t block_size) {
  const int32_t rows = view.num_rows();
  const auto ends = static_cast<size_t>(rows) + 1;
  if (block_size <= 0) return invalid_argument("batch: block size {}", block_size);
  if (rows == 0 && view.query_start_loc.size() <= 1 && view.page_indptr.size() <= 1) {
    return view.num_tokens() == 0 ? ok_status() : invalid_argument("batch: tokens without rows");
  }
  if (view.query_start_loc.size() != ends || view.page_indptr.size() != ends) {
    return invalid_argument("batch: {} rows, but query_start_loc has {} and page_indptr {} entries",
                            rows, view.query_start_loc.size(), view.page_indptr.size());
  }
  if (view.query_start_loc[0] != 0 || view.page_indptr[0] != 0) {
    return invalid_argument("batch: query_start_loc and page_indptr must start at 0");
  }
  int32_t max_query_len = 0;
  int32_t max_seq_len = 0;
  for (int32_t row = 0; row < rows; ++row) {
    const auto r = static_cast<size_t>(row);
    // 64-bit differences: hostile indptrs must not overflow.
    const int64_t query_len = int64_t{view.query_start_loc[r + 1]} - view.query_start_loc[r];
    const int64_t pages = int64_t{view.page_indptr[r + 1]} - view.page_indptr[r];
    const int32_t seq_len = view.seq_lens[r];
    if (query_len < 0) return invalid_argument("batch row {}: query_start_loc decreases", row);
    if (seq_len < 0) return invalid_argument("batch row {}: seq_len {}", row, seq_len);
    if (seq_len != 0 && seq_len < query_len) {
      return invalid_argument("batch row {}: {} query tokens but seq_len {}", row, query_len,
                              seq_len);
    }
    if (pages != num_pages(seq_len, block_size)) {
      return invalid_argument("batch row {}: seq_len {} needs {} pages of {} tokens, {} given", row,
                              seq_len, num_pages(seq_len, block_size), block_size, pages);
    }
    max_query_len = std::max(max_query_len, static_cast<int32_t>(query_len));
    max_seq_len = std::max(max_seq_len, seq_len);
  }
  if (static_cast<int64_t>(view.page_indices.size()) < view.page_indptr.back()) {
    return invalid_argument("batch: page_indptr ends at {}, but there are {} page indices",
                            view.page_indptr.back(), view.page_indices.size());
  }
  if (view.slot_mapping.size() != static_cast<size_t>(view.num_tokens())) {
    return invalid_argument("batch: {} tokens, but {} slots", view.num_tokens(),
                            view.slot_mapping.size());
  }
  const int64_t classes =
      int64_t{view.num_decode_rows} + view.num_extend_rows + view.num_prefill_rows;
  if (view.num_decode_rows < 0 || view.num_extend_rows < 0 || view.num_prefill_rows < 0 ||
      classes != rows) {
    return invalid_argument("batch: {} decode + {} extend + {} prefill rows are not {} rows",
                            view.num_decode_rows, view.num_extend_rows, view.num_prefill_rows,
                            rows);
  }
  const int32_t decode_end = view.query_start_loc[static_cast<size_t>(view.num_decode_rows)];
  const int32_t extend_end =
      view.query_start_loc[static_cast<size_t>(view.num_decode_rows + view.num_extend_rows)];
  if (view.num_decode_tokens != decode_end || view.num_extend_tokens != extend_end - decode_end ||
      view.num_prefill_tokens != view.num_tokens() - extend_end) {
    return invalid_argument(
        "batch: token counts {}/{}/{} (decode/extend/prefill) disagree with query_start_loc",
        view.num_decode_tokens, view.num_extend_tokens, view.num_prefill_tokens);
  }
  if (view.max_query_len != max_query_len || view.max_seq_len != max_seq_len) {
    return invalid_argument("batch: max_query_len {} and max_seq_len {} should be {} and {}",
                            view.max_query_len, view.max_seq_len, max_query_len, max_seq_len);
  }
  return ok_status();
}

Status validate_batch_view(const BatchView& view, int32_t block_size, int64_t num_blocks) {
  TENON_RETURN_IF_ERROR(validate_batch_rows(view, block_size));
  for (int32_t row = 0; row < view.num_rows(); ++row) {
    const auto r = static_cast<size_t>(row);
    for (int32_t i = view.page_indptr[r]; i < view.page_indptr[r + 1]; ++i) {
      const int32_t page = view.page_indices[static_cast<size_t>(i)];
      if (page < 0 || page >= num_blocks) {
        return invalid_argument("batch row {}: page {} is block {}, the pool has {}", row,
                                i - view.page_indptr[r], page, num_blocks);
      }
    }
    for (int32_t t = view.query_start_loc[r]; t < view.query_start_loc[r + 1]; ++t) {
      const int64_t slot = view.slot_mapping[static_cast<size_t>(t)];
      if (slot < -1 || slot >= num_blocks * block_size) {
        return invalid_argument("batch row {}: token {} goes to slot {}, the pool has {}", row,
                                t - view.query_start_loc[r], slot, num_blocks * block_size);
      }
    }
    const bool prefill = row >= view.num_decode_rows + view.num_extend_rows;
    const bool has_context = view.seq_lens[r] > view.query_len(row);
    if (prefill && has_context) {
      return invalid_argument("batch row {}: a prefill row with {} keys for {} queries", row,
                              view.seq_lens[r], view.query_len(row));
    }
  }
  return ok_status();
}

}  // namespace tenon
