#include "kv_cache/index/block_allocator.h"

#include "base/check.h"

namespace tenon {

BlockAllocator::BlockAllocator(int32_t num_blocks, NullBlock null_block)
    : meta_(index(num_blocks) + 1),
      sentinel_(num_blocks),
      first_id_(null_block == NullBlock::kReserved ? 1 : 0),
      num_blocks_(num_blocks - first_id_) {
  TENON_CHECK_GE(num_blocks, first_id_);
  meta_[index(sentinel_)].prev = meta_[index(sentinel_)].next = sentinel_;
  if (first_id_ > 0) meta_[index(kNullBlock)].refs = 1;  // for good
  for (int32_t block = num_blocks - 1; block >= first_id_; --block) {
    meta_[index(block)].refs = 1;
    drop(block);
  }
}

int32_t BlockAllocator::allocate() {
  TENON_CHECK_GT(num_free_, 0);
  const int32_t block = meta_[index(sentinel_)].next;
  unlink(block);
  meta_[index(block)].refs = 1;
  return block;
}

void BlockAllocator::acquire(int32_t block) {
  TENON_CHECK(block >= first_id_ && block < sentinel_);
  Meta& meta = meta_[index(block)];
  if (meta.refs == 0) unlink(block);
  ++meta.refs;
}

void BlockAllocator::release(std::span<const int32_t> blocks, StepId fence) {
  for (size_t i = blocks.size(); i-- > 0;) {
    if (fence > completed_) {
      fenced_.push_back({fence, blocks[i]});
    } else {
      drop(blocks[i]);
    }
  }
}

void BlockAllocator::complete(StepId step) {
  TENON_CHECK_GE(step, completed_);
  completed_ = step;
  size_t kept = 0;
  for (size_t i = 0; i < fenced_.size(); ++i) {
    const Fenced entry = fenced_[i];
    if (entry.step > step) {
      fenced_[kept++] = entry;
    } else {
      drop(entry.block);
    }
  }
  fenced_.resize(kept);
}

void BlockAllocator::unlink(int32_t block) {
  Meta& meta = meta_[index(block)];
  meta_[index(meta.prev)].next = meta.next;
  meta_[index(meta.next)].prev = meta.prev;
  meta.prev = meta.next = -1;
  --num_free_;
}

void BlockAllocator::drop(int32_t block) {
  TENON_CHECK(block >= first_id_ && block < sentinel_);
  Meta& meta = meta_[index(block)];
  TENON_CHECK_GT(meta.refs, 0);
  if (--meta.refs > 0) return;
  meta.prev = meta.keep ? meta_[index(sentinel_)].prev : sentinel_;
  meta.next = meta_[index(meta.prev)].next;
  meta_[index(meta.prev)].next = block;
  meta_[index(meta.next)].prev = block;
  ++num_free_;
}

Status BlockAllocator::check_invariants() const {
  int32_t num_listed = 0;
  for (int32_t at = sentinel_, next = 0; (next = meta_[index(at)].next) != sentinel_; at = next) {
    if (next < first_id_ || next > sentinel_) return internal_error("free list holds {}", next);
    if (meta_[index(next)].prev != at) return internal_error("block {}: broken link", next);
    if (meta_[index(next)].refs != 0) return internal_error("block {}: free and used", next);
    if (++num_listed > num_blocks_) return internal_error("the free list is a ring");
  }
  if (num_listed != num_free_) {
    return internal_error("{} blocks listed free, {} counted", num_listed, num_free_);
  }
  int32_t num_unused = 0;
  for (int32_t block = first_id_; block < sentinel_; ++block) {
    const int32_t refs = meta_[index(block)].refs;
    if (refs < 0) return internal_error("block {}: {} references", block, refs);
    if (refs == 0) ++num_unused;
  }
  if (num_unused != num_free_) {
    return internal_error("{} blocks without reference, {} free", num_unused, num_free_);
  }
  if (first_id_ > 0 && meta_[index(kNullBlock)].refs != 1)
    return internal_error("the null block was touched");
  return ok_status();
}

}  // namespace tenon
