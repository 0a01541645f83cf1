// Decode attention for Hopper (sm_90a): few query tokens per row against many keys in pages.
// Streams the KV cache once, near the speed of the memory; query heads of a group and the tokens of
// a short extend are packed into the rows of one matrix product (FlashDecoding with split keys;
// stream-K over a fixed grid, see decode_plan.h). See docs/design/flash_backend.md.
//
// Ownership:     everything is borrowed; device memory must live until the launch has finished.
// Thread safety: free functions without state.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "attention/backends/flash/decode_plan.h"
#include "attention/backends/flash/extras.h"

namespace tenon::flash {

// n / d for 0 <= n < 2^31 by a multiplication.
struct FastDivisor {
  int32_t divisor = 1;
  uint32_t factor = 1U << 31;
  int32_t shift = 31;

  FastDivisor() = default;
  explicit FastDivisor(int32_t d) : divisor(d) {
    int32_t bits = 0;
    while ((int64_t{1} << bits) < d) ++bits;
    shift = 31 + bits;
    factor = static_cast<uint32_t>(((uint64_t{1} << shift) + static_cast<uint64_t>(d) - 1) /
                                   static_cast<uint64_t>(d));
  }
};

// Which instantiation of the kernel.
struct DecodeVariant {
  int32_t head_dim = 0;   // of q, k and v; at most 256, a multiple of 8, or of 16 with 8-bit cells
  bool bf16 = true;       // q and out: bf16, or f16
  int32_t tile_rows = 0;  // 8, 16 or 64
  Cells cells = Cells::kHalf;
  bool extras = false;  // Extras are minded; implied by 8-bit cells

  [[nodiscard]] bool has_extras() const { return extras || cells != Cells::kHalf; }
  // Query rows that the kernel keeps for a tile, if it has to copy keys 16 bytes at a time.
  [[nodiscard]] int32_t most_rows() const {
    return has_extras() && tile_rows == 8 ? 16 : tile_rows;
  }

  friend bool operator==(const DecodeVariant&, const DecodeVariant&) = default;
};

[[nodiscard]] bool decode_supports(const DecodeVariant& variant);

// Floats that the partial results of one stretch take: two pieces at most.
[[nodiscard]] inline int64_t decode_partial_floats(const DecodeVariant& variant) {
  const int64_t padded = (variant.head_dim + 63) / 64 * 64;
  return 2 * variant.most_rows() * (padded + 2);
}

// Device pointers; strides in elements, multiples of 8; q, out and KV aligned to 16 bytes.
struct DecodeParams {
  const void* q = nullptr;  // [T, num_q_heads * head_dim]
  int64_t q_stride = 0;
  void* out = nullptr;  // [T, num_q_heads * head_dim]
  int64_t out_stride = 0;
  float* lse = nullptr;  // [T, num_q_heads], natural logarithm; null: not wanted
  // Results of tiles with DecodeTile::merge, which wait for others of their tokens.
  float* suffix_out = nullptr;  // [tokens * num_q_heads, head_dim]
  float* suffix_lse = nullptr;  // [tokens * num_q_heads], natural logarithm

  // K of a token and head is followed by its V. `swizzle`: 0, or 7 if the cells are swizzled
  // (KvLayout::kLBHNCSwizzled): then head_dim is a multiple of 64, page_size one of 8. With 8-bit
  // cells strides are multiples of 16.
  const void* kv = nullptr;
  int32_t swizzle = 0;
  int64_t page_stride = 0;
  int64_t head_stride = 0;
  int64_t token_stride = 0;
  int64_t token_scale_offset = 0;  // Cells::kI8: of a page's scales, see KvView; in bytes
  const int32_t* page_indices = nullptr;
  FastDivisor page_size;

  const DecodeTile* tiles = nullptr;
  const DecodeStretch* stretches = nullptr;
  float* partials = nullptr;  // [max_decode_stretches() * decode_partial_floats()]
  // [max_decode_stretches()] and [1], zero before the first launch; every launch leaves them zero.
  int32_t* counters = nullptr;
  int32_t* claims = nullptr;

  int32_t blocks = 0;  // of the grid
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  FastDivisor group;  // num_q_heads / num_kv_heads
  int32_t head_dim = 0;
  float score_scale = 0.0F;  // of q . k, times log2(e); positive
  float out_scale = 1.0F;
  bool causal = true;
  bool bf16 = true;  // as the variant says
  Extras extras;
};

// Whether K and V of a run of keys come by one bulk copy, and not 16 bytes at a time: narrow tiles
// over swizzled cells of tokens that follow each other in memory, runs of them in one page.
[[nodiscard]] bool decode_copies_in_bulk(const DecodeVariant& variant, const DecodeParams& params);

// Launches on `stream` of the current device. Returns the first error of the launch itself.
cudaError_t launch_decode(const DecodeVariant& variant,
                          const DecodeParams& params,
                          cudaStream_t stream);

}  // namespace tenon::flash
