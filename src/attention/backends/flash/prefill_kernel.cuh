// The prefill kernel. One block a multiprocessor stays for the whole launch and takes tiles of the
// work list by an atomic counter. Its last warpgroup loads: bulk tensor copies (or, for pages too
// small for them, 16-byte gathers) into a ring of K and V stages. The others compute, 64 query rows
// each: S = Q K^T and O += P V with wgmma, the softmax between them in registers, base 2 with the
// scale folded in. A warpgroup computes the softmax of block n while the tensor cores do P V of the
// block before (overlap within the warpgroup) and the other warpgroups' products (turns, taken with
// named barriers). Blocks of keys run from the last visible one to the first, so that the few that
// need a mask come first.
//
// Query rows of a tile are (token, head of the group) pairs when the group size is a power of two:
// the heads that share a KV head also share its loads.
#pragma once

#include <cuda.h>
#include <math_constants.h>

#include <cstdint>

#include "attention/backends/flash/prefill.h"
#include "attention/backends/flash/prefill_ptx.cuh"

namespace tenon::flash {

// How K and V come to shared memory.
enum class PrefillCopy {
  kBulk,    // bulk copies of 64 numbers by some keys; pages and activations
  kWide,    // bulk copies of whole heads by some keys; pages of a regular layout only
  kGather,  // 16 bytes at a time; anything
};

// What is known when the kernel is compiled.
template <int kHeadDimPadded_,
          int kBlockKeys_,
          int kConsumers_,
          bool kBf16_,
          PrefillCopy kCopy_,
          bool kTurns_ = true,
          bool kOverlap_ = true,
          int kStages_ = 2>
struct PrefillTraits {
  static constexpr int kDim = kHeadDimPadded_;
  static constexpr int kKeys = kBlockKeys_;       // keys of a block
  static constexpr int kConsumers = kConsumers_;  // computing warpgroups
  static constexpr bool kBf16 = kBf16_;
  static constexpr bool kGather = kCopy_ == PrefillCopy::kGather;
  static constexpr bool kWide = kCopy_ == PrefillCopy::kWide;
  static constexpr bool kTurns = kTurns_;
  static constexpr bool kOverlap = kOverlap_;

  static constexpr int kRows = 64 * kConsumers;  // query rows of a tile
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kStages = kStages_;          // of K and of V
  static constexpr int kSlices = (kDim + 63) / 64;  // slices of 64 numbers, 128 bytes a row
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 160 : 232;
  static constexpr int kLoaderRegisters = kConsumers == 3 ? 32 : 40;

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
  static constexpr int kOtherBytes = 1024 + 2 * kStages * kKvBytes + 320;
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
  void* out;
  int64_t out_stride;
  float* lse;
  // Gathers only.
  const void* k;
  const void* v;
  int64_t k_stride;
  int64_t v_stride;
  PrefillPages pages;
};

// A work item as the loader hands it to the consumers.
struct alignas(16) PrefillItem {
  int32_t q_begin;
  int32_t q_len;
  int32_t kv_len;
  int32_t visible;
  int32_t kv_begin;
  int32_t head;  // in units of the tile's packed heads
  int32_t ragged;
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

// ---- the loading warpgroup ----

// Four warps: two bring K, two V, each half of the copies of a block (a bulk copy out of a small
// page takes longer to issue than to run). Every warp goes through the items by itself. Items stay
// in shared memory, registers are few here.
template <class Traits, bool kIsK>
struct PrefillLoader {
  using Shared = PrefillShared<Traits>;
  const PrefillKernelParams& params;
  const Shared& shared;
  int lane;
  int half;      // which of the two warps
  int box = -1;  // of this lane's copy out of a page; -1: it has none
  int slice = 0;
  RingPosition<2> item_slot;
  RingPosition<Traits::kStages> slot;
  RingPosition<Traits::kQStages> q_slot;
  uint32_t pending = 0;  // gathers: the barrier to arrive at when the copies in flight are there

  __device__ PrefillLoader(const PrefillKernelParams& p, const Shared& s, int thread)
      : params(p), shared(s), lane(thread % 32), half(thread / 32) {
    if constexpr (!Traits::kGather) {
      const int boxes = Traits::kKeys / params.box_keys;
      const int copy = 2 * lane + half;
      slice = copy / boxes;
      if (slice < (Traits::kWide ? 1 : Traits::kSlices)) box = copy - slice * boxes;
    }
  }

