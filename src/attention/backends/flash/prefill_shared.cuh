// What both sides of the prefill kernel know: shapes, parameters, work items, shared memory. Part
// of prefill_kernel.cuh.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "attention/backends/flash/prefill.h"
#include "attention/backends/flash/prefill_ptx.cuh"
#include "attention/backends/flash/prefix.h"

namespace tenon::flash {

// How K and V come to shared memory.
enum class PrefillCopy {
  kBulk,     // bulk copies of 64 numbers by some keys; pages and activations
  kWide,     // bulk copies of whole heads by some keys; pages of a regular layout only
  kGather,   // 16 bytes at a time; anything
  kConvert,  // the same of 8-bit cells, which the loader makes 16-bit numbers of
};

// What is known when the kernel is compiled.
template <int kHeadDimPadded_,
          int kBlockKeys_,
          int kConsumers_,
          bool kBf16_,
          PrefillCopy kCopy_,
          bool kExtras_ = false,
          Cells kCells_ = Cells::kHalf,
          bool kTurns_ = true,
          bool kOverlap_ = true,
          int kStages_ = 2,
          bool kPrefix_ = false>
struct PrefillTraits {
  static constexpr int kDim = kHeadDimPadded_;
  static constexpr int kKeys = kBlockKeys_;       // keys of a block
  static constexpr int kConsumers = kConsumers_;  // computing warpgroups
  static constexpr bool kBf16 = kBf16_;
  static constexpr bool kExtras = kExtras_;
  static constexpr bool kConvert = kCopy_ == PrefillCopy::kConvert;
  static constexpr Cells kCells = kCells_;
  static constexpr bool kTokenScales = kCells == Cells::kI8;
  static constexpr bool kGather = kCopy_ == PrefillCopy::kGather || kConvert;
  static constexpr bool kWide = kCopy_ == PrefillCopy::kWide;
  static constexpr bool kTurns = kTurns_;
  static constexpr bool kOverlap = kOverlap_;
  // The prefix pass of cascade attention (prefix.h): the query tokens of a tile lie anywhere in the
  // batch, keys are a range of pages that all of them see, results are partial ones in f32.
  static constexpr bool kPrefix = kPrefix_;

  static constexpr int kRows = 64 * kConsumers;  // query rows of a tile
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kStages = kStages_;          // of K and of V
  static constexpr int kSlices = (kDim + 63) / 64;  // slices of 64 numbers, 128 bytes a row
  static constexpr int kConsumerRegisters = (kConsumers == 3 ? 160 : 232) - (kConvert ? 16 : 0);
  static constexpr int kLoaderRegisters =
      (kConsumers == 3 ? 32 : 40) + (kConvert ? kConsumers * 16 : 0);

