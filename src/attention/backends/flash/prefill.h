// Prefill attention for Hopper (sm_90a): causal or full attention of many query tokens per row,
// keys and values in pages or as the step's own contiguous activations. The algorithm is
// FlashAttention-3 (arXiv 2407.08608); see docs/design/flash_backend.md.
//
// This is the kernel's launch interface: plain pointers, element strides and a work list. It knows
// nothing of the attention layer's classes. The host part, plan_prefill(), takes bounded time and
// no memory; what it writes is copied to the device by the caller and read there by the kernel.
//
// Ownership:     everything is borrowed; device memory must live until the launch has finished.
// Thread safety: free functions without state.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "attention/backends/flash/extras.h"

namespace tenon::flash {

// What the kernel is instantiated and tiled by.
struct PrefillShape {
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;  // divides num_q_heads
  int32_t head_dim = 0;      // of q, k and v; a multiple of 8, at most 256
  int32_t page_size = 0;     // tokens of a KV page
  bool bf16 = true;          // q, k, v and out: bf16, or f16
};

// One request of the step. Query t of the row sees the first kv_len - q_len + t + 1 keys (all
// kv_len when not causal). kv_len is at least q_len, or 0: such a row gets out = 0, lse = -inf.
struct PrefillRow {
  int32_t q_begin = 0;  // its first token among the step's T tokens
  int32_t q_len = 0;
  int32_t kv_len = 0;
  int32_t kv_begin =
      0;  // paged: where its pages start in page_indices; ragged: its first key's token
  bool ragged = false;  // keys are tokens [kv_begin, kv_begin + kv_len) of PrefillParams::k and v
};

// One entry of the work list: a tile of query tokens of one row, for `heads_per_tile` KV heads (see
// PrefillPlan). Device format.
struct alignas(16) PrefillTile {
  int32_t q_begin;     // first token of the tile
  int32_t q_len;       // tokens of the tile
  int32_t kv_len;      // keys of the row
  int32_t visible;     // keys that the tile's first token sees
  int32_t kv_begin;    // as PrefillRow
  int32_t head_begin;  // first head of the entry
  int32_t ragged;      // 0 or 1
  int32_t reserved;
};

struct PrefillPlan {
  int32_t num_tiles = 0;       // entries written
  int32_t heads_per_tile = 0;  // every entry is done for that many heads
  bool any_ragged = false;     // false: all rows read pages, which is then faster
};

// Whether head_dim, page_size and the heads are such that launch_prefill() takes them.
[[nodiscard]] bool prefill_supports(const PrefillShape& shape);

// The most entries that a step of at most `max_tokens` query tokens in `max_rows` rows can take.
[[nodiscard]] int64_t max_prefill_tiles(const PrefillShape& shape,
                                        int64_t max_tokens,
                                        int64_t max_rows);

// Writes the work list of `rows` into `tiles` (max_prefill_tiles() of the step's bounds): rows
// whose keys share the L2 cache together, the tiles with most keys first. Reorders `rows`. O(n log
// n).
PrefillPlan plan_prefill(const PrefillShape& shape,
                         bool causal,
                         std::span<PrefillRow> rows,
                         std::span<PrefillTile> tiles);

// The pages of one layer. Element (page, head, token, i) of K is at
// base + page * page_stride + head * head_stride + token * token_stride + i, V the same plus
// v_offset. Strides in elements, multiples of 8; base is aligned to 16 bytes.
struct PrefillPages {
  const void* base = nullptr;
  int64_t num_pages = 0;
  int64_t page_stride = 0;
  int64_t head_stride = 0;
  int64_t token_stride = 0;
  int64_t v_offset = 0;
  // Cells are as shared memory wants them (KvLayout::kLBHNCSwizzled): head_dim and page_size are
  // multiples of 64 and of 8.
  bool swizzled = false;
  Cells cells = Cells::kHalf;      // 8-bit cells: strides and head_dim are multiples of 16
  int64_t token_scale_offset = 0;  // Cells::kI8: of a page's scales, see KvView; in bytes
  // What cells are multiplied by, but for Extras::k_scales and v_scales.
  float k_scale = 1.0F;
  float v_scale = 1.0F;
};

// Device pointers unless said otherwise; row strides in elements, multiples of 8; q, k, v and out
// aligned to 16 bytes.
struct PrefillParams {
  PrefillShape shape;
  PrefillPlan plan;
  bool causal = true;      // as given to plan_prefill(); else no ALiBi
  float scale = 0.0F;      // of q . k; positive
  int32_t num_tokens = 0;  // T, rows of q, k and v

  const void* q = nullptr;  // [T, num_q_heads * head_dim]
  int64_t q_stride = 0;
  const void* k = nullptr;  // [T, num_kv_heads * head_dim]; read by ragged rows, else may be null
  const void* v = nullptr;
  int64_t k_stride = 0;
  int64_t v_stride = 0;
  PrefillPages pages;  // read by paged rows, else base may be null
  // Of the layer. With extras, scales or 8-bit cells another instantiation runs; scales and cells
  // allow no ragged rows.
  Extras extras;
  bool has_extras = false;
  void* out = nullptr;  // [T, num_q_heads * head_dim]
  int64_t out_stride = 0;
  float* lse = nullptr;  // [T, num_q_heads], natural logarithm; null: not wanted

  const PrefillTile* tiles = nullptr;     // the plan's entries
  const int32_t* page_indices = nullptr;  // of the step
  // Two integers, zero before the first launch; every launch leaves them zero. Launches that may
  // run at the same time need a pair each.
  int32_t* counters = nullptr;
  int32_t max_blocks = 0;  // 0: one a multiprocessor; fewer leave room for another kernel
};

// Launches on `stream` of the current device; nothing to do when the plan is empty. Returns the
// first error of the launch itself.
cudaError_t launch_prefill(const PrefillParams& params, cudaStream_t stream);

}  // namespace tenon::flash