  // The first warp draws the items and publishes them to the other warps of the block. It draws one
  // ahead of the one it publishes; lane i holds word i of the work list's entry.
  __device__ void run() {
    const bool draws = kIsK && half == 0;
    int index = blockIdx.x;
    int word = 0;
    int next = 0;
    if (draws) {
      word = fetch(index);
      next = draw_next();
    }
    for (;;) {
      PrefillItem* item = &shared.items[item_slot.index];
      if (draws) {
        publish(item, index, word);
        index = __shfl_sync(0xffffffffU, next, 0);
        word = fetch(index);
        if (index < params.num_items) next = draw_next();
      } else {
        ptx::barrier_wait(shared.item_full(item_slot.index), item_slot.parity);
      }
      const int num_blocks = item->num_blocks;
      if (num_blocks == 0) break;
      load(item, num_blocks);
      __syncwarp();
      if (lane == 0) ptx::barrier_arrive(shared.item_empty(item_slot.index));
      item_slot.advance();
    }
    // When every block has drawn its last item, the counters are made zero for the next launch.
    if (draws && lane == 0 &&
        atomicAdd(&params.counters[1], 1) == static_cast<int>(gridDim.x) - 1) {
      params.counters[0] = 0;
      params.counters[1] = 0;
    }
  }
  __device__ int draw_next() const {
    return lane == 0 ? static_cast<int>(gridDim.x) + atomicAdd(&params.counters[0], 1) : 0;
  }
  __device__ int fetch(int index) const {
    static_assert(sizeof(PrefillTile) == 32 && sizeof(PrefillItem) == 32);
    if (index >= params.num_items || lane >= 8) return 0;
    return reinterpret_cast<const int*>(params.tiles + index / params.heads_per_tile)[lane];
  }
  // PrefillTile and PrefillItem are the same but for `head` and `num_blocks`.
  __device__ void publish(PrefillItem* item, int index, int word) const {
    const int q_len = __shfl_sync(0xffffffffU, word, 1);
    const int kv_len = __shfl_sync(0xffffffffU, word, 2);
    const int last = __shfl_sync(0xffffffffU, word, 3) + (q_len - 1) * params.causal;
    if (lane == 5) word += index % params.heads_per_tile;
    if (lane == 7) {
      // A row without keys takes one block, all of it masked.
      word = index < params.num_items
                 ? max(1, (min(last, kv_len) + Traits::kKeys - 1) / Traits::kKeys)
                 : 0;
    }
    ptx::barrier_wait(shared.item_empty(item_slot.index), item_slot.parity ^ 1);
    if (lane < 8) reinterpret_cast<int*>(item)[lane] = word;
    __syncwarp();
    if (lane == 0) ptx::barrier_arrive(shared.item_full(item_slot.index));
  }

  __device__ void load(const PrefillItem* item, int num_blocks) {
    if (!kIsK && half == 0) load_q(item);
    const int kv_head = (item->head << params.pack_shift) / params.group;
    const int last = num_blocks - 1;
    if constexpr (Traits::kGather) {
      Rows rows = find_rows(item, kv_head, last);
      for (int n = last; n >= 0; --n) {
        const Rows next = find_rows(item, kv_head, n - 1);
        gather_block(item, rows);
        rows = next;
      }
      flush();
    } else {
      int page = page_of(item, last);
      for (int n = last; n >= 0; --n) {
        const int page_next = page_of(item, n - 1);
        copy_block(item, kv_head, n, page);
        page = page_next;
      }
    }
  }

  __device__ void load_q(const PrefillItem* item) {
    const uint32_t full = shared.q_full(q_slot.index);
    ptx::barrier_wait(shared.q_empty(q_slot.index), q_slot.parity ^ 1);
    if (lane == 0) {
      ptx::barrier_arrive_expect(full, Traits::kQBytes);
#pragma unroll 1
      for (int i = 0; i < Traits::kSlices; ++i) {
        ptx::tma_load_3d(shared.q_stage(q_slot.index) + i * Traits::kQSliceBytes, &params.q_map,
                         full, i * 64, item->head << params.pack_shift, item->q_begin);
      }
    }
    q_slot.advance();
    __syncwarp();
  }

