// From the content of a full block to its id: a chained keyed hash. The hash of a block covers its
// tokens and, through its parent's hash, everything before it (salt, KV group, all earlier tokens).
//
// A hit is believed only after the block's tokens and its parent's hash were compared, so walking a
// prompt block by block from the root verifies every token of it.
//
// Ownership:     ids and copies of token ids. Thread safety: one thread at a time.
// No allocation after construction; everything is O(1) a block.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/status.h"

namespace tenon {

using BlockHash = Hash128;

// What must be equal, besides the tokens, for two sequences to share blocks.
struct PrefixScope {
  int32_t kv_group = 0;
  std::string cache_salt = {};
};

class PrefixIndex {
 public:
  PrefixIndex(int32_t num_blocks, int32_t block_size, const HashKey& key);

  [[nodiscard]] BlockHash root(const PrefixScope& scope) const;
  // Requires: tokens.size() == block_size.
  [[nodiscard]] BlockHash extend(const BlockHash& parent, std::span<const int32_t> tokens) const;

  // The block with this content, or -1.
  [[nodiscard]] int32_t find(const BlockHash& hash,
                             const BlockHash& parent,
                             std::span<const int32_t> tokens) const;
  // False, and no change, if the hash is there already (two requests computed the same block in one
  // step). Requires: block is not in the index.
  bool insert(int32_t block,
              const BlockHash& hash,
              const BlockHash& parent,
              std::span<const int32_t> tokens);
  void erase(int32_t block);  // requires: contains(block)
  [[nodiscard]] bool contains(int32_t block) const {
    return entries_[static_cast<size_t>(block)].used;
  }
  [[nodiscard]] int32_t size() const { return size_; }

  [[nodiscard]] Status check_invariants() const;

 private:
  struct Entry {
    BlockHash hash, parent;
    int32_t next = -1;  // chain of one bucket
    bool used = false;
  };
  [[nodiscard]] size_t bucket(const BlockHash& hash) const { return hash.lo & (heads_.size() - 1); }
  [[nodiscard]] std::span<const int32_t> tokens_of(int32_t block) const;

  int32_t block_size_;
  HashKey key_;
  std::vector<int32_t> heads_;   // power of two
  std::vector<Entry> entries_;   // by block id
  std::vector<int32_t> tokens_;  // [num_blocks, block_size]
  int32_t size_ = 0;
};

}  // namespace tenon
