// The decode kernel; decode_*.cu instantiate it, decode.cc chooses the instantiation.
//
// A block is made of teams of one or four warps. A team has its own ring of stages in shared memory
// and takes every kTeams-th run of kKeys keys of the block's stretch, so that teams never wait for
// each other inside a unit. The copies of a team run ahead of its products by the depth of the
// ring, also across units. At the end of a unit the teams' results meet in shared memory; the
// pieces of a unit that was cut meet in global memory.
#pragma once

#include <cmath>
#include <type_traits>

#include "attention/backends/flash/decode_state.cuh"
#include "attention/backends/flash/decode_stream.cuh"

namespace tenon::flash {

template <typename Traits>
using StateOf = std::conditional_t<Traits::kTeamWarps == 1, NarrowState<Traits>, WideState<Traits>>;

// What the teams of a block leave of a unit, and how pieces of it become the output.
template <typename Traits>
class UnitEnd {
 public:
  using T = typename Traits::T;
  static constexpr int kQuads = Traits::kDim / 4;  // of the columns

  __device__ UnitEnd(const DecodeParams& params,
                     const StretchStart& stretch,
                     int index,
                     unsigned char* shared)
      : params_(params),
        stretch_(stretch),
        index_(index),
        merge_(reinterpret_cast<float*>(shared)),
        warp_state_(reinterpret_cast<float2*>(shared + Traits::kMergeBytes)),
        row_state_(warp_state_ + Traits::kWarps * 16),
        arrived_(reinterpret_cast<int*>(row_state_ + Traits::kRows)) {}

  // Merges what the block has of `piece`. All threads of the block.
  __device__ void finish(StateOf<Traits>& state, const DecodePiece& piece, const DecodeTile& tile) {
    using State = StateOf<Traits>;
    const int warp = threadIdx.x / 32;
    const int warp_in_team = warp % Traits::kTeamWarps;
    state.add_sums();
#pragma unroll
    for (int i = 0; i < State::kStats; ++i) {
      if (State::speaks()) {
        warp_state_[warp * 16 + State::row_of(i)] = make_float2(state.maximum[i], state.sum[i]);
      }
    }
    __syncthreads();
    float factor[State::kStats];
#pragma unroll
    for (int i = 0; i < State::kStats; ++i) {
      const float2* parts = warp_state_ + warp_in_team * 16 + State::row_of(i);
      float high = -INFINITY;
#pragma unroll
      for (int team = 0; team < Traits::kTeams; ++team) {
        high = fmaxf(high, parts[team * Traits::kTeamWarps * 16].x);
      }
      factor[i] = weight(state.maximum[i], high);
      if (warp < Traits::kTeamWarps && State::speaks()) {
        float sum = 0.0F;
#pragma unroll
        for (int team = 0; team < Traits::kTeams; ++team) {
          const float2 part = parts[team * Traits::kTeamWarps * 16];
          sum += part.y * weight(part.x, high);
        }
        row_state_[warp * 16 + State::row_of(i)] = make_float2(high, sum);
      }
    }
    const bool cut = piece.begin > 0 || piece.end < tile.keys;
    const int first = piece.begin > 0 ? stretch_.first_stretch : index_;
    const int last = piece.end < tile.keys ? stretch_.last_stretch : index_;
    float* slot = partial(index_, first);
#pragma unroll
    for (int pass = 0; pass < min(Traits::kRows, 16) / 4; ++pass) {
      if (4 * pass >= tile.rows) break;
      state.store_rows(pass, factor, merge_ + warp * 4 * Traits::kMergeStride);
      __syncthreads();
      for (int i = threadIdx.x; i < Traits::kTeamWarps * 4 * kQuads; i += Traits::kThreads) {
        const int quad = i % kQuads;
        const int row_of_pass = i / kQuads;
        const int row = row_of_pass / 4 * 16 + pass * 4 + row_of_pass % 4;
        if (row >= tile.rows) continue;
        float4 total = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
#pragma unroll
        for (int team = 0; team < Traits::kTeams; ++team) {
          const float4 part = *reinterpret_cast<const float4*>(
              merge_ + (team * Traits::kTeamWarps * 4 + row_of_pass) * Traits::kMergeStride +
              quad * 4);
          total.x += part.x, total.y += part.y, total.z += part.z, total.w += part.w;
        }
        const float2 row_state = row_state_[row];
        if (cut) {
          reinterpret_cast<float4*>(slot)[row * kQuads + quad] = total;
          if (quad == 0)
            reinterpret_cast<float2*>(slot + Traits::kRows * Traits::kDim)[row] = row_state;
        } else {
          write(tile, piece.head, row, quad, total, row_state);
        }
      }
      __syncthreads();
    }
    if (cut) merge_pieces(piece, tile, first, last);
  }

