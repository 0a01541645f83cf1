// How the thread blocks of FlashInfer's Hopper kernel share out their work: a tile scheduler for
// its `TileScheduler` parameter.
//
// Work w is entry w / heads of the plan for its query head w % heads. The plan lists the heaviest
// tiles first, and every block draws its next index from a counter in device memory, so that the
// makespan is about that of greedy longest-first scheduling, while the host writes one entry a tile
// instead of one a tile, head and block. Several launches may draw from one counter; the block that
// makes the last draw of all sets it back to 0 for the next layer.
//
// Protocol inside a block: the producer draws while the consumers still compute (before it waits
// for room for the last values), leaves the index in one of two slots and arrives on one of two
// named barriers; consumers wait there. Two are enough: the producer's load of work n + 1 waits
// until a consumer has begun work n + 1 (barrier_O), which it can only after all of them have
// picked n + 1 up. Works without keys would break this, hence a plan must not hold any.
#pragma once

#include <cutlass/arch/barrier.h>
#include <cutlass/fast_math.h>

#include <cute/tensor.hpp>

#include "attention/backends/flashinfer/kernels.h"

namespace tenon::flashinfer {

// kProducers: threads that run the producer's loop (32 with TMA loads, 128 with gathers).
// kSlots: where in dynamic shared memory the slots are. Static shared memory would push the
// kernel's own storage off the alignment that TMA and wgmma need.
template <int kProducers, int kConsumers, int kSlots>
struct DrawingTileScheduler {
  struct Params {
    const Fa3Tile* tiles;
    int* counter;
    int num_works;
    int last_draw;  // value of the counter at the last draw of all blocks
    cutlass::FastDivmod heads_per_tile;
    cutlass::FastDivmod group;
  };

  struct WorkTileInfo {
    int work = 0;

    CUTLASS_DEVICE bool is_valid(Params const& params) const { return work < params.num_works; }

    CUTLASS_DEVICE auto get_block_coord(Params const& params) const {
      int index;
      int head;
      params.heads_per_tile(index, head, work);
      const int4* const entry = reinterpret_cast<const int4*>(params.tiles + index);
      const int4 first = entry[0];   // tile, head_begin, q_begin, kv_begin
      const int4 second = entry[1];  // q_len, kv_len, row
      head += first.y;
      return cute::tuple{first.x,  head,    params.group.divide(head), first.z, first.w, second.x,
                         second.y, second.z};
    }
  };

  CUTLASS_DEVICE DrawingTileScheduler() {}

  CUTLASS_DEVICE WorkTileInfo get_initial_work(Params const& params) {
    return {threadIdx.x < cutlass::NumThreadsPerWarpGroup ? send(params) : receive()};
  }

  CUTLASS_DEVICE void init_consumer() {}
  CUTLASS_DEVICE void prefetch_next_work(Params const& params, WorkTileInfo&) {
    // Nothing here may need the result: it is on its way while the last values load.
    if (threadIdx.x == 0) drawn_ = atomicAdd(params.counter, 1);
    has_drawn_ = true;
  }
  CUTLASS_DEVICE void broadcast_next_work(WorkTileInfo&) {}

  template <bool is_producer = false>
  CUTLASS_DEVICE WorkTileInfo get_next_work(Params const& params, WorkTileInfo const&) {
    return {is_producer ? send(params) : receive()};
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

  CUTLASS_DEVICE int send(Params const& params) {
    int* const slot = slots() + (generation_ & 1);
    int work = 0;
    if (threadIdx.x == 0) {
      work = has_drawn_ ? drawn_ : atomicAdd(params.counter, 1);
      if (work == params.last_draw) *params.counter = 0;
      *slot = work;
    }
    has_drawn_ = false;
    if constexpr (kProducers == cutlass::NumThreadsPerWarp) {
      work = __shfl_sync(0xffffffffU, work, 0);
      __syncwarp();
    } else {
      producers_sync();
      work = *slot;
    }
    cutlass::arch::NamedBarrier::arrive(kProducers + kConsumers, full());
    ++generation_;
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
  bool has_drawn_ = false;
};

}  // namespace tenon::flashinfer
