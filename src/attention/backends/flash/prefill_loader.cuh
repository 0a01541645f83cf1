// The loading warpgroup of the prefill kernel. Part of prefill_kernel.cuh.
#pragma once

#include <cstdint>

#include "attention/backends/flash/decode_rules.cuh"
#include "attention/backends/flash/prefill_convert.cuh"
#include "attention/backends/flash/prefill_shared.cuh"

namespace tenon::flash {

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
  int num_items;

  __device__ PrefillLoader(const PrefillKernelParams& p, const Shared& s, int thread)
      : params(p), shared(s), lane(thread % 32), half(thread / 32), num_items(p.num_items) {
    if constexpr (Traits::kPrefix) num_items = __ldg(p.prefix.num_tiles);
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
        if (index < num_items) next = draw_next();
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
    if (index >= num_items || lane >= 8) return 0;
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
      word =
          index < num_items ? max(1, (min(last, kv_len) + Traits::kKeys - 1) / Traits::kKeys) : 0;
    }
    ptx::barrier_wait(shared.item_empty(item_slot.index), item_slot.parity ^ 1);
    if (lane < 8) reinterpret_cast<int*>(item)[lane] = word;
    __syncwarp();
    if (lane == 0) ptx::barrier_arrive(shared.item_full(item_slot.index));
  }

  __device__ static bool is_ragged(const PrefillItem* item) {
    return !Traits::kPrefix && item->ragged != 0;
  }

  __device__ void load(const PrefillItem* item, int num_blocks) {
    if (!kIsK && half == 0) load_q(item);
    const int kv_head =
        Traits::kPrefix ? item->head : (item->head << params.pack_shift) / params.group;
    const int last = num_blocks - 1;
    const int first = first_block<Traits>(params, item->visible);
    if constexpr (Traits::kGather) {
      if constexpr (Traits::kConvert) {
        convert(item, kv_head, last, first);
        return;
      }
      Rows rows = find_rows(item, kv_head, last);
      for (int n = last; n >= first; --n) {
        const Rows next = find_rows(item, kv_head, n - 1);
        gather_block(item, rows);
        rows = next;
      }
      flush();
    } else {
      int page = page_of(item, last);
      for (int n = last; n >= first; --n) {
        const int page_next = page_of(item, n - 1);
        copy_block(item, kv_head, n, page);
        page = page_next;
      }
    }
  }

  __device__ void load_q(const PrefillItem* item) {
    const uint32_t full = shared.q_full(q_slot.index);
    ptx::barrier_wait(shared.q_empty(q_slot.index), q_slot.parity ^ 1);
    if constexpr (Traits::kPrefix) {
      gather_q(item, full);
    } else if (lane == 0) {
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

  // The heads of a group of one token are a copy. Rows past the tile's end keep what lies there.
  __device__ void gather_q(const PrefillItem* item, uint32_t full) {
    const int q_len = item->q_len;
    const int token_bytes = params.group * 128;
    if (lane == 0) {
      ptx::barrier_arrive_expect(full,
                                 static_cast<uint32_t>(q_len * token_bytes * Traits::kSlices));
    }
    __syncwarp();
    for (int i = lane; i < q_len; i += 32) {
      const int token = __ldg(params.prefix.tokens + item->q_begin + i);
#pragma unroll 1
      for (int slice = 0; slice < Traits::kSlices; ++slice) {
        ptx::tma_load_3d(
            shared.q_stage(q_slot.index) + slice * Traits::kQSliceBytes + i * token_bytes,
            &params.q_map, full, slice * 64, item->head * params.group, token);
      }
    }
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
    if ((!Traits::kWide && is_ragged(item)) || n < 0 || box < 0 || key >= item->kv_len) return 0;
    return params.page_indices[item->kv_begin + key / params.page_size];
  }

  __device__ void copy_block(const PrefillItem* item, int kv_head, int n, int page) {
    ptx::barrier_wait(empty(), slot.parity ^ 1);
    const uint32_t full_barrier = full();
    if (!Traits::kWide && is_ragged(item)) {
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
    if (is_ragged(item)) {
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
    const auto* base = static_cast<const uint4*>(is_ragged(item) ? (kIsK ? params.k : params.v)
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

  // ---- 8-bit cells: 16 bytes at a time to a lane's own places in the staging memory; from there,
  // as 16-bit numbers, to the stage by the same lane ----

  static constexpr int kPieces = Traits::kSlices * 4;  // of 16 cells, of a row
  static constexpr int kPiecesOfLane = kRowsOfWarp * kPieces / 32;
  // Pieces that are waited for together; all but one of the groups are in flight.
  static constexpr int kGroup = kPiecesOfLane >= 8 ? 4 : 2;
  static constexpr int kGroups = kPiecesOfLane / kGroup;
  // A group's rows are in 32 that begin at a multiple of 32.
  static_assert(!Traits::kConvert || kPiecesOfLane % kGroup == 0);
  static_assert(!Traits::kConvert || kRowsOfLane == 1 || kPieces % kGroup == 0);
  template <typename Value>
  __device__ static Value pick(const Value (&values)[kRowsOfLane], int index) {
    return kRowsOfLane == 1 || index == 0 ? values[0] : values[kRowsOfLane - 1];
  }

  // The pages of this lane's rows of block n; of rows that do not exist, anything.
  struct RowPages {
    int page[kRowsOfLane];
  };
  __device__ int lane_key(int n, int i) const {
    return n * Traits::kKeys + half * kRowsOfWarp + i * 32 + lane;
  }
  __device__ RowPages find_pages(const PrefillItem* item, int n) const {
    RowPages pages;
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) {
      const int key = lane_key(n, i);
      const bool there = n >= 0 && key < item->kv_len;
      pages.page[i] = there ? params.page_indices[item->kv_begin + key / params.page_size] : 0;
    }
    return pages;
  }
  // Where they begin, in units of 16 bytes, and the scales of their tokens.
  struct CellRows {
    uint32_t offset[kRowsOfLane];
    float k_scale[kRowsOfLane];
    float v_scale[kRowsOfLane];
  };
  __device__ CellRows find_cells(const PrefillItem* item,
                                 const RowPages& pages,
                                 int kv_head,
                                 int n) const {
    CellRows rows;
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) {
      const int key = lane_key(n, i);
      const bool there = n >= 0 && key < item->kv_len;
      const int in_page = key % params.page_size;
      const int64_t page = pages.page[i] * params.pages.page_stride;
      const int64_t offset =
          page + kv_head * params.pages.head_stride + in_page * params.pages.token_stride;
      rows.offset[i] = there ? static_cast<uint32_t>(offset / 16) : kNoRow;
      if constexpr (Traits::kTokenScales && kIsK) {
        const auto* scales =
            reinterpret_cast<const float*>(static_cast<const uint8_t*>(params.pages.base) + page +
                                           params.pages.token_scale_offset) +
            2 * kv_head * params.page_size + in_page;
        rows.k_scale[i] = there ? __ldg(scales) : 0.0F;
        rows.v_scale[i] = there ? __ldg(scales + params.page_size) : 1.0F;
      }
    }
    return rows;
  }

  __device__ uint32_t staged(int piece) const {
    constexpr int kWarpBytes = Traits::kStagingBytes / 4;
    return shared.staging() + ((kIsK ? 0 : 2) + half) * kWarpBytes + piece * 512 + lane * 16;
  }
  // Rows past kv_len and columns past head_dim become zero.
  __device__ void copy_group(const CellRows& rows, int group) const {
    const auto* base = static_cast<const uint4*>(params.pages.base);
    const int first_piece = kIsK ? 0 : params.head_dim / 16;
    // Pieces of a group are of rows of one lane slot: see the assertion.
    const uint32_t offsets = pick(rows.offset, group * kGroup * 32 / kPieces / 32);
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      const int i = group * kGroup + j;
      const int row = (i * 32 + lane) / kPieces;
      const int piece = (i * 32 + lane) % kPieces;
      const uint32_t offset = __shfl_sync(0xffffffffU, offsets, row % 32);
      const bool valid = offset != kNoRow && piece * 16 < params.head_dim;
      const int swizzle = params.pages.swizzled ? row % 8 : 0;
      ptx::copy_16(staged(i), base + (valid ? offset + ((first_piece + piece) ^ swizzle) : 0),
                   valid);
    }
    ptx::copy_commit();
  }
  __device__ void convert_group(int group) const {
    const uint32_t to = stage();
    uint4 cells[kGroup];
#pragma unroll
    for (int j = 0; j < kGroup; ++j) cells[j] = load_shared_16(staged(group * kGroup + j));
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      const int i = group * kGroup + j;
      const int at = half * kRowsOfWarp + (i * 32 + lane) / kPieces;
      const int piece = (i * 32 + lane) % kPieces;
      const uint32_t words[4] = {cells[j].x, cells[j].y, cells[j].z, cells[j].w};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t out[4];
        convert_cells<Traits::kCells, Traits::kBf16>(words[2 * h], out[0], out[1]);
        convert_cells<Traits::kCells, Traits::kBf16>(words[2 * h + 1], out[2], out[3]);
        const int chunk = 2 * piece + h;
        ptx::store_shared_16(
            to + (chunk / 8) * Traits::kKvSliceBytes + at * 128 + (((chunk ^ at) & 7) << 4), out);
      }
    }
  }
  __device__ void store_scales(const CellRows& rows) const {
    const uint32_t to = shared.scales(slot.index) + half * kRowsOfWarp * 4;
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) {
      const int row = i * 32 + lane;
      if (row >= kRowsOfWarp) continue;
      // A head of zeros has scale 0; its weight must not make others' overflow.
      const float log2_v = fmaxf(log2_fast(rows.v_scale[i]), -64.0F);
      ptx::store_shared_float(to + row * 4, rows.k_scale[i]);
      ptx::store_shared_float(to + (Traits::kKeys + row) * 4, log2_v);
      ptx::store_shared_float(to + (2 * Traits::kKeys + row) * 4, exp2_fast(-log2_v));
    }
  }

  __device__ void convert(const PrefillItem* item, int kv_head, int last, int first) {
    CellRows rows = find_cells(item, find_pages(item, last), kv_head, last);
    RowPages ahead = find_pages(item, last - 1);
#pragma unroll 1
    for (int group = 0; group < kGroups; ++group) copy_group(rows, group);
#pragma unroll 1
    for (int n = last; n >= first; --n) {
      const CellRows next = find_cells(item, ahead, kv_head, n - 1);
      ahead = find_pages(item, n - 2);
      ptx::barrier_wait(empty(), slot.parity ^ 1);
      if constexpr (Traits::kTokenScales && kIsK) store_scales(rows);
#pragma unroll 1  // the loader has few registers
      for (int group = 0; group < kGroups; ++group) {
        ptx::copy_wait<kGroups - 1>();
        convert_group(group);
        // Behind the first block nothing is asked for, but groups go on being counted.
        if (n > first) {
          copy_group(next, group);
        } else {
          ptx::copy_commit();
        }
      }
      ptx::fence_async_shared();
      ptx::barrier_arrive(full());
      slot.advance();
      rows = next;
    }
  }
};

}  // namespace tenon::flash
