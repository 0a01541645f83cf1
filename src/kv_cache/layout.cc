#include "kv_cache/layout.h"

namespace tenon {

std::string_view kv_layout_name(KvLayout layout) {
  switch (layout) {
    case KvLayout::kLBHNC: return "LBHNC";
    case KvLayout::kLBNHC: return "LBNHC";
    case KvLayout::kBLHNC: return "BLHNC";
  }
  return "?";
}

int64_t KvCacheSpec::bytes_per_block() const {
  const int64_t cells = int64_t{num_layers} * num_kv_heads * block_size;
  return dtype_bytes(dtype, cells * (int64_t{head_dim_k} + head_dim_v));
}

}  // namespace tenon
