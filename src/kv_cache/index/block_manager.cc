#include "kv_cache/index/block_manager.h"

#include <string>

#include "base/check.h"

namespace tenon {

BlockManager::BlockManager(const BlockManagerOptions& options)
    : block_size_(options.block_size),
      kv_group_(options.kv_group),
      blocks_(options.num_blocks, BlockAllocator::NullBlock::kReserved) {
  TENON_CHECK_GE(block_size_, 1);
  if (options.prefix_caching) {
    index_.emplace(options.num_blocks, block_size_,
                   options.hash_key ? *options.hash_key : random_hash_key());
  }
}

void BlockManager::allocate(int32_t count, std::vector<int32_t>& table) {
  for (int32_t i = 0; i < count; ++i) {
    const int32_t block = blocks_.allocate();
    if (blocks_.keep(block)) {
      index_->erase(block);
      blocks_.set_keep(block, false);
    }
    table.push_back(block);
  }
}

void BlockManager::acquire(std::span<const int32_t> blocks) {
  for (const int32_t block : blocks) blocks_.acquire(block);
}

void BlockManager::begin_chain(std::string_view cache_salt, std::vector<BlockHash>& chain) const {
  chain.clear();
  if (index_) chain.push_back(index_->root({kv_group_, std::string(cache_salt)}));
}

void BlockManager::extend_chain(std::span<const int32_t> tokens,
                                std::vector<BlockHash>& chain) const {
  if (!index_) return;
  const size_t num_full = tokens.size() / static_cast<size_t>(block_size_);
  for (size_t i = chain.size() - 1; i < num_full; ++i) {
    chain.push_back(index_->extend(chain[i], block_tokens(tokens, i)));
  }
}

int32_t BlockManager::find_prefix(std::span<const int32_t> tokens,
                                  int64_t max_tokens,
                                  std::span<const BlockHash> chain,
                                  std::vector<int32_t>& hits) const {
  if (!index_) return 0;
  const size_t max_blocks = static_cast<size_t>(max_tokens / block_size_);
  TENON_CHECK_LE(max_blocks + 1, chain.size());
  size_t i = 0;
  for (; i < max_blocks; ++i) {
    const int32_t block = index_->find(chain[i + 1], chain[i], block_tokens(tokens, i));
    if (block < 0) break;
    hits.push_back(block);
  }
  return static_cast<int32_t>(i);
}

void BlockManager::publish(int32_t block,
                           int32_t position,
                           std::span<const int32_t> tokens,
                           std::span<const BlockHash> chain) {
  if (!index_ || index_->contains(block)) return;
  TENON_CHECK_GT(blocks_.ref_count(block), 0);
  const size_t i = static_cast<size_t>(position);
  if (index_->insert(block, chain[i + 1], chain[i], block_tokens(tokens, i))) {
    blocks_.set_keep(block, true);
  }
}

Status BlockManager::check_invariants() const {
  TENON_RETURN_IF_ERROR(blocks_.check_invariants());
  if (!index_) return ok_status();
  TENON_RETURN_IF_ERROR(index_->check_invariants());
  for (int32_t block = 1; block <= num_blocks(); ++block) {
    if (index_->contains(block) != blocks_.keep(block)) {
      return internal_error("block {}: index and free list disagree", block);
    }
  }
  if (index_->contains(kNullBlock)) return internal_error("the null block is in the prefix index");
  return ok_status();
}

}  // namespace tenon