  __device__ uint32_t full() const {
    return kIsK ? shared.k_full(slot.index) : shared.v_full(slot.index);
  }
  __device__ uint32_t empty() const {
    return kIsK ? shared.k_empty(slot.index) : shared.v_empty(slot.index);
  }
  __device__ uint32_t stage() const {
    return kIsK ? shared.k_stage(slot.index) : shared.v_stage(slot.index);
  }

  // The page that this lane copies from for block n of a paged row.
  __device__ int page_of(const PrefillItem* item, int n) const {
    const int key = n * Traits::kKeys + box * params.box_keys;
    if ((!Traits::kWide && item->ragged != 0) || n < 0 || box < 0 || key >= item->kv_len) return 0;
    return params.page_indices[item->kv_begin + key / params.page_size];
  }

  __device__ void copy_block(const PrefillItem* item, int kv_head, int n, int page) {
    ptx::barrier_wait(empty(), slot.parity ^ 1);
    const uint32_t full_barrier = full();
    if (!Traits::kWide && item->ragged != 0) {
      if (lane == 0) {
        if (half == 0) ptx::barrier_arrive_expect(full_barrier, Traits::kKvBytes);
        const CUtensorMap* map = kIsK ? &params.k_map : &params.v_map;
#pragma unroll 1
        for (int i = half; i < Traits::kSlices; i += 2) {
          ptx::tma_load_3d(stage() + i * Traits::kKvSliceBytes, map, full_barrier, i * 64, kv_head,
                           item->kv_begin + n * Traits::kKeys);
        }
      }
    } else {
      // Pages past the row's last are not touched.
      const int keys = min(item->kv_len - n * Traits::kKeys, Traits::kKeys);
      const int box_bytes = params.box_keys * 128;
      if (half == 0 && lane == 0) {
        const int boxes = (keys + params.box_keys - 1) / params.box_keys;
        ptx::barrier_arrive_expect(full_barrier, boxes * box_bytes * Traits::kSlices);
      }
      const int first = box * params.box_keys;
      if (box >= 0 && first < keys) {
        const CUtensorMap* map = kIsK ? &params.page_k_map : &params.page_v_map;
        const int token = (n * Traits::kKeys + first) % params.page_size;
        if constexpr (Traits::kWide) {
          ptx::tma_load_5d(stage() + box * box_bytes * Traits::kSlices, map, full_barrier,
                           token / 8, page * params.page_step + kv_head);
        } else {
          ptx::tma_load_4d(stage() + slice * Traits::kKvSliceBytes + box * box_bytes, map,
                           full_barrier, slice * 64, token, kv_head, page);
        }
      }
    }
    __syncwarp();
    slot.advance();
  }

  __device__ void flush() {
    if (pending == 0) return;
    ptx::copy_wait<0>();
    ptx::fence_async_shared();
    ptx::barrier_arrive(pending);
    pending = 0;
  }

  // Where row `key` begins, in units of 16 bytes; kNoRow past the row's keys.
  static constexpr uint32_t kNoRow = 0xffffffffU;
  __device__ uint32_t row_offset(const PrefillItem* item, int kv_head, int key) const {
    if (key >= item->kv_len) return kNoRow;
    int64_t offset;
    if (item->ragged != 0) {
      offset = (item->kv_begin + key) * (kIsK ? params.k_stride : params.v_stride) +
               kv_head * params.head_dim;
    } else {
      const int entry = key / params.page_size;
      offset = params.page_indices[item->kv_begin + entry] * params.pages.page_stride +
               kv_head * params.pages.head_stride +
               (key - entry * params.page_size) * params.pages.token_stride +
               (kIsK ? 0 : params.pages.v_offset);
    }
    return static_cast<uint32_t>(offset / 8);
  }

  // Lane i finds rows i, i + 32, ... of the warp's half of block n.
  static constexpr int kRowsOfWarp = Traits::kKeys / 2;
  static constexpr int kRowsOfLane = (kRowsOfWarp + 31) / 32;
  struct Rows {
    uint32_t offset[kRowsOfLane];
  };
  __device__ Rows find_rows(const PrefillItem* item, int kv_head, int n) const {
    Rows rows;
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) {
      const int key = n * Traits::kKeys + half * kRowsOfWarp + i * 32 + lane;
      rows.offset[i] = n < 0 ? kNoRow : row_offset(item, kv_head, key);
    }
    return rows;
  }

