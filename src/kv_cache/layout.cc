#include "kv_cache/layout.h"

namespace tenon {
namespace {

constexpr int64_t kScaleAlignment = 16;  // scales and blocks begin where a GPU can copy 16 bytes

}  // namespace

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
  if (layout != KvLayout::kLBHNCSwizzled) return true;
  const int64_t bytes = dtype_bytes(dtype, 1);
  if (bytes > 2 || head_dim_k % 64 != 0 || head_dim_v % 64 != 0 || block_size % 8 != 0) {
    return false;
  }
  return bytes * (head_dim_k + head_dim_v) % 128 == 0;
}

int64_t KvCacheSpec::cell_bytes_per_layer() const {
  const int64_t cells = int64_t{num_kv_heads} * block_size;
  const int64_t bytes = dtype_bytes(dtype, cells * (int64_t{head_dim_k} + head_dim_v));
  if (dtype != DType::kI8) return bytes;
  return (bytes + kScaleAlignment - 1) / kScaleAlignment * kScaleAlignment;
}

int64_t KvCacheSpec::bytes_per_layer() const {
  if (dtype != DType::kI8) return cell_bytes_per_layer();
  const int64_t scales =
      int64_t{num_kv_heads} * 2 * block_size * static_cast<int64_t>(sizeof(float));
  const int64_t bytes = cell_bytes_per_layer() + scales;
  return (bytes + kScaleAlignment - 1) / kScaleAlignment * kScaleAlignment;
}

int64_t KvCacheSpec::bytes_per_block() const {
  return num_layers * bytes_per_layer();
}

}  // namespace tenon
