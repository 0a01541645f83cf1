#include "kernels/cpu/weight_arena.h"

#include <algorithm>

namespace tenon::cpu {
namespace {

constexpr size_t kBlockBytes = size_t{32} << 20;  // 16 huge pages; pages never touched cost nothing
constexpr size_t kAlignment = 64;

}  // namespace

std::shared_ptr<std::byte> WeightArena::allocate(size_t bytes) {
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (block_ == nullptr || used_ + rounded > block_->size()) {
    auto block = std::make_shared<Buffer>(Buffer::try_allocate(std::max(rounded, kBlockBytes)));
    if (block->data() == nullptr) return nullptr;
    block_ = std::move(block);
    used_ = 0;
  }
  std::byte* data = block_->data() + used_;
  used_ += rounded;
  return {block_, data};  // shares the ownership of the block
}

}  // namespace tenon::cpu