  // 64 threads bring a block row by row. Rows past kv_len and columns past head_dim become zero.
  __device__ void gather_block(const PrefillItem* item, const Rows& rows) {
    constexpr int kChunks = Traits::kSlices * 8;  // 16 bytes each, of a row
    static_assert(kRowsOfWarp % 16 == 0);
    const auto* base = static_cast<const uint4*>(item->ragged != 0 ? (kIsK ? params.k : params.v)
                                                                   : params.pages.base);
    if (!ptx::barrier_try(empty(), slot.parity ^ 1)) {
      // The consumers may need what is in flight before they free this stage.
      flush();
      ptx::barrier_wait(empty(), slot.parity ^ 1);
    }
    const uint32_t to = stage();
#pragma unroll
    for (int part = 0; part < kRowsOfLane; ++part) {
#pragma unroll 4
      for (int i = 0; i < min(32, kRowsOfWarp - part * 32) * kChunks / 32; ++i) {
        const int row = (i * 32 + lane) / kChunks;
        const int chunk = (i * 32 + lane) % kChunks;
        const uint32_t offset = __shfl_sync(0xffffffffU, rows.offset[part], row);
        const bool valid = offset != kNoRow && chunk * 8 < params.head_dim;
        const int at = half * kRowsOfWarp + part * 32 + row;
        ptx::copy_16(
            to + (chunk / 8) * Traits::kKvSliceBytes + at * 128 + (((chunk ^ at) & 7) << 4),
            base + (valid ? offset + chunk : 0), valid);
      }
    }
    ptx::copy_commit();
    if (pending != 0) {
      ptx::copy_wait<1>();
      ptx::fence_async_shared();
      ptx::barrier_arrive(pending);
    }
    pending = full();
    slot.advance();
  }
};

// ---- the computing warpgroups ----

template <class Traits>
struct PrefillConsumer {
  using Shared = PrefillShared<Traits>;
  static constexpr int kScores = Traits::kKeys / 2;  // of a thread: 64 x keys over 128 threads
  static constexpr int kOutputs = Traits::kDim / 2;
  using ScoreMma = ptx::Wgmma<Traits::kKeys, Traits::kBf16>;
  using OutputMma = ptx::Wgmma<Traits::kDim, Traits::kBf16>;

  const PrefillKernelParams& params;
  const Shared& shared;
  int warpgroup;
  int thread;  // of the warpgroup
  RingPosition<2> item_slot;
  RingPosition<Traits::kQStages> q_slot;
  RingPosition<Traits::kStages> k_slot, v_slot;

  // Of the item at hand. Each thread has two rows of the tile, 8 apart.
  float o[kOutputs];
  float s[kScores];         // scores, then probabilities, of the block at hand
  uint32_t p[kScores / 2];  // probabilities of the block before, as the product's operand
  float row_max[2];         // of the scores, unscaled, or a little less
  float row_sum[2];         // this thread's share
  float correction[2];      // of o, from the last softmax(); 1 unless grown
  bool grown[2];
  int limit[2];  // keys visible

  __device__ PrefillConsumer(const PrefillKernelParams& p_, const Shared& s_, int wg, int t)
      : params(p_), shared(s_), warpgroup(wg), thread(t) {}

  __device__ bool first_lane() const { return thread % 32 == 0; }
  __device__ int tile_row(int i) const {
    return warpgroup * 64 + (thread / 32) * 16 + (thread % 32) / 4 + 8 * i;
  }

  __device__ __forceinline__ void run() {
    if constexpr (Traits::kTurns) {
      if (warpgroup == 0) ptx::named_arrive(turn(0), 256);
    }
    // The first scores of an item are computed while the results of the one before are stored.
    // Behind the last item they are computed from whatever lies there, and not used.
    bool more = begin_item();
    issue_scores();
    ptx::wgmma_wait<0>();
    ptx::pin(s);
    while (more) {
      const PrefillItem item = shared.items[item_slot.index];
      __syncwarp();
      if (first_lane()) ptx::barrier_arrive(shared.item_empty(item_slot.index));
      item_slot.advance();
      compute(item);
      more = begin_item();
      issue_scores();
      ptx::wgmma_wait<1>();
      ptx::pin(o);
      release_v();
      store(item);
      ptx::wgmma_wait<0>();
      ptx::pin(s);
    }
  }