  // What thread 0 says, to all threads of the block.
  __device__ int share(int value) {
    if (threadIdx.x == 0) *arrived_ = value;
    __syncthreads();
    const int shared = *arrived_;
    __syncthreads();
    return shared;
  }

 private:
  __device__ float weight(float maximum, float high) const {
    const float scale = Traits::kRules ? 1.0F : params_.score_scale;
    return maximum == -INFINITY ? 0.0F : exp2_fast((maximum - high) * scale);
  }

  // Where stretch `index` leaves its piece of the unit that began in stretch `first`: there is at
  // most one piece of a unit that began before it, and one of a unit that ends after it.
  __device__ float* partial(int index, int first) const {
    return params_.partials + (int64_t{2} * index + (index == first ? 1 : 0)) * Traits::kSlotFloats;
  }

  // The last block to come merges the pieces, of stretches [first, last].
  __device__ void merge_pieces(const DecodePiece& piece,
                               const DecodeTile& tile,
                               int first,
                               int last) {
    // The barrier that ended the last pass orders the block's stores before this thread's release.
    if (threadIdx.x == 0) {
      int before;
      asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;"
                   : "=r"(before)
                   : "l"(params_.counters + first)
                   : "memory");
      *arrived_ = before;
      if (before == last - first) params_.counters[first] = 0;
    }
    __syncthreads();
    if (*arrived_ == last - first) {
      for (int i = threadIdx.x; i < tile.rows * kQuads; i += Traits::kThreads) {
        merge_quad(tile, piece.head, i / kQuads, i % kQuads, first, last);
      }
    }
    __syncthreads();  // arrived_ is written again by the next unit
  }

