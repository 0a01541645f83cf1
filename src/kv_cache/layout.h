// How KV bytes are arranged: logical axes layer (L), block (B), head (H), token (N), content (C:
// the head's K followed by its V), and a stride order over them. The engine resolves one layout
// from what the chosen attention backends accept; pool and backends only ever see strided views
// with 64-bit offsets, of which one layout also permutes a cell's content (KvView::element()).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"
#include "tensor/tensor.h"

namespace tenon {

// Outermost axis first. C is always innermost; dense, or permuted within each 128 bytes.
enum class KvLayout : uint8_t {
  kLBHNC,  // per layer: blocks of [head, token, K|V]; a head's tokens are contiguous ("HND")
  kLBNHC,  // per layer: blocks of [token, head, K|V] ("NHD")
  kBLHNC,  // all layers of a block together: one copy moves a block
  // kLBHNC with cells as tensor cores want to find them in shared memory, so that a kernel can copy
  // a head's tokens there as they lie: the eight 16-byte pieces of each 128 bytes of a cell are
  // permuted, piece p is at p ^ token % 8. For 16-bit types, K and V of whole 128 bytes; for 8-bit
  // types, K and V of whole 64 bytes and together of whole 128; block sizes that are multiples
  // of 8.
  kLBHNCSwizzled,
};
[[nodiscard]] std::string_view kv_layout_name(KvLayout layout);

// What one KV group stores.
struct KvCacheSpec {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim_k = 0;
  int32_t head_dim_v = 0;
  int32_t block_size = 16;    // tokens per block
  DType dtype = DType::kF16;  // f32, f16, bf16, f8e4m3, i8 (with a scale for each token and head)

  // Bytes of one block in one layer: its cells, then its token scales if the type has them.
  [[nodiscard]] int64_t cell_bytes_per_layer() const;
  [[nodiscard]] int64_t bytes_per_layer() const;
  // Bytes of one block over all layers.
  [[nodiscard]] int64_t bytes_per_block() const;
  // Whether the layout exists for such cells.
  [[nodiscard]] bool allows(KvLayout layout) const;
};

// What stored values are multiplied by to be real ones, on the write and on the read path. A part
// of the view's type, so that no kernel can be handed cells without it.
struct KvScales {
  float k = 1.0F;
  float v = 1.0F;
  // [kv_heads] on top of those; empty: 1. Host memory that outlives the view.
  std::span<const float> k_heads;
  std::span<const float> v_heads;

  [[nodiscard]] float k_of(int32_t head) const {
    return k_heads.empty() ? k : k * k_heads[static_cast<size_t>(head)];
  }
  [[nodiscard]] float v_of(int32_t head) const {
    return v_heads.empty() ? v : v * v_heads[static_cast<size_t>(head)];
  }
  [[nodiscard]] bool all_one() const {
    return k == 1.0F && v == 1.0F && k_heads.empty() && v_heads.empty();
  }
};

// The KV cells of one layer. Element (block, head, token, i) of K is at
// base + block * block_stride + head * head_stride + token * token_stride + i; V the same plus
// v_offset; if the cells are swizzled, see element(). All strides are in elements of `dtype`. Slot
// s is token s % block_size of block s / block_size.
struct KvView {
  void* base = nullptr;
  DType dtype = DType::kF16;
  int64_t num_blocks = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim_k = 0;
  int32_t head_dim_v = 0;
  int32_t block_size = 0;
  int64_t block_stride = 0;
  int64_t head_stride = 0;
  int64_t token_stride = 0;
  int64_t v_offset = 0;
  bool swizzled = false;  // kLBHNCSwizzled
  KvScales scales;
  // With kI8 every token and head has a scale of its own for K and one for V (f32, the largest
  // magnitude / 127), besides `scales`. They lie in the block behind its cells: [head][K,
  // V][token]. Elements, which are bytes, from a block's start; 0: the type has none.
  int64_t token_scale_offset = 0;

  [[nodiscard]] int64_t k_offset(int64_t block, int64_t head, int64_t token) const {
    return block * block_stride + head * head_stride + token * token_stride;
  }
  // Where element i of a cell's K, then V, is: i of V counts from v_offset.
  [[nodiscard]] int64_t element(int64_t block, int64_t head, int64_t token, int64_t i) const {
    return k_offset(block, head, token) + (swizzled ? i ^ token % 8 * swizzle_piece() : i);
  }
  // Elements that a swizzle moves together: 16 bytes of them.
  [[nodiscard]] int64_t swizzle_piece() const {
    return dtype == DType::kF8E4M3 || dtype == DType::kI8 ? 16 : 8;
  }
  // K's scales of the tokens of a block and head; V's follow after block_size of them. Requires:
  // token_scale_offset != 0, host memory.
  [[nodiscard]] float* token_scales(int64_t block, int64_t head) const {
    return reinterpret_cast<float*>(static_cast<std::byte*>(base) + block * block_stride +
                                    token_scale_offset) +
           head * 2 * block_size;
  }
};

}  // namespace tenon