  // Waits for the next item and what its first scores need; false: there is none.
  __device__ __forceinline__ bool begin_item() const {
    ptx::barrier_wait(shared.item_full(item_slot.index), item_slot.parity);
    if (shared.items[item_slot.index].num_blocks == 0) return false;
    ptx::barrier_wait(shared.q_full(q_slot.index), q_slot.parity);
    ptx::barrier_wait(shared.k_full(k_slot.index), k_slot.parity);
    return true;
  }

  static __device__ int turn(int wg) { return 1 + wg; }  // barrier 0 is __syncthreads()
  __device__ void turn_begin() const {
    if constexpr (Traits::kTurns) ptx::named_sync(turn(warpgroup), 256);
  }
  __device__ void turn_end() const {
    if constexpr (Traits::kTurns) {
      ptx::named_arrive(turn(warpgroup + 1 == Traits::kConsumers ? 0 : warpgroup + 1), 256);
    }
  }

  __device__ __forceinline__ void issue_scores() {
    const uint64_t a =
        ptx::k_major_operand(shared.q_stage(q_slot.index) + warpgroup * 64 * 128, 1024);
    const uint64_t b = ptx::k_major_operand(shared.k_stage(k_slot.index), Traits::kKvGroupBytes);
    ptx::pin(s);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < Traits::kDim / 16; ++step) {
      const int slice = step / 4;
      ScoreMma::ss(s, a + ((slice * Traits::kQSliceBytes + (step % 4) * 32) >> 4),
                   b + ((slice * Traits::kKvSliceBytes + (step % 4) * 32) >> 4), step != 0);
    }
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ void issue_outputs() {
    const uint64_t b = ptx::mn_major_operand(shared.v_stage(v_slot.index), Traits::kKvGroupBytes,
                                             Traits::kKvSliceBytes);
    ptx::pin(o);
    ptx::pin(p);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < Traits::kKeys / 16; ++step) {
      OutputMma::rs(o, &p[step * 4], b + ((step * 2 * Traits::kKvGroupBytes) >> 4), true);
    }
    ptx::wgmma_commit();
  }
  __device__ void release_k() {
    if (first_lane()) ptx::barrier_arrive(shared.k_empty(k_slot.index));
    k_slot.advance();
  }
  __device__ void release_v() {
    if (first_lane()) ptx::barrier_arrive(shared.v_empty(v_slot.index));
    v_slot.advance();
  }

