#include "attention/backends/cpu/plan.h"

#include <algorithm>

#include "attention/backends/cpu/kernels.h"
#include "base/check.h"

namespace tenon::cpu_attention {
namespace {

// Direct rows pay about this many rows' worth of arithmetic for loading and converting a key once.
constexpr int64_t kLoadCost = 4;
// A pair is split when it alone is more than 1 / (kSplitFactor * threads) of the step.
constexpr int64_t kSplitFactor = 4;
constexpr int32_t kDirectRows = 16;
constexpr int32_t kPackedRows =
    128;  // the accumulators (64 features: 32 KiB) stay in the second-level cache

int32_t num_segments(int32_t seq_len) {
  return (seq_len + kSegmentKeys - 1) / kSegmentKeys;
}

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

bool is_direct(const PlanShape& shape, int32_t query_len) {
  return int64_t{query_len} * shape.group <= shape.direct_rows();
}

// In visits of a key by a tile row, for one KV head.
int64_t row_cost(const PlanShape& shape, int32_t query_len, int32_t seq_len) {
  const int64_t rows = int64_t{query_len} * shape.group;
  if (is_direct(shape, query_len)) return seq_len * (rows + kLoadCost);
  return rows * (seq_len - query_len / 2);  // causal: half of the row's own keys
}

}  // namespace

int32_t PlanShape::direct_rows() const {
  return std::max(kDirectRows, group);
}

int32_t PlanShape::tile_queries() const {
  return std::max(1, kPackedRows / group);
}

int32_t PlanShape::max_tile_rows() const {
  return std::max(direct_rows(), tile_queries() * group);
}

PlanCapacity plan_capacity(const PlanShape& shape, const AttentionLimits& limits) {
  PlanCapacity capacity;
  const int64_t row_heads = int64_t{limits.max_num_seqs} * shape.num_kv_heads;
  if (shape.threads > 1) {
    // Pairs above the threshold add up to less than the whole, so there are fewer than this many.
    capacity.pairs = std::min(row_heads, kSplitFactor * shape.threads);
    capacity.partials = capacity.pairs * num_segments(limits.max_seq_len);
  }
  const int64_t full_tiles = limits.max_num_batched_tokens / shape.tile_queries();
  capacity.items = (full_tiles + limits.max_num_seqs) * shape.num_kv_heads +
                   capacity.pairs * kSplitFactor * shape.threads;
  return capacity;
}

void Plan::add(const WorkItem& item) {
  TENON_CHECK_LT(num_items_, items_.size());
  items_[num_items_++] = item;
}

void Plan::add_split_row(const PlanShape& shape, int32_t row) {
  const int32_t segments = num_segments(batch_.seq_lens[static_cast<size_t>(row)]);
  // At most kSplitFactor * threads units a pair: finer gains no balance and costs an atomic each.
  const auto run = static_cast<int32_t>(ceil_div(segments, kSplitFactor * shape.threads));
  for (int32_t head = 0; head < shape.num_kv_heads; ++head) {
    TENON_CHECK_LT(num_pairs_, pairs_.size());
    const auto pair = static_cast<int32_t>(num_pairs_);
    pairs_[num_pairs_++] = {static_cast<int32_t>(ceil_div(segments, run)),
                            static_cast<int32_t>(num_partials_), segments};
    num_partials_ += segments;
    for (int32_t s = 0; s < segments; s += run) {
      add({row, head, 0, batch_.query_len(row), s, std::min(s + run, segments), pair, false});
    }
  }
}

void Plan::add_packed_row(const PlanShape& shape, int32_t row) {
  const int32_t query_len = batch_.query_len(row);
  const int32_t segments = num_segments(batch_.seq_lens[static_cast<size_t>(row)]);
  const int32_t step = shape.tile_queries();
  // The last queries see the most keys: the longest pieces first balance best.
  for (auto tile = static_cast<int32_t>(ceil_div(query_len, step)) - 1; tile >= 0; --tile) {
    const int32_t begin = tile * step;
    for (int32_t head = 0; head < shape.num_kv_heads; ++head) {
      add({row, head, begin, std::min(step, query_len - begin), 0, segments, -1, true});
      ++packed_tiles_;
    }
  }
}

void Plan::build(const PlanShape& shape, const BatchView& batch) {
  batch_ = batch;
  num_items_ = num_pairs_ = 0;
  num_partials_ = 0;
  direct_rows_ = packed_rows_ = packed_tiles_ = 0;
  int64_t total = 0;
  for (int32_t row = 0; row < batch.num_rows(); ++row) {
    total += row_cost(shape, batch.query_len(row), batch.seq_lens[static_cast<size_t>(row)]) *
             shape.num_kv_heads;
  }
  const auto splits = [&](int32_t row) {
    const int32_t seq_len = batch.seq_lens[static_cast<size_t>(row)];
    const int64_t cost = row_cost(shape, batch.query_len(row), seq_len);
    return shape.threads > 1 && seq_len > kSegmentKeys &&
           cost * kSplitFactor * shape.threads > total;
  };
  // Three passes put pieces in order of size: split pairs, packed tiles, whole direct rows.
  for (int32_t row = 0; row < batch.num_rows(); ++row) {
    const int32_t query_len = batch.query_len(row);
    if (query_len == 0) continue;
    if (!is_direct(shape, query_len)) {
      ++packed_rows_;
    } else {
      ++direct_rows_;
      if (splits(row)) add_split_row(shape, row);
    }
  }
  for (int32_t row = 0; row < batch.num_rows(); ++row) {
    if (!is_direct(shape, batch.query_len(row))) add_packed_row(shape, row);
  }
  for (int32_t row = 0; row < batch.num_rows(); ++row) {
    const int32_t query_len = batch.query_len(row);
    if (query_len == 0 || !is_direct(shape, query_len) || splits(row)) continue;
    const int32_t segments = num_segments(batch.seq_lens[static_cast<size_t>(row)]);
    for (int32_t head = 0; head < shape.num_kv_heads; ++head) {
      add({row, head, 0, query_len, 0, segments, -1, false});
    }
  }
}

std::string Plan::describe() const {
  return fmt::format(
      "cpu: {} direct rows ({} row-head pairs split into {} segments), {} packed rows in {} tiles; "
      "{} work items",
      direct_rows_, num_pairs_, num_partials_, packed_rows_, packed_tiles_, num_items_);
}

}  // namespace tenon::cpu_attention
