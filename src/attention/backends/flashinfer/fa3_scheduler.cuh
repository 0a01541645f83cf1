// How the thread blocks of FlashInfer's Hopper kernel share out their work: a tile scheduler for
// its `TileScheduler` parameter.
//
// Work w is query tile w / heads of the plan for query head w % heads. The plan lists tiles heaviest
// first, and every block draws its next index from a counter in device memory, so that the
// makespan is that of greedy longest-first scheduling, while the host writes one entry a tile
// instead of one a tile, head and block. Several launches may draw from one counter; the block that
// makes the last draw of all sets it back to 0 for the next layer.
//
// Protocol inside a block: the producer draws an index while the consumers still compute, leaves it
// in one of two slots and arrives on one of two named barriers; consumers wait there. Two are
// enough: the producer's load of work n + 1 waits until a consumer has begun work n + 1
// (barrier_O), which it can only after all of them have picked n + 1 up. Works without keys would
// break this, hence a plan must not hold any.
#pragma once

#include <cutlass/arch/barrier.h>
#include <cutlass/fast_math.h>

#include <cute/tensor.hpp>

#include "attention/backends/flashinfer/kernels.h"

namespace tenon::flashinfer {

// kProducers: threads that run the producer's loop (32 with TMA loads, 128 with gathers).
// kSlots: where in dynamic shared memory the slots are. Static shared memory would push the kernel's
// own storage off the alignment that TMA and wgmma need.
template <int kProducers, int kConsumers, int kSlots>
struct DrawingTileScheduler {
  struct Params {
    const Fa3Row* rows;
    const Fa3Tile* tiles;
    int* counter;
    int num_works;
    int last_draw;  // value of the counter at the last draw of all blocks
    cutlass::FastDivmod num_heads;
    cutlass::FastDivmod group;
  };

  struct WorkTileInfo {
    int work = 0;

    CUTLASS_DEVICE bool is_valid(Params const& params) const { return work < params.num_works; }

    CUTLASS_DEVICE auto get_block_coord(Params const& params) const {
      int tile_index;
      int head;
      params.num_heads(tile_index, head, work);
      const Fa3Tile tile = params.tiles[tile_index];
      const Fa3Row row = params.rows[tile.row];
      return cute::tuple{tile.tile,    head,      params.group.divide(head), row.q_begin,
                         row.kv_begin, row.q_len, row.kv_len,                tile.row};
    }
  };

  CUTLASS_DEVICE DrawingTileScheduler() {}

  CUTLASS_DEVICE WorkTileInfo get_initial_work(Params const& params) {
    if (threadIdx.x < cutlass::NumThreadsPerWarpGroup) {
      draw(params);
      ++generation_;
      return {drawn_};
    }
    return {receive()};
  }

  CUTLASS_DEVICE void init_consumer() {}
  CUTLASS_DEVICE void prefetch_next_work(Params const&, WorkTileInfo&) {}
  // No parameters reach this one; the draw happens in get_next_work, which follows at once.
  CUTLASS_DEVICE void broadcast_next_work(WorkTileInfo&) {}

  template <bool is_producer = false>
  CUTLASS_DEVICE WorkTileInfo get_next_work(Params const& params, WorkTileInfo const&) {
    if constexpr (is_producer) {
      draw(params);
      ++generation_;
      return {drawn_};
    } else {
      return {receive()};
    }
  }

 private:
  static CUTLASS_DEVICE int* slots() {
    extern __shared__ char shared_memory[];
    return reinterpret_cast<int*>(shared_memory + kSlots);
  }
  // Barriers 4 and 5 belong to CUTLASS's stream-K, 3 to its transforms: none of them runs here.
  static CUTLASS_DEVICE void producers_sync() {
    cutlass::arch::NamedBarrier::sync(kProducers,
                                      cutlass::arch::ReservedNamedBarriers::TransformBarrier);
  }
  CUTLASS_DEVICE cutlass::arch::ReservedNamedBarriers full() const {
    return (generation_ & 1) == 0 ? cutlass::arch::ReservedNamedBarriers::StreamkBarrier0
                                  : cutlass::arch::ReservedNamedBarriers::StreamkBarrier1;
  }

  CUTLASS_DEVICE void draw(Params const& params) {
    int* slot = slots() + (generation_ & 1);
    if constexpr (kProducers == cutlass::NumThreadsPerWarp) {
      int work = 0;
      if (threadIdx.x % cutlass::NumThreadsPerWarp == 0) {
        work = next(params);
        *slot = work;
      }
      drawn_ = __shfl_sync(0xffffffffU, work, 0);
      __syncwarp();
    } else {
      if (threadIdx.x == 0) *slot = next(params);
      producers_sync();
      drawn_ = *slot;
    }
    cutlass::arch::NamedBarrier::arrive(kProducers + kConsumers, full());
  }

  static CUTLASS_DEVICE int next(Params const& params) {
    const int work = atomicAdd(params.counter, 1);
    if (work == params.last_draw) *params.counter = 0;
    return work;
  }

  CUTLASS_DEVICE int receive() {
    cutlass::arch::NamedBarrier::sync(kProducers + kConsumers, full());
    const int work = slots()[generation_ & 1];
    ++generation_;
    return work;
  }

  int generation_ = 0;
  int drawn_ = 0;
};

}  // namespace tenon::flashinfer
