#include "kv_cache/layout.h"

namespace tenon {

std::string_view kv_layout_name(KvLayout layout) {
  switch (layout) {
    case KvLayout::kLBHNC: return "LBHNC";
    case KvLayout::kLBNHC: return "LBNHC";
    case KvLayout::kBLHNC: return "BLHNC";
    case KvLayout::kLBHNCSwizzled: return "LBHNC swizzled";
  }
  return "?";
}

bool KvCacheSpec::allows(KvLayout layout) const {
  return layout != KvLayout::kLBHNCSwizzled ||
         (dtype_bytes(dtype, 1) == 2 && head_dim_k % 64 == 0 && head_dim_v % 64 == 0 &&
          block_size % 8 == 0);
}

int64_t KvCacheSpec::bytes_per_block() const {
  const int64_t cells = int64_t{num_layers} * num_kv_heads * block_size;
  return dtype_bytes(dtype, cells * (int64_t{head_dim_k} + head_dim_v));
}

}  // namespace tenon
