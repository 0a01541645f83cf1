// Ref-counted block ids with an LRU free list: the book-keeping of one pool, on a device or in host
// memory.
//
// Free blocks form an intrusive list; the head is handed out next. A block marked `keep` (its
// content may be wanted again) goes to the tail when its last reference is dropped, any other to
// the head.
//
// A release may carry a fence: the id of the last step that touches the block. Until complete(step)
// was called with that id or a later one the reference stays, so an unfinished step never sees its
// blocks reused.
//
// Ownership:     ids only; no memory behind them.
// Thread safety: one thread at a time. All operations are O(1) a block and do not allocate after
// warm-up.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace tenon {

// Padding rows point here. Never handed out, never shared, content never meaningful.
inline constexpr int32_t kNullBlock = 0;

using StepId = uint64_t;  // steps count from 1; 0 is "before any step"

class BlockAllocator {
 public:
  enum class NullBlock : uint8_t { kNone, kReserved };  // kReserved: block 0 is the null block

  // Ids [0, num_blocks), or [1, num_blocks) with a null block. Requires: num_blocks >= 0.
  BlockAllocator(int32_t num_blocks, NullBlock null_block);

  [[nodiscard]] int32_t num_blocks() const { return num_blocks_; }  // the null block not counted
  [[nodiscard]] int32_t num_free() const { return num_free_; }
  [[nodiscard]] int32_t num_used() const { return num_blocks_ - num_free_; }
  [[nodiscard]] int32_t num_fenced() const { return static_cast<int32_t>(fenced_.size()); }
  [[nodiscard]] int32_t ref_count(int32_t block) const { return meta_[index(block)].refs; }
  [[nodiscard]] bool keep(int32_t block) const { return meta_[index(block)].keep; }

  // Hands out the head of the free list with one reference. The caller sees by keep(block) whether
  // the block held something worth keeping and has to forget it (set_keep(block, false)). Requires:
  // num_free() > 0.
  [[nodiscard]] int32_t allocate();
  // One more reference; a free block leaves the free list with its content. Requires: not the null
  // block.
  void acquire(int32_t block);
  // Drops one reference of each, last first, so that the tail of a sequence is reused before its
  // beginning.
  void release(std::span<const int32_t> blocks, StepId fence = 0);
  // Steps up to this one have finished. Requires: never decreases.
  void complete(StepId step);
  void set_keep(int32_t block, bool keep) { meta_[index(block)].keep = keep; }

  // First broken invariant of list and counts, as kInternal. O(num_blocks), for tests.
  [[nodiscard]] Status check_invariants() const;
  // References waiting for a step to complete, for the owner's own checks.
  template <typename Fn>
  void for_each_fenced(Fn&& fn) const {
    for (const Fenced& entry : fenced_) fn(entry.block);
  }

 private:
  struct Meta {
    int32_t refs = 0;
    int32_t prev = -1, next = -1;  // valid while refs == 0
    bool keep = false;
  };
  struct Fenced {
    StepId step = 0;
    int32_t block = 0;
  };
  static size_t index(int32_t block) { return static_cast<size_t>(block); }
  void unlink(int32_t block);
  void drop(int32_t block);

  std::vector<Meta> meta_;  // one more at the end: the list's sentinel
  int32_t sentinel_ = 0;
  int32_t first_id_ = 0;
  int32_t num_blocks_ = 0;
  int32_t num_free_ = 0;
  StepId completed_ = 0;
  std::vector<Fenced> fenced_;
};

}  // namespace tenon