  __device__ void merge_quad(
      const DecodeTile& tile, int head, int row, int quad, int first, int last) {
    constexpr int kAtOnce = 16;
    float4 total = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
    float2 state = make_float2(-INFINITY, 0.0F);
    for (int index = first; index <= last; index += kAtOnce) {
      float2 states[kAtOnce];
      float4 parts[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        // Past the end, the last piece again, with a weight of 0.
        const float* slot = partial(min(index + j, last), first);
        states[j] =
            __ldcg(reinterpret_cast<const float2*>(slot + Traits::kRows * Traits::kDim) + row);
        parts[j] = __ldcg(reinterpret_cast<const float4*>(slot) + row * kQuads + quad);
        if (index + j > last) states[j] = make_float2(-INFINITY, 0.0F);
      }
      float high = state.x;
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) high = fmaxf(high, states[j].x);
      const float old = weight(state.x, high);
      total.x *= old, total.y *= old, total.z *= old, total.w *= old;
      state = make_float2(high, state.y * old);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const float w = weight(states[j].x, high);
        total.x += parts[j].x * w, total.y += parts[j].y * w;
        total.z += parts[j].z * w, total.w += parts[j].w * w;
        state.y += states[j].y * w;
      }
    }
    write(tile, head, row, quad, total, state);
  }

  __device__ void write(
      const DecodeTile& tile, int head, int row, int quad, float4 total, float2 state) const {
    if (quad * 4 >= params_.head_dim) return;
    const int packed = tile.first_row + row;
    const int query = divide(packed, params_.group);
    const int q_head = head * params_.group.divisor + packed - query * params_.group.divisor;
    const int64_t token = tile.first_token + query;
    const bool empty = state.y == 0.0F;
    float out_scale = params_.out_scale;
    if constexpr (Traits::kRules) {
      const Extras& extras = params_.extras;
      if (extras.v_scales != nullptr) out_scale *= __ldg(extras.v_scales + head);
      // A row without keys has no softmax that its sink could be part of.
      if (extras.sinks != nullptr && !empty) {
        const float sink = __ldg(extras.sinks + q_head) * kLog2E;
        const float high = fmaxf(state.x, sink);
        const float factor = weight(state.x, high);
        total.x *= factor, total.y *= factor, total.z *= factor, total.w *= factor;
        state = make_float2(high, state.y * factor + weight(sink, high));
      }
    }
    const float scale = empty ? 0.0F : out_scale / state.y;
    constexpr float kLn2 = 0.69314718055994531F;
    const bool tells_lse = quad == 0 && (tile.merge != 0 || params_.lse != nullptr);
    const float lse =
        !tells_lse || empty
            ? -INFINITY
            : state.x * (Traits::kRules ? 1.0F : params_.score_scale) * kLn2 + logf(state.y);
    if (tile.merge != 0) {
      const int64_t at = int64_t{tile.merge - 1 + query} * params_.num_q_heads + q_head;
      *reinterpret_cast<float4*>(params_.suffix_out + at * params_.head_dim + quad * 4) =
          make_float4(total.x * scale, total.y * scale, total.z * scale, total.w * scale);
      if (tells_lse) params_.suffix_lse[at] = lse;
      return;
    }
    T* out = static_cast<T*>(params_.out) + token * params_.out_stride + q_head * params_.head_dim;
    *reinterpret_cast<uint2*>(out + quad * 4) =
        make_uint2(pack(total.x * scale, total.y * scale), pack(total.z * scale, total.w * scale));
    if (tells_lse) params_.lse[token * params_.num_q_heads + q_head] = lse;
  }

  // In the type of the output, which 8-bit cells do not tell.
  __device__ uint32_t pack(float low, float high) const {
    if constexpr (Traits::kQuantised) {
      if (params_.bf16) return Element<__nv_bfloat16>::pack(low, high);
    }
    return Element<T>::pack(low, high);
  }

  const DecodeParams& params_;
  const StretchStart& stretch_;
  const int index_;           // of the stretch
  float* const merge_;        // [kWarps][4][kMergeStride]
  float2* const warp_state_;  // [kWarps][16] (maximum, sum)
  float2* const row_state_;   // [kRows]
  int* const arrived_;
};

