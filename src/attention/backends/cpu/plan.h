// The plan of one step of the `cpu` backend: which rows, KV heads and prefix levels go which way,
// in pieces small enough to balance over threads. It decides speed only: the kernels give the same
// bits whatever the pieces.
//
// Phases are run one after the other: the prefix levels from the root of the tree down, then every
// row behind its prefix. A level leaves a softmax state for each of its query tokens, from which
// the next one goes on at a tile boundary, as if the row had walked through the keys itself.
//
// Ownership:     a Plan lives in memory taken by prepare(); it borrows the BatchView's spans for
// the step. Thread safety: written by the engine thread, then read-only.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "attention/backend.h"
#include "attention/cascade.h"

namespace tenon::cpu_attention {

// What planning needs to know of the KV group and the machine.
struct PlanShape {
  int32_t num_kv_heads = 1;
  int32_t group = 1;  // query heads of one KV head
  int32_t block_size = 1;
  int32_t threads = 1;
  int32_t cell_bytes = 256;  // K and V of one head and token
  CascadeMode cascade = CascadeMode::kAuto;
  AttentionSplit split = AttentionSplit::kAuto;

  // Up to this many tile rows (queries * group) are worked on straight from the cache: decode and
  // very short extends. More amortise a transposed K tile.
  [[nodiscard]] int32_t direct_rows() const;
  [[nodiscard]] bool is_direct(int32_t queries) const;
  // KV heads that a direct item of so many queries takes together.
  [[nodiscard]] int32_t heads_together(int32_t queries) const;
  // Queries of one packed tile.
  [[nodiscard]] int32_t tile_queries() const;
  // Rows of the largest item, all its KV heads together.
  [[nodiscard]] int32_t max_direct_item_rows() const;
  [[nodiscard]] int32_t max_item_rows() const;
  [[nodiscard]] int32_t max_item_queries() const;
};

// Upper bounds of a plan's size for any batch within the limits.
struct PlanCapacity {
  int64_t items = 0;
  int64_t pairs = 0;     // (row, KV heads) pairs whose keys are split over threads
  int64_t partials = 0;  // partial states of all pairs: one a segment
  int64_t members = 0;   // query tokens of all prefix levels
  int64_t states = 0;    // query tokens that a prefix level can leave a state for
};
[[nodiscard]] PlanCapacity plan_capacity(const PlanShape& shape, const AttentionLimits& limits);

// A query token of a prefix level.
struct Member {
  int32_t token = 0;     // of the batch
  int32_t position = 0;  // where it stands in its row
};

// One piece of work: some queries against a stretch of keys, for some KV heads.
struct WorkItem {
  int32_t row = 0;  // whose block table
  int32_t level =
      -1;  // prefix level, whose members [query_begin, ..) the queries are; -1: the row's
  int32_t kv_head = 0;
  int32_t num_heads = 1;
  int32_t query_begin = 0;
  int32_t query_count = 0;
  int32_t key_begin = 0;  // a tile boundary; if not 0 the queries have states to go on from
  int32_t key_end = 0;
  int32_t pair = -1;  // index of the split pair, -1: the item does all of its row's keys
  bool packed = false;
};

struct SplitPair {
  int32_t units = 0;          // items that share the pair
  int32_t first_partial = 0;  // partial state of segment s: first_partial + s - first_segment
  int32_t first_segment = 0;
  int32_t segments = 0;
};

class Plan final : public AttentionMetadata {
 public:
  static constexpr int kMaxDepth = 6;  // of the prefix tree

  struct Memory {
    std::span<WorkItem> items;
    std::span<SplitPair> pairs;
    std::span<Member> members;
    std::span<int32_t> prefix_pages;  // by row
    PrefixTree tree;                  // with its memory reserved
    int64_t max_states = 0;
  };
  void attach(Memory memory) { memory_ = std::move(memory); }
  // Requires: validate_batch_rows(batch) passed and the batch is within the limits of attach()'s
  // memory.
  void build(const PlanShape& shape, const BatchView& batch);

  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] CascadeUse cascade() const override { return use_; }
  [[nodiscard]] const BatchView& batch() const { return batch_; }
  [[nodiscard]] std::span<const WorkItem> items() const { return memory_.items.first(num_items_); }
  // Keys at the front of a row that its levels cover.
  [[nodiscard]] int32_t prefix_end(int32_t row) const {
    return use_.groups == 0 ? 0 : memory_.prefix_pages[static_cast<size_t>(row)] * block_size_;
  }
  // Items of the phases, in order.
  [[nodiscard]] int num_phases() const { return num_phases_; }
  [[nodiscard]] std::span<const WorkItem> phase(int i) const {
    const size_t begin = i == 0 ? 0 : phase_ends_[static_cast<size_t>(i) - 1];
    return items().subspan(begin, phase_ends_[static_cast<size_t>(i)] - begin);
  }
  [[nodiscard]] std::span<const SplitPair> pairs() const { return memory_.pairs.first(num_pairs_); }
  [[nodiscard]] std::span<const Member> members() const {
    return memory_.members.first(num_members_);
  }
  [[nodiscard]] int64_t num_partials() const { return num_partials_; }

 private:
  void add(const WorkItem& item);
  void add_levels(const PlanShape& shape);
  void add_level(const PlanShape& shape, size_t level);
  void add_rows(const PlanShape& shape);
  void add_split_row(const PlanShape& shape, int32_t row);
  void add_packed_row(const PlanShape& shape, int32_t row);
  void add_whole_row(const PlanShape& shape, int32_t row);
  void end_phase();
  [[nodiscard]] bool is_direct(const PlanShape& shape, int32_t row) const;

  BatchView batch_;
  int32_t block_size_ = 1;
  Memory memory_;
  size_t num_items_ = 0;
  size_t num_pairs_ = 0;
  size_t num_members_ = 0;
  int64_t num_partials_ = 0;
  std::array<size_t, kMaxDepth + 1> phase_ends_{};
  int num_phases_ = 0;
  CascadeUse use_;
  int32_t direct_rows_ = 0;
  int32_t packed_rows_ = 0;
  int32_t packed_tiles_ = 0;
};

}  // namespace tenon::cpu_attention
