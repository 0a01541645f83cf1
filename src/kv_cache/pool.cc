#include "kv_cache/pool.h"

#include <cstring>
#include <utility>

#include "base/check.h"

namespace tenon {
namespace {

bool is_kv_dtype(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16 ||
         dtype == DType::kF8E4M3 || dtype == DType::kI8;
}

bool same_spec(const KvCacheSpec& a, const KvCacheSpec& b) {
  return a.num_layers == b.num_layers && a.num_kv_heads == b.num_kv_heads &&
         a.head_dim_k == b.head_dim_k && a.head_dim_v == b.head_dim_v &&
         a.block_size == b.block_size && a.dtype == b.dtype;
}

}  // namespace

Result<KvPool> KvPool::create(const KvCacheSpec& spec,
                              KvLayout layout,
                              int64_t num_blocks,
                              const Allocate& allocate) {
  if (spec.num_layers <= 0 || spec.num_kv_heads <= 0 || spec.head_dim_k <= 0 ||
      spec.head_dim_v <= 0 || spec.block_size <= 0) {
    return invalid_argument(
        "KV cache: sizes must be positive (layers {}, kv heads {}, head dims {}/{}, block size {})",
        spec.num_layers, spec.num_kv_heads, spec.head_dim_k, spec.head_dim_v, spec.block_size);
  }
  if (!is_kv_dtype(spec.dtype)) {
    return unsupported("KV cache: dtype {} (supported: F32, F16, BF16, F8_E4M3, I8)",
                       dtype_traits(spec.dtype).name);
  }
  if (!spec.allows(layout)) {
    return unsupported("KV cache: layout {} for {} cells of {} and {} features, {} tokens a block",
                       kv_layout_name(layout), dtype_traits(spec.dtype).name, spec.head_dim_k,
                       spec.head_dim_v, spec.block_size);
  }
  if (num_blocks <= 0) return invalid_argument("KV cache: {} blocks", num_blocks);
  const int64_t per_block = spec.bytes_per_block();
  int64_t bytes = 0;
  if (__builtin_mul_overflow(per_block, num_blocks, &bytes)) {
    return resource_exhausted("KV cache: {} blocks of {} bytes exceed the address space",
                              num_blocks, per_block);
  }
  KvPool pool;
  pool.spec_ = spec;
  pool.layout_ = layout;
  pool.num_blocks_ = num_blocks;
  const auto size = static_cast<size_t>(bytes);
  if (allocate) {
    auto buffer = allocate(size);
    if (!buffer.ok()) return buffer.status().with_context("KV cache");
    pool.buffer_ = std::move(buffer).value();
  } else {
    pool.buffer_ = Buffer::try_allocate(size);
  }
  if (pool.buffer_.data() == nullptr) {
    return resource_exhausted("KV cache: cannot get {} bytes ({} blocks of {} bytes)", bytes,
                              num_blocks, per_block);
  }
  return pool;
}

KvView KvPool::view(int32_t layer) const {
  TENON_CHECK_GE(layer, 0);
  TENON_CHECK_LT(layer, spec_.num_layers);
  const int64_t content = int64_t{spec_.head_dim_k} + spec_.head_dim_v;
  const int64_t element = dtype_bytes(spec_.dtype, 1);
  const int64_t layer_block = spec_.bytes_per_layer() / element;  // elements
  KvView view;
  view.dtype = spec_.dtype;
  view.num_blocks = num_blocks_;
  view.num_kv_heads = spec_.num_kv_heads;
  view.head_dim_k = spec_.head_dim_k;
  view.head_dim_v = spec_.head_dim_v;
  view.block_size = spec_.block_size;
  view.v_offset = spec_.head_dim_k;
  if (spec_.dtype == DType::kI8) view.token_scale_offset = spec_.cell_bytes_per_layer();
  int64_t layer_stride = 0;
  switch (layout_) {
    case KvLayout::kLBHNC:
    case KvLayout::kLBNHC:
    case KvLayout::kLBHNCSwizzled:
      layer_stride = layer_block * num_blocks_;
      view.block_stride = layer_block;
      break;
    case KvLayout::kBLHNC:
      layer_stride = layer_block;
      view.block_stride = layer_block * spec_.num_layers;
      break;
  }
  if (layout_ == KvLayout::kLBNHC) {
    view.head_stride = content;
    view.token_stride = content * spec_.num_kv_heads;
  } else {
    view.head_stride = content * spec_.block_size;
    view.token_stride = content;
  }
  view.swizzled = layout_ == KvLayout::kLBHNCSwizzled;
  view.base = buffer_.data() + dtype_bytes(spec_.dtype, layer_stride * layer);
  return view;
}

void copy_kv_blocks(const KvPool& src, KvPool& dst, std::span<const BlockCopy> copies) {
  TENON_CHECK(same_spec(src.spec(), dst.spec()));
  TENON_CHECK(src.layout() == dst.layout());
  const KvCacheSpec& spec = src.spec();
  // Layers of one block are contiguous in BLHNC: one copy moves them all. Elsewhere one copy a
  // layer.
  const int32_t pieces = src.layout() == KvLayout::kBLHNC ? 1 : spec.num_layers;
  const int64_t piece_bytes = spec.bytes_per_block() / pieces;
  for (const BlockCopy& copy : copies) {
    TENON_CHECK(copy.src >= 0 && copy.src < src.num_blocks());
    TENON_CHECK(copy.dst >= 0 && copy.dst < dst.num_blocks());
    for (int32_t layer = 0; layer < pieces; ++layer) {
      const KvView from = src.view(layer);
      const KvView to = dst.view(layer);
      const auto* source = static_cast<const std::byte*>(from.base) +
                           dtype_bytes(spec.dtype, from.k_offset(copy.src, 0, 0));
      auto* target =
          static_cast<std::byte*>(to.base) + dtype_bytes(spec.dtype, to.k_offset(copy.dst, 0, 0));
      if (source != target) std::memcpy(target, source, static_cast<size_t>(piece_bytes));
    }
  }
}

}  // namespace tenon
