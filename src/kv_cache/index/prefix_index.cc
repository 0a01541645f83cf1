#include "kv_cache/index/prefix_index.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace tenon {
namespace {

// Field tags of the hashed text. Roots and blocks use different ones, so neither can pass for the
// other.
enum Tag : uint8_t { kTagGroup = 1, kTagSalt = 2, kTagParent = 3, kTagTokens = 4 };

}  // namespace

PrefixIndex::PrefixIndex(int32_t num_blocks, int32_t block_size, const HashKey& key)
    : block_size_(block_size),
      key_(key),
      heads_(std::bit_ceil(static_cast<size_t>(num_blocks) + 1), -1),
      entries_(static_cast<size_t>(num_blocks)),
      tokens_(static_cast<size_t>(num_blocks) * static_cast<size_t>(block_size)) {}

BlockHash PrefixIndex::root(const PrefixScope& scope) const {
  return FieldHasher(key_)
      .add(kTagGroup, static_cast<uint64_t>(scope.kv_group))
      .add(kTagSalt, std::string_view(scope.cache_salt))
      .finish();
}

BlockHash PrefixIndex::extend(const BlockHash& parent, std::span<const int32_t> tokens) const {
  TENON_CHECK_EQ(tokens.size(), static_cast<size_t>(block_size_));
  return FieldHasher(key_).add(kTagParent, parent).add(kTagTokens, tokens).finish();
}

std::span<const int32_t> PrefixIndex::tokens_of(int32_t block) const {
  const size_t size = static_cast<size_t>(block_size_);
  return std::span(tokens_).subspan(static_cast<size_t>(block) * size, size);
}

int32_t PrefixIndex::find(const BlockHash& hash,
                          const BlockHash& parent,
                          std::span<const int32_t> tokens) const {
  for (int32_t block = heads_[bucket(hash)]; block >= 0;) {
    const Entry& entry = entries_[static_cast<size_t>(block)];
    if (entry.hash == hash) {
      const bool same = entry.parent == parent && std::ranges::equal(tokens_of(block), tokens);
      return same ? block : -1;
    }
    block = entry.next;
  }
  return -1;
}

bool PrefixIndex::insert(int32_t block,
                         const BlockHash& hash,
                         const BlockHash& parent,
                         std::span<const int32_t> tokens) {
  TENON_CHECK(!contains(block));
  TENON_CHECK_EQ(tokens.size(), static_cast<size_t>(block_size_));
  int32_t& head = heads_[bucket(hash)];
  for (int32_t other = head; other >= 0; other = entries_[static_cast<size_t>(other)].next) {
    if (entries_[static_cast<size_t>(other)].hash == hash) return false;
  }
  entries_[static_cast<size_t>(block)] = {hash, parent, head, true};
  head = block;
  std::ranges::copy(tokens, tokens_.begin() + static_cast<int64_t>(block) * block_size_);
  ++size_;
  return true;
}

void PrefixIndex::erase(int32_t block) {
  TENON_CHECK(contains(block));
  Entry& entry = entries_[static_cast<size_t>(block)];
  int32_t* link = &heads_[bucket(entry.hash)];
  while (*link != block) link = &entries_[static_cast<size_t>(*link)].next;
  *link = entry.next;
  entry = {};
  --size_;
}

Status PrefixIndex::check_invariants() const {
  int32_t num_used = 0;
  for (size_t block = 0; block < entries_.size(); ++block) {
    const Entry& entry = entries_[block];
    if (!entry.used) continue;
    ++num_used;
    const int32_t id = static_cast<int32_t>(block);
    if (extend(entry.parent, tokens_of(id)) != entry.hash) {
      return internal_error("block {}: the hash is not that of its tokens", id);
    }
    if (find(entry.hash, entry.parent, tokens_of(id)) != id) {
      return internal_error("block {}: in the index but not found", id);
    }
  }
  if (num_used != size_) return internal_error("{} entries, {} counted", num_used, size_);
  return ok_status();
}

}  // namespace tenon