  static constexpr int kQSliceBytes = kRows * 128;
  static constexpr int kQBytes = kSlices * kQSliceBytes;
  static constexpr int kKvBytes = kSlices * kKeys * 128;  // of K or V of one stage
  // Where they lie: number d of key k is, swizzled, at
  // k / 8 * kKvGroupBytes + d / 64 * kKvSliceBytes + k % 8 * 128 + d % 64 * 2.
  static constexpr int kKvGroupBytes = kWide ? kSlices * 1024 : 1024;
  static constexpr int kKvSliceBytes = kWide ? 1024 : kKeys * 128;
  // Aligned start, K and V, barriers and the ring of work items; queries twice where they fit, so
  // that the next tile's are there in time.
  static constexpr int kSharedLimit = 227 * 1024;
  // 8-bit cells on their way, and for each key of a stage of K its scale, and V's as log2 and 1 /
  // v.
  static constexpr int kStagingBytes = kConvert ? 2 * kKeys * kSlices * 64 : 0;
  static constexpr int kScaleBytes = kTokenScales ? 12 * kKeys : 0;
  static constexpr int kOtherBytes =
      1024 + 2 * kStages * kKvBytes + 320 + kStagingBytes + kStages * kScaleBytes;
  static constexpr int kQStages = kOtherBytes + 2 * kQBytes <= kSharedLimit ? 2 : 1;
  static constexpr int kSharedBytes = kOtherBytes + kQStages * kQBytes;
  static_assert(kSharedBytes <= kSharedLimit && kStages <= 4);
  static_assert(kDim % 32 == 0 && kKeys % 32 == 0);
};

// How the kernel gets its parameters; fields as in PrefillParams.
struct PrefillKernelParams {
  CUtensorMap q_map;  // [T, q heads, d], boxes of [rows / pack, pack, 64]
  CUtensorMap k_map;  // [T, kv heads, d], boxes of [keys, 1, 64]
  CUtensorMap v_map;
  // [pages, kv heads, tokens, d], boxes of [1, 1, box_keys, 64]; or, copying wide, [pages and
  // heads, tokens / 8, d / 64, 8, 64], boxes of [1, box_keys / 8, all, 8, 64].
  CUtensorMap page_k_map;
  CUtensorMap page_v_map;
  const PrefillTile* tiles;
  const int32_t* page_indices;
  int32_t* counters;
  int32_t num_items;  // tiles x heads_per_tile
  int32_t heads_per_tile;
  int32_t pack_shift;  // log2 of the query heads in a tile
  int32_t group;       // query heads of a KV head
  int32_t num_q_heads;
  int32_t head_dim;
  int32_t page_size;
  int32_t box_keys;   // keys of one bulk copy out of a page
  int32_t page_step;  // copying wide: entries of the map's last dimension from page to page
  int32_t causal;     // 0 or 1
  float scale;        // of q . k
  float scale_log2;   // the same times log2(e)
  float out_scale;    // of the outputs; with extras, as are the following
  Extras extras;
  void* out;
  int64_t out_stride;
  float* lse;
  // Gathers only.
  const void* k;
  const void* v;
  int64_t k_stride;
  int64_t v_stride;
  PrefillPages pages;
  PrefixArrays prefix;  // of the prefix pass only
};

// The first block of keys that a tile reads: others are before the window of all its rows.
template <class Traits>
__device__ __forceinline__ int first_block(const PrefillKernelParams& params, int visible) {
  if constexpr (!Traits::kExtras) return 0;
  return max(visible - params.extras.window, 0) / Traits::kKeys;
}

// A work item as the loader hands it to the consumers.
struct alignas(16) PrefillItem {
  int32_t q_begin;
  int32_t q_len;
  int32_t kv_len;
  int32_t visible;
  int32_t kv_begin;
  int32_t head;        // in units of the tile's packed heads
  int32_t ragged;      // in the prefix pass: as PrefixTile
  int32_t num_blocks;  // of keys; 0: no more items
};

// Shared-memory addresses.
template <class Traits>
struct PrefillShared {
  uint32_t q, k, v, barriers;
  PrefillItem* items;  // ring of 2

  __device__ explicit PrefillShared(uint8_t* raw) {
    const uint32_t raw_address = ptx::shared_address(raw);
    const uint32_t base = (raw_address + 1023) & ~1023U;
    q = base;
    k = q + Traits::kQStages * Traits::kQBytes;
    v = k + Traits::kStages * Traits::kKvBytes;
    barriers = v + Traits::kStages * Traits::kKvBytes;
    items = reinterpret_cast<PrefillItem*>(raw + (barriers + 192 - raw_address));
  }
  __device__ uint32_t k_stage(int stage) const { return k + stage * Traits::kKvBytes; }
  __device__ uint32_t v_stage(int stage) const { return v + stage * Traits::kKvBytes; }
  __device__ uint32_t q_stage(int stage) const { return q + stage * Traits::kQBytes; }
  __device__ uint32_t q_full(int stage) const { return barriers + 8 * stage; }
  __device__ uint32_t q_empty(int stage) const { return barriers + 16 + 8 * stage; }
  __device__ uint32_t item_full(int i) const { return barriers + 32 + 8 * i; }
  __device__ uint32_t item_empty(int i) const { return barriers + 48 + 8 * i; }
  __device__ uint32_t k_full(int stage) const { return barriers + 64 + 8 * stage; }
  __device__ uint32_t k_empty(int stage) const { return barriers + 96 + 8 * stage; }
  __device__ uint32_t v_full(int stage) const { return barriers + 128 + 8 * stage; }
  __device__ uint32_t v_empty(int stage) const { return barriers + 160 + 8 * stage; }
  // After the barriers come the items, then a word that nothing uses.
  __device__ uint32_t spare() const { return barriers + 256; }
  __device__ uint32_t staging() const { return barriers + 320; }
  // Of key i of a stage: K's scale at 4 i, then all of V's as log2, then all of 1 / v.
  __device__ uint32_t scales(int stage) const {
    return staging() + Traits::kStagingBytes + stage * Traits::kScaleBytes;
  }
};

// Position in a ring of kSize: index, and the parity of the phase that is waited for next.
template <int kSize>
struct RingPosition {
  int index = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++index == kSize) {
      index = 0;
      parity ^= 1;
    }
  }
};

}  // namespace tenon::flash
