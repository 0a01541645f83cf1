// The plan of one step of the `cpu` backend: which (batch row, KV head) goes which way, in pieces
// small enough to balance over threads. It decides speed only: the kernels give the same bits
// whatever the pieces.
//
// Ownership:     a Plan lives in memory taken by prepare(); it borrows the BatchView's spans for
// the step. Thread safety: written by the engine thread, then read-only.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "attention/backend.h"

namespace tenon::cpu_attention {

// What planning needs to know of the KV group and the machine.
struct PlanShape {
  int32_t num_kv_heads = 1;
  int32_t group = 1;  // query heads of one KV head
  int32_t block_size = 1;
  int32_t threads = 1;

  // Up to this many tile rows (queries * group) are worked on straight from the cache: decode and
  // very short extends. More amortise a transposed K tile.
  [[nodiscard]] int32_t direct_rows() const;
  // Queries of one packed tile.
  [[nodiscard]] int32_t tile_queries() const;
  [[nodiscard]] int32_t max_tile_rows() const;
};

// Upper bounds of a plan's size for any batch within the limits.
struct PlanCapacity {
  int64_t items = 0;
  int64_t pairs = 0;     // (row, KV head) pairs whose keys are split over threads
  int64_t partials = 0;  // partial states of all pairs: one a segment
};
[[nodiscard]] PlanCapacity plan_capacity(const PlanShape& shape, const AttentionLimits& limits);

// One piece of work: some queries of a row against some segments of its keys, for one KV head.
struct WorkItem {
  int32_t row = 0;
  int32_t kv_head = 0;
  int32_t query_begin = 0;
  int32_t query_count = 0;
  int32_t segment_begin = 0;
  int32_t segment_end = 0;
  int32_t pair = -1;  // index of the split pair, -1: the item does all segments
  bool packed = false;
};

struct SplitPair {
  int32_t units = 0;          // items that share the pair
  int32_t first_partial = 0;  // partial state of segment s: first_partial + s
  int32_t segments = 0;
};

class Plan final : public AttentionMetadata {
 public:
  void attach(std::span<WorkItem> items, std::span<SplitPair> pairs) {
    items_ = items;
    pairs_ = pairs;
  }
  // Requires: validate_batch_rows(batch) passed and the batch is within the limits of attach()'s
  // memory.
  void build(const PlanShape& shape, const BatchView& batch);

  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] const BatchView& batch() const { return batch_; }
  [[nodiscard]] std::span<const WorkItem> items() const { return items_.first(num_items_); }
  [[nodiscard]] std::span<const SplitPair> pairs() const { return pairs_.first(num_pairs_); }
  [[nodiscard]] int64_t num_partials() const { return num_partials_; }

 private:
  void add(const WorkItem& item);
  void add_split_row(const PlanShape& shape, int32_t row);
  void add_packed_row(const PlanShape& shape, int32_t row);

  BatchView batch_;
  std::span<WorkItem> items_;
  std::span<SplitPair> pairs_;
  size_t num_items_ = 0;
  size_t num_pairs_ = 0;
  int64_t num_partials_ = 0;
  int32_t direct_rows_ = 0;
  int32_t packed_rows_ = 0;
  int32_t packed_tiles_ = 0;
};

}  // namespace tenon::cpu_attention