  // Scores of block n to probabilities; new maxima, sums and the factors for what was summed
  // before.
  template <bool kMask>
  __device__ __forceinline__ void softmax(int n) {
    if constexpr (kMask) {
      const int first = n * Traits::kKeys + 2 * (thread % 4);
#pragma unroll
      for (int j = 0; j < kScores / 4; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (first + 8 * j + (e & 1) >= limit[e >> 1]) s[4 * j + e] = -CUDART_INF_F;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float best = row_max[i];
#pragma unroll
      for (int j = 0; j < kScores / 4; ++j) {
        best = fmaxf(best, fmaxf(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]));
      }
      best = fmaxf(best, __shfl_xor_sync(0xffffffffU, best, 1));
      best = fmaxf(best, __shfl_xor_sync(0xffffffffU, best, 2));
      // A maximum that grows by little stays: probabilities up to 2^8 do no harm, and what was
      // summed before needs no correction.
      const float old = row_max[i];
      grown[i] = (best - old) * params.scale_log2 > 8.0F;
      row_max[i] = grown[i] ? best : old;
      // A row without a visible key so far has maximum -inf; 0 keeps the exponents defined.
      const float offset =
          kMask && row_max[i] == -CUDART_INF_F ? 0.0F : row_max[i] * params.scale_log2;
      correction[i] = grown[i] ? ptx::exp2_approx(old * params.scale_log2 - offset) : 1.0F;
      float sum = row_sum[i] * correction[i];
#pragma unroll
      for (int j = 0; j < kScores / 4; ++j) {
#pragma unroll
        for (int e = 2 * i; e < 2 * i + 2; ++e) {
          s[4 * j + e] = ptx::exp2_approx(s[4 * j + e] * params.scale_log2 - offset);
          sum += s[4 * j + e];
        }
      }
      row_sum[i] = sum;
    }
  }
  // The assembler likes to move the exponentials behind the next wait, where nothing is left to
  // overlap with. It does not move them behind a store that depends on them; this one never
  // happens.
  __device__ __forceinline__ void hold_softmax() const {
    ptx::store_shared_if_negative(shared.spare(), row_sum[0] + row_sum[1]);
  }
  __device__ __forceinline__ void pack_probabilities() {
#pragma unroll
    for (int j = 0; j < kScores / 2; ++j) {
      p[j] = ptx::pack_16<Traits::kBf16>(s[2 * j], s[2 * j + 1]);
    }
  }
  __device__ __forceinline__ void correct_outputs() {
    if (!__any_sync(0xffffffffU, grown[0] || grown[1])) return;
#pragma unroll
    for (int j = 0; j < kOutputs / 4; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) o[4 * j + e] *= correction[e >> 1];
    }
  }

  // P V of the block before and the scores of block n, which becomes the block before.
  template <bool kMask>
  __device__ __forceinline__ void step(int n) {
    ptx::barrier_wait(shared.k_full(k_slot.index), k_slot.parity);
    turn_begin();
    if constexpr (Traits::kOverlap) {
      issue_scores();
      ptx::barrier_wait(shared.v_full(v_slot.index), v_slot.parity);
      issue_outputs();
      turn_end();
      ptx::wgmma_wait<1>();
      ptx::pin(s);
      release_k();
      softmax<kMask>(n);
      hold_softmax();
      ptx::wgmma_wait<0>();
      ptx::pin(o);
      release_v();
    } else {
      ptx::barrier_wait(shared.v_full(v_slot.index), v_slot.parity);
      issue_outputs();
      ptx::wgmma_wait<0>();
      ptx::pin(o);
      release_v();
      issue_scores();
      turn_end();
      ptx::wgmma_wait<0>();
      ptx::pin(s);
      release_k();
      softmax<kMask>(n);
    }
    pack_probabilities();
    correct_outputs();
  }

  // From the first scores to the last P V, which is still under way at the end.
  __device__ __forceinline__ void compute(const PrefillItem& item) {
#pragma unroll
    for (int j = 0; j < kOutputs; ++j) o[j] = 0.0F;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      row_max[i] = -CUDART_INF_F;
      row_sum[i] = 0.0F;
      limit[i] =
          min(item.kv_len, item.visible + (tile_row(i) >> params.pack_shift) * params.causal);
    }
    release_k();
    int n = item.num_blocks - 1;
    // Blocks below this one are visible as a whole to every row of the tile.
    const int unmasked = min(item.visible, item.kv_len) / Traits::kKeys;
    if (n >= unmasked) {
      softmax<true>(n);
    } else {
      softmax<false>(n);
    }
    pack_probabilities();
    if constexpr (!Traits::kGather) {
      // Rows of V past kv_len are no keys of this row, and 0 times what lies there may be NaN. All
      // warpgroups write the same zeros, so none waits for the others.
      const int end = item.kv_len - n * Traits::kKeys;
      if (end < Traits::kKeys) clear_v_tail(end);
    }

    for (--n; n >= unmasked; --n) step<true>(n);
    for (; n >= 0; --n) step<false>(n);
    if (first_lane()) ptx::barrier_arrive(shared.q_empty(q_slot.index));
    q_slot.advance();

    ptx::barrier_wait(shared.v_full(v_slot.index), v_slot.parity);
    issue_outputs();
  }

  __device__ __forceinline__ void clear_v_tail(int end) {
    ptx::barrier_wait(shared.v_full(v_slot.index), v_slot.parity);
    const uint32_t base = shared.v_stage(v_slot.index);
    const int chunks = (Traits::kKeys - end) * 8;
    for (int slice = 0; slice < Traits::kSlices; ++slice) {
      for (int i = thread; i < chunks; i += 128) {
        const int key = end + i / 8;
        ptx::store_shared_zero_16(base + key / 8 * Traits::kKvGroupBytes +
                                  slice * Traits::kKvSliceBytes + key % 8 * 128 + i % 8 * 16);
      }
    }
    ptx::fence_async_shared();
    ptx::named_sync(turn(Traits::kConsumers + warpgroup), 128);
  }

  __device__ __forceinline__ void store(const PrefillItem& item) {
    const int pack_mask = (1 << params.pack_shift) - 1;
    const int quad = thread % 4;
    uint16_t* out_row[2];
    bool valid[2];
    float inverse[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = tile_row(i);
      const int token = row >> params.pack_shift;
      const int head = (item.head << params.pack_shift) + (row & pack_mask);
      float sum = row_sum[i];
      sum += __shfl_xor_sync(0xffffffffU, sum, 1);
      sum += __shfl_xor_sync(0xffffffffU, sum, 2);
      inverse[i] = sum > 0.0F ? 1.0F / sum : sum;  // a NaN stays one
      valid[i] = token < item.q_len;
      const int64_t token_index = item.q_begin + token;
      out_row[i] = static_cast<uint16_t*>(params.out) + token_index * params.out_stride +
                   head * params.head_dim;
      if (params.lse != nullptr && valid[i] && quad == 0) {
        params.lse[token_index * params.num_q_heads + head] =
            sum == 0.0F ? -CUDART_INF_F : row_max[i] * params.scale + logf(sum);
      }
    }
    // Transposes within the four threads of a row, so that each stores 16 bytes at a time.
#pragma unroll
    for (int block = 0; block < Traits::kDim / 32; ++block) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t w[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int at = (block * 4 + j) * 4 + 2 * i;
          w[j] = ptx::pack_16<Traits::kBf16>(o[at] * inverse[i], o[at + 1] * inverse[i]);
        }
        exchange(w[0], w[1], quad & 1, 1);
        exchange(w[2], w[3], quad & 1, 1);
        exchange(w[0], w[2], quad & 2, 2);
        exchange(w[1], w[3], quad & 2, 2);
        const int column = (block * 4 + quad) * 8;
        if (valid[i] && column < params.head_dim) {
          *reinterpret_cast<uint4*>(out_row[i] + column) = make_uint4(w[0], w[1], w[2], w[3]);
        }
      }
    }
  }
  // One step of a transposition between this thread and the one `distance` away.
  static __device__ __forceinline__ void exchange(uint32_t& low,
                                                  uint32_t& high,
                                                  bool upper,
                                                  int distance) {
    const uint32_t received = __shfl_xor_sync(0xffffffffU, upper ? low : high, distance);
    if (upper) {
      low = received;
    } else {
      high = received;
    }
  }
};

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    prefill_kernel(const __grid_constant__ PrefillKernelParams params) {
  extern __shared__ uint8_t raw[];
  const PrefillShared<Traits> shared(raw);
  const int warpgroup = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / 128, 0);
  if (threadIdx.x == 0) {
    constexpr int kWarps = 4 * Traits::kConsumers;
    constexpr int kLoadArrivals = Traits::kGather ? 64 : 1;
    for (int i = 0; i < 2; ++i) {
      ptx::barrier_init(shared.q_full(i), 1);
      ptx::barrier_init(shared.q_empty(i), kWarps);
      ptx::barrier_init(shared.item_full(i), 1);
      ptx::barrier_init(shared.item_empty(i), kWarps + 4);  // and the loaders
    }
    for (int i = 0; i < Traits::kStages; ++i) {
      ptx::barrier_init(shared.k_full(i), kLoadArrivals);
      ptx::barrier_init(shared.v_full(i), kLoadArrivals);
      ptx::barrier_init(shared.k_empty(i), kWarps);
      ptx::barrier_init(shared.v_empty(i), kWarps);
    }
    ptx::barrier_init_fence();
    ptx::prefetch_map(&params.q_map);
  }
  __syncthreads();
  if (warpgroup == Traits::kConsumers) {
    ptx::registers_lower<Traits::kLoaderRegisters>();
    const int thread = static_cast<int>(threadIdx.x) % 128;
    if (thread < 64) {
      PrefillLoader<Traits, true>(params, shared, thread).run();
    } else {
      PrefillLoader<Traits, false>(params, shared, thread - 64).run();
    }
  } else {
    ptx::registers_raise<Traits::kConsumerRegisters>();
    PrefillConsumer<Traits>(params, shared, warpgroup, static_cast<int>(threadIdx.x) % 128).run();
  }
}

}  // namespace tenon::flash
