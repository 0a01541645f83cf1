// The blocks of one KV group: allocation, sharing by prefix, release. Ids only.
//
// A block is in one of three places: referenced by sequences, free with content that can still be
// found by its prefix, or free without. A block becomes findable by publish(), once its KV was
// computed, never at allocation; handing it out again takes it out of the index first. Only full
// blocks are published and nothing is written to a published block, so shared blocks never need
// copy-on-write.
//
// Ownership:     ids only. Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kv_cache/index/block_allocator.h"
#include "kv_cache/index/prefix_index.h"

namespace tenon {

struct BlockManagerOptions {
  int32_t num_blocks = 0;  // of the pool, the null block included
  int32_t block_size = 16;
  int32_t kv_group = 0;
  bool prefix_caching = true;
  std::optional<HashKey> hash_key = std::nullopt;  // random if not set
};

class BlockManager {
 public:
  // Requires: num_blocks >= 1, block_size >= 1.
  explicit BlockManager(const BlockManagerOptions& options);

  [[nodiscard]] int32_t block_size() const { return block_size_; }
  [[nodiscard]] bool prefix_caching() const { return index_.has_value(); }
  [[nodiscard]] int32_t num_blocks() const {
    return blocks_.num_blocks();
  }                                                                      // without the null block
  [[nodiscard]] int32_t num_free() const { return blocks_.num_free(); }  // findable ones included
  [[nodiscard]] int32_t num_used() const { return blocks_.num_used(); }
  [[nodiscard]] int32_t num_cached() const {
    return index_ ? index_->size() : 0;
  }  // findable: used or free
  [[nodiscard]] int32_t num_fenced() const { return blocks_.num_fenced(); }
  [[nodiscard]] int32_t ref_count(int32_t block) const { return blocks_.ref_count(block); }

  [[nodiscard]] int32_t blocks_for(int64_t num_tokens) const {
    return static_cast<int32_t>((num_tokens + block_size_ - 1) / block_size_);
  }
  // Whether a sequence that owns blocks for num_tokens can take one more token now.
  [[nodiscard]] bool can_append(int64_t num_tokens) const {
    return blocks_for(num_tokens + 1) - blocks_for(num_tokens) <= num_free();
  }

  // Appends `count` fresh blocks. Requires: count <= num_free().
  void allocate(int32_t count, std::vector<int32_t>& table);
  void acquire(std::span<const int32_t> blocks);
  void release(std::span<const int32_t> blocks, StepId fence = 0) {
    blocks_.release(blocks, fence);
  }
  void complete(StepId step) { blocks_.complete(step); }

  // A sequence's hash chain: chain[0] is the root of its scope, chain[i + 1] the hash of its i-th
  // full block. Empty without prefix caching; then the calls below do nothing.
  void begin_chain(std::string_view cache_salt, std::vector<BlockHash>& chain) const;
  // Adds the full blocks of `tokens` that the chain does not cover yet.
  void extend_chain(std::span<const int32_t> tokens, std::vector<BlockHash>& chain) const;
  // Appends to `hits` the findable blocks of the longest prefix of whole blocks within the first
  // max_tokens tokens and returns their number. Nothing is acquired. Requires: the chain covers
  // these tokens.
  int32_t find_prefix(std::span<const int32_t> tokens,
                      int64_t max_tokens,
                      std::span<const BlockHash> chain,
                      std::vector<int32_t>& hits) const;
  // Makes block number `position` of a sequence findable, unless one with the same content already
  // is. Requires: its KV is computed, the block is referenced, the chain covers it.
  void publish(int32_t block,
               int32_t position,
               std::span<const int32_t> tokens,
               std::span<const BlockHash> chain);

  // First broken invariant, as kInternal. O(num_blocks), for tests.
  [[nodiscard]] Status check_invariants() const;
  [[nodiscard]] const BlockAllocator& allocator() const { return blocks_; }

 private:
  [[nodiscard]] std::span<const int32_t> block_tokens(std::span<const int32_t> tokens,
                                                      size_t i) const {
    return tokens.subspan(i * static_cast<size_t>(block_size_), static_cast<size_t>(block_size_));
  }

  int32_t block_size_;
  int32_t kv_group_;
  BlockAllocator blocks_;
  std::optional<PrefixIndex> index_;
};

}  // namespace tenon