// Streams one stretch; returns the one to do next, if any.
template <typename Traits>
__device__ __forceinline__ int run_stretch(const DecodeParams& params,
                                           int index,
                                           unsigned char* shared,
                                           StageRing<Traits>& ring) {
  const StretchStart stretch = load_stretch(params.stretches[index]);
  if (stretch.unit_begin >= stretch.unit_end) return -1;
  const int team = threadIdx.x / 32 / Traits::kTeamWarps;
  KeyStream<Traits> stream(params, stretch, team, threadIdx.x % (32 * Traits::kTeamWarps));
  // A stage that 16-byte copies fill is free once all threads have passed the wait for the next.
  constexpr int kAhead = Traits::kBulk ? Traits::kStages : Traits::kStages - 1;
#pragma unroll 1  // code that is short starts sooner
  for (int s = 0; s < kAhead; ++s) stream.copy_next(ring, s);

  UnitEnd<Traits> unit_end(params, stretch, index, shared + Traits::kRingBytes);
  StateOf<Traits> state;
  int stage = 0;
  const int blocks = static_cast<int>(gridDim.x);
  int claimed = stretch.total;
  for (DecodeWalk<Traits::kRules> walk(params, stretch); !walk.done(); walk.next()) {
    const DecodePiece piece = walk.piece();
    state.start(params, walk.tile(), piece.head);
    for (int key = piece.first + team * Traits::kKeys; key < piece.end;
         key += Traits::kTeams * Traits::kKeys) {
      if constexpr (Traits::kBulk) {
        ring.wait(stage);
        if (key + Traits::kKeys > piece.end) {
          clear_values<Traits>(ring.stage(stage), piece.end - key);
        }
        state.attend(ring.stage(stage), key, piece.end, params);
        __syncwarp();
        stream.copy_next(ring, stage);
      } else {
        ptx::copy_wait<Traits::kStages - 2>();
        // Orders the copies of all threads of the team before the reads, and the reads of the stage
        // that is filled next before its copies.
        synchronise_team<Traits::kTeamWarps>(team);
        stream.copy_next(ring, stage == 0 ? Traits::kStages - 1 : stage - 1);
        state.attend(ring.stage(stage), key, piece.end, params);
      }
      stage = stage + 1 == Traits::kStages ? 0 : stage + 1;
    }
    // Answered while the unit is being finished.
    if (walk.at_last() && stretch.total > blocks && threadIdx.x == 0) {
      claimed = blocks + atomicAdd(params.claims, 1);
    }
    unit_end.finish(state, piece, walk.tile());
  }
  if (stretch.total <= blocks) return -1;
  // Every block claims once in vain; the last one to do so leaves the count as it was.
  if (threadIdx.x == 0 && claimed == stretch.total + blocks - 1) *params.claims = 0;
  return unit_end.share(claimed < stretch.total ? claimed : -1);
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    decode_kernel(const __grid_constant__ DecodeParams params) {
  extern __shared__ __align__(128) unsigned char shared[];  // bulk copies want whole lines
  StageRing<Traits> ring(shared, static_cast<int>(threadIdx.x) / 32 / Traits::kTeamWarps);
  ring.start();
  int index = static_cast<int>(blockIdx.x);
  do {
    index = run_stretch<Traits>(params, index, shared, ring);
  } while (index >= 0);
}

template <typename Traits>
cudaError_t launch_decode_kernel(const DecodeParams& params, cudaStream_t stream) {
  // Once a process and instantiation: the attribute belongs to the function.
  static const cudaError_t ready = cudaFuncSetAttribute(
      decode_kernel<Traits>, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSharedBytes);
  if (ready != cudaSuccess) return ready;
  decode_kernel<Traits>
      <<<static_cast<unsigned>(params.blocks), Traits::kThreads, Traits::kSharedBytes, stream>>>(
          params);
  return cudaGetLastError();
}

// The measured choice for a padded head size: warps of a block and depth of the ring, which holds
// 100 to 210 KB; nearly all of it is in flight.
struct RingShape {
  int warps, stages;
};
constexpr RingShape ring_shape(int dim, bool wide, bool bulk) {
  switch (dim) {
    case 64: return {8, 6};
    case 80:
    case 96: return {8, wide ? 6 : 4};
    case 128: return {8, wide ? 5 : bulk ? 2 : 3};
    case 192: return {4, wide ? 6 : 4};
    default: return {4, wide ? 5 : 3};
  }
}

// Of 8-bit cells, whose stages are half as large. Keys come twice as fast, so more warps are needed
// to take them in; tiles of 8 rows leave the registers for it.
constexpr RingShape quantised_ring_shape(int dim, int rows, bool bulk) {
  switch (dim) {
    case 64: return bulk && rows == 8 ? RingShape{16, 4} : RingShape{8, 8};
    case 128: return bulk && rows == 8 ? RingShape{12, 2} : RingShape{8, rows == 64 ? 6 : 4};
    case 192: return bulk ? RingShape{8, 3} : RingShape{4, 8};
    default: return bulk ? RingShape{8, 2} : RingShape{4, 6};
  }
}

template <typename T, int kDim, int kRows>
cudaError_t launch_chosen(const DecodeVariant& variant,
                          const DecodeParams& params,
                          cudaStream_t stream) {
  constexpr bool kWide = kRows > 16;
  if constexpr (kDim % 64 == 0 && !kWide) {
    if (decode_copies_in_bulk(variant, params)) {
      constexpr RingShape kRing = ring_shape(kDim, kWide, true);
      return launch_decode_kernel<DecodeTraits<T, kDim, kRows, kRing.warps, kRing.stages, true>>(
          params, stream);
    }
  }
  constexpr RingShape kRing = ring_shape(kDim, kWide, false);
  return launch_decode_kernel<DecodeTraits<T, kDim, kRows, kRing.warps, kRing.stages, false>>(
      params, stream);
}

template <typename T, int kDim>
cudaError_t launch_rows(const DecodeVariant& variant,
                        const DecodeParams& params,
                        cudaStream_t stream) {
  switch (variant.tile_rows) {
    case 8: return launch_chosen<T, kDim, 8>(variant, params, stream);
    case 16: return launch_chosen<T, kDim, 16>(variant, params, stream);
    default: return launch_chosen<T, kDim, 64>(variant, params, stream);
  }
}

// Tiles of 8 rows over cells that have to be copied 16 bytes at a time are done as tiles of 16
// (DecodeVariant::most_rows()).
template <typename T, int kDim>
cudaError_t launch_extras(const DecodeVariant& variant,
                          const DecodeParams& params,
                          cudaStream_t stream) {
  constexpr Cells kHalf = Cells::kHalf;
  constexpr RingShape kWide = ring_shape(kDim, true, false);
  constexpr RingShape kNarrow = ring_shape(kDim, false, false);
  if (variant.tile_rows > 16) {
    return launch_decode_kernel<
        DecodeTraits<T, kDim, 64, kWide.warps, kWide.stages, false, kHalf, true>>(params, stream);
  }
  if constexpr (kDim % 64 == 0) {
    constexpr RingShape kBulk = ring_shape(kDim, false, true);
    if (decode_copies_in_bulk(variant, params)) {
      return variant.tile_rows == 8
                 ? launch_decode_kernel<
                       DecodeTraits<T, kDim, 8, kBulk.warps, kBulk.stages, true, kHalf, true>>(
                       params, stream)
                 : launch_decode_kernel<
                       DecodeTraits<T, kDim, 16, kBulk.warps, kBulk.stages, true, kHalf, true>>(
                       params, stream);
    }
  }
  return launch_decode_kernel<
      DecodeTraits<T, kDim, 16, kNarrow.warps, kNarrow.stages, false, kHalf, true>>(params, stream);
}
template <int kDim>
cudaError_t launch_decode_extras(const DecodeVariant& variant,
                                 const DecodeParams& params,
                                 cudaStream_t stream) {
  return variant.bf16 ? launch_extras<__nv_bfloat16, kDim>(variant, params, stream)
                      : launch_extras<__half, kDim>(variant, params, stream);
}

// One instantiation serves queries of both types: products are of f16.
template <Cells kCells, int kDim>
cudaError_t launch_decode_quantised(const DecodeVariant& variant,
                                    const DecodeParams& params,
                                    cudaStream_t stream) {
  if (variant.tile_rows > 16) {
    constexpr RingShape kRing = quantised_ring_shape(kDim, 64, false);
    return launch_decode_kernel<
        DecodeTraits<__half, kDim, 64, kRing.warps, kRing.stages, false, kCells>>(params, stream);
  }
  if (!decode_copies_in_bulk(variant, params)) {
    constexpr RingShape kRing = quantised_ring_shape(kDim, 16, false);
    return launch_decode_kernel<
        DecodeTraits<__half, kDim, 16, kRing.warps, kRing.stages, false, kCells>>(params, stream);
  }
  if (variant.tile_rows == 16) {
    constexpr RingShape kRing = quantised_ring_shape(kDim, 16, true);
    return launch_decode_kernel<
        DecodeTraits<__half, kDim, 16, kRing.warps, kRing.stages, true, kCells>>(params, stream);
  }
  constexpr RingShape kRing = quantised_ring_shape(kDim, 8, true);
  return launch_decode_kernel<
      DecodeTraits<__half, kDim, 8, kRing.warps, kRing.stages, true, kCells>>(params, stream);
}

// The instantiations of one padded head size; one file each.
template <int kDim>
cudaError_t launch_decode_dim(const DecodeVariant& variant,
                              const DecodeParams& params,
                              cudaStream_t stream) {
  return variant.bf16 ? launch_rows<__nv_bfloat16, kDim>(variant, params, stream)
                      : launch_rows<__half, kDim>(variant, params, stream);
}

}  // namespace tenon::flash
