// The decode kernel; decode_*.cu instantiate it, decode.cc chooses the instantiation.
//
// A block is made of teams of one or four warps. A team has its own ring of stages in shared memory and
// takes every kTeams-th run of kKeys keys of the block's stretch, so that teams never wait for each
// other inside a unit. Warp w of a team owns packed query rows [16 w, 16 w + 16) of the tile and keeps
// Q, the output and the softmax's state in registers. The copies of a team run ahead of its products by
// the depth of the ring, also across units. At the end of a unit the teams' results meet in shared
// memory; the pieces of a unit that was cut meet in global memory.
#pragma once

#include <cmath>

#include "attention/backends/flash/decode.h"
#include "attention/backends/flash/mma.cuh"

namespace tenon::flash {

template <typename ElementType, int kHeadDim, int kTeam, int kBlockWarps, int kDepth, int kResident>
struct DecodeTraits {
  using T = ElementType;
  static constexpr int kDim = kHeadDim;  // padded
  static constexpr int kTeamWarps = kTeam;
  static constexpr int kWarps = kBlockWarps;
  static constexpr int kStages = kDepth;
  static constexpr int kBlocksPerMultiprocessor = kResident;

  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kTeams = kWarps / kTeamWarps;
  static constexpr int kRows = 16 * kTeamWarps;          // of a tile
  static constexpr int kKeys = kTeamWarps == 1 ? 16 : 32;  // of a stage
  static constexpr int kChunks = 4 * kDim / 16;          // of 16 bytes: K and V of a token
  static constexpr int kCopies = kKeys * kChunks / (32 * kTeamWarps);  // of a thread and stage
  // An odd number of 16-byte units: eight rows of a matrix lie in different banks.
  static constexpr int kRowBytes = 4 * kDim + 16;
  static constexpr int kStageBytes = kKeys * kRowBytes;
  static constexpr int kRingBytes = kTeams * kStages * kStageBytes;
  // Four rows of every warp at a time are merged; 8 words more spread them over the banks.
  static constexpr int kMergeStride = kDim + 8;
  static constexpr int kMergeBytes = kWarps * 4 * kMergeStride * 4;
  static constexpr int kStateBytes = (kWarps * 16 + kRows) * 8 + 16;
  static constexpr int kSharedBytes = kRingBytes + kMergeBytes + kStateBytes;
  static_assert(kKeys * kChunks % (32 * kTeamWarps) == 0);
  static_assert(kSharedBytes * kResident + 1024 * kResident <= 233472);

  // Of the partial results: kRows rows of output, then (maximum, sum) of each.
  static constexpr int kSlotFloats = kRows * (kDim + 2);
};

__device__ __forceinline__ int divide(int n, const FastDivisor& d) {
  return static_cast<int>((static_cast<uint64_t>(static_cast<uint32_t>(n)) * d.factor) >> d.shift);
}

// Where a block's stretch meets one unit.
struct DecodePiece {
  int unit;
  int head;
  int begin;  // keys
  int end;
};

// Walks the units of a stretch, and keeps the tile of the current one.
class DecodeWalk {
 public:
  __device__ DecodeWalk(const DecodeParams& params, const DecodeStretch& stretch)
      : params_(params), stretch_(stretch), unit_(stretch.unit_begin) {
    if (!done()) load();
  }
  __device__ bool done() const { return unit_ >= stretch_.unit_end; }
  __device__ void next() {
    ++unit_;
    if (!done()) load();
  }
  __device__ DecodePiece piece() const {
    DecodePiece piece;
    piece.unit = unit_;
    piece.head = unit_ - tile_index_ * params_.num_kv_heads;
    piece.begin = unit_ == stretch_.unit_begin ? stretch_.key_begin : 0;
    piece.end = unit_ + 1 == stretch_.unit_end ? min(stretch_.key_end, tile_.keys) : tile_.keys;
    return piece;
  }
  __device__ const DecodeTile& tile() const { return tile_; }

 private:
  __device__ void load() {
    const int index = unit_ / params_.num_kv_heads;
    if (index == tile_index_) return;
    tile_index_ = index;
    const int4* words = reinterpret_cast<const int4*>(params_.tiles + index);
    reinterpret_cast<int4*>(&tile_)[0] = __ldg(words);
    reinterpret_cast<int4*>(&tile_)[1] = __ldg(words + 1);
  }

  const DecodeParams& params_;
  const DecodeStretch& stretch_;
  int unit_;
  int tile_index_ = -1;
  DecodeTile tile_;
};

// The copying side of a team: puts run after run of keys into the ring. All threads of a team carry
// the same state, but for the page that each lane has looked up for its key of the next run.
template <typename Traits>
class KeyStream {
 public:
  using T = typename Traits::T;

  __device__ KeyStream(const DecodeParams& params, const DecodeStretch& stretch, int team, int thread)
      : params_(params), walk_(params, stretch), team_(team), thread_(thread), lane_(thread % 32) {
    policy_ = evict_first_policy();
    open();
    look_up();
  }

  // Starts the copies of the next run, if there is one; commits a group in any case.
  __device__ void copy_next(uint32_t stage) {
    if (!walk_.done()) {
      const int key = key_ + lane_;
      const int in_page = key - divide(key, params_.page_size) * params_.page_size.divisor;
      const T* cell = head_base_ + page_ * params_.page_stride + in_page * params_.token_stride;
      const auto address = reinterpret_cast<unsigned long long>(cell);
#pragma unroll
      for (int i = 0; i < Traits::kCopies; ++i) {
        const int chunk = i * 32 * Traits::kTeamWarps + thread_;
        const int token = chunk / Traits::kChunks;
        const int column = chunk % Traits::kChunks * 8;  // in the padded K | V
        const bool is_v = column >= Traits::kDim;
        const int dim = is_v ? column - Traits::kDim : column;
        const bool there = key_ + token < end_ && dim < params_.head_dim;
        const auto row = __shfl_sync(0xffffffffU, address, token);
        const T* source = reinterpret_cast<const T*>(row) +
                          (there ? (is_v ? dim + params_.head_dim : dim) : 0);
        copy_async(stage + token * Traits::kRowBytes + chunk % Traits::kChunks * 16, source,
                   there ? 16 : 0, policy_);
      }
      key_ += Traits::kTeams * Traits::kKeys;
      if (key_ >= end_) {
        walk_.next();
        open();
      }
      look_up();
    }
    commit_copies();
  }

 private:
  // Goes to the team's first run of the current unit, or of the first one that has any.
  __device__ void open() {
    for (; !walk_.done(); walk_.next()) {
      const DecodePiece piece = walk_.piece();
      key_ = piece.begin + team_ * Traits::kKeys;
      end_ = piece.end;
      if (key_ < end_) {
        head_base_ = static_cast<const T*>(params_.kv) + piece.head * params_.head_stride;
        return;
      }
    }
  }
  // Keys past the end look up page 0 of the row: some address that exists.
  __device__ void look_up() {
    if (walk_.done()) return;
    const int key = min(key_ + lane_, end_ - 1);
    page_ = __ldg(params_.page_indices + walk_.tile().page_begin + divide(key, params_.page_size));
  }

  const DecodeParams& params_;
  DecodeWalk walk_;
  const int team_;
  const int thread_;  // of the team
  const int lane_;
  uint64_t policy_;
  const T* head_base_ = nullptr;
  int key_ = 0;  // first key of the next run
  int end_ = 0;
  int64_t page_ = 0;
};

template <int kTeamWarps>
__device__ __forceinline__ void synchronise_team(int team) {
  if constexpr (kTeamWarps == 1) {
    __syncwarp();
  } else {
    asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(32 * kTeamWarps) : "memory");
  }
}

// e^x in base 2 for x <= 0, 0 for -inf.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// What a warp keeps of its 16 query rows. A thread holds rows lane / 4 and lane / 4 + 8, in each group
// of 8 columns those at lane % 4 * 2 and one further (the layout of mma's operands).
template <typename Traits>
struct WarpState {
  using T = typename Traits::T;
  static constexpr int kSteps = Traits::kDim / 16;

  uint32_t q[kSteps][4];
  float out[2 * kSteps][4];
  float maximum[2];  // of the row's scores before scaling, -inf while there is none
  float sum[2];      // of this thread's columns
  int visible[2];    // keys that the row sees

  // Loads Q of packed rows [first, first + 16) of the tile.
  __device__ void start(const DecodeParams& params, const DecodeTile& tile, int head, int first) {
    const int lane = threadIdx.x % 32;
    const T* row[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = first + lane / 4 + 8 * h;
      const int packed = tile.first_row + min(r, tile.rows - 1);
      const int token = divide(packed, params.group);
      const int q_head = head * params.group.divisor + packed - token * params.group.divisor;
      visible[h] = params.causal ? tile.seq_len - tile.query_len + token + 1 : tile.seq_len;
      row[h] = static_cast<const T*>(params.q) + (tile.first_token + token) * params.q_stride +
               q_head * params.head_dim;
      maximum[h] = -INFINITY;
      sum[h] = 0.0F;
    }
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = 16 * s + 8 * (i / 2) + lane % 4 * 2;
        q[s][i] = column < params.head_dim
                      ? __ldg(reinterpret_cast<const unsigned int*>(row[i % 2] + column))
                      : 0U;
      }
    }
#pragma unroll
    for (int n = 0; n < 2 * kSteps; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[n][i] = 0.0F;
    }
  }

  // Takes the run of keys [key, key + kKeys) at `stage` in, of which those below `end` exist.
  __device__ void attend(uint32_t stage, int key, int end, float scale) {
    constexpr int kGroups = Traits::kKeys / 8;
    const int lane = threadIdx.x % 32;
    float scores[kGroups][4];
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[n][i] = 0.0F;
    }
    const uint32_t k_row =
        stage + (lane / 16 * 8 + lane % 8) * Traits::kRowBytes + lane / 8 % 2 * 16;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int n = 0; n < kGroups; n += 2) {
        uint32_t b[4];
        load_matrices(b, k_row + n * 8 * Traits::kRowBytes + s * 32);
        Element<T>::multiply_add(scores[n], q[s], b[0], b[1]);
        Element<T>::multiply_add(scores[n + 1], q[s], b[2], b[3]);
      }
    }
    const int limit[2] = {min(visible[0], end), min(visible[1], end)};
    // Rows are in the order of their tokens: the first one sees least.
    if (key + Traits::kKeys > __shfl_sync(0xffffffffU, limit[0], 0)) {
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (key + 8 * n + lane % 4 * 2 + i % 2 >= limit[i / 2]) scores[n][i] = -INFINITY;
        }
      }
    }
    float high[2] = {maximum[0], maximum[1]};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
        high[h] = fmaxf(high[h], fmaxf(scores[n][2 * h], scores[n][2 * h + 1]));
      }
      high[h] = fmaxf(high[h], __shfl_xor_sync(0xffffffffU, high[h], 1));
      high[h] = fmaxf(high[h], __shfl_xor_sync(0xffffffffU, high[h], 2));
    }
    if (__any_sync(0xffffffffU, high[0] > maximum[0] || high[1] > maximum[1])) rescale(high, scale);
    uint32_t p[kGroups / 2][4];
    float offset[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) offset[h] = high[h] == -INFINITY ? 0.0F : high[h] * scale;
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[n][i] = exp2_fast(scores[n][i] * scale - offset[i / 2]);
        sum[i / 2] += scores[n][i];
      }
      p[n / 2][n % 2 * 2] = Element<T>::pack(scores[n][0], scores[n][1]);
      p[n / 2][n % 2 * 2 + 1] = Element<T>::pack(scores[n][2], scores[n][3]);
    }
    const uint32_t v_row =
        stage + lane % 16 * Traits::kRowBytes + Traits::kDim * 2 + lane / 16 * 16;
#pragma unroll
    for (int g = 0; g < kGroups / 2; ++g) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        uint32_t b[4];
        load_matrices_transposed(b, v_row + g * 16 * Traits::kRowBytes + s * 32);
        Element<T>::multiply_add(out[2 * s], p[g], b[0], b[1]);
        Element<T>::multiply_add(out[2 * s + 1], p[g], b[2], b[3]);
      }
    }
  }

 private:
  __device__ void rescale(const float (&high)[2], float scale) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      // A row that has seen nothing yet holds zeros.
      const float factor =
          maximum[h] == -INFINITY ? 0.0F : exp2_fast((maximum[h] - high[h]) * scale);
      maximum[h] = high[h];
      sum[h] *= factor;
#pragma unroll
      for (int n = 0; n < 2 * kSteps; ++n) {
        out[n][2 * h] *= factor;
        out[n][2 * h + 1] *= factor;
      }
    }
  }
};

// What the teams of a block leave of a unit, and how pieces of it become the output.
template <typename Traits>
class UnitEnd {
 public:
  using T = typename Traits::T;
  static constexpr int kQuads = Traits::kDim / 4;  // of the columns

  __device__ UnitEnd(const DecodeParams& params, const DecodeStretch& stretch, unsigned char* shared)
      : params_(params),
        stretch_(stretch),
        merge_(reinterpret_cast<float*>(shared)),
        warp_state_(reinterpret_cast<float2*>(shared + Traits::kMergeBytes)),
        row_state_(warp_state_ + Traits::kWarps * 16),
        arrived_(reinterpret_cast<int*>(row_state_ + Traits::kRows)) {}

  // Merges what the block has of `piece`. All threads of the block.
  __device__ void finish(WarpState<Traits>& state, const DecodePiece& piece, const DecodeTile& tile) {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int warp_in_team = warp % Traits::kTeamWarps;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      state.sum[h] += __shfl_xor_sync(0xffffffffU, state.sum[h], 1);
      state.sum[h] += __shfl_xor_sync(0xffffffffU, state.sum[h], 2);
      if (lane % 4 == 0) {
        warp_state_[warp * 16 + lane / 4 + 8 * h] = make_float2(state.maximum[h], state.sum[h]);
      }
    }
    __syncthreads();
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = lane / 4 + 8 * h;
      float high = -INFINITY;
      for (int team = 0; team < Traits::kTeams; ++team) {
        high = fmaxf(high, warp_state_[(team * Traits::kTeamWarps + warp_in_team) * 16 + row].x);
      }
      factor[h] = weight(state.maximum[h], high);
      if (warp < Traits::kTeamWarps && lane % 4 == 0) {
        float sum = 0.0F;
        for (int team = 0; team < Traits::kTeams; ++team) {
          const float2 part = warp_state_[(team * Traits::kTeamWarps + warp) * 16 + row];
          sum += part.y * weight(part.x, high);
        }
        row_state_[warp * 16 + row] = make_float2(high, sum);
      }
    }
    const bool cut = piece.begin > 0 || piece.end < tile.keys;
    const int block = static_cast<int>(blockIdx.x);
    const int first_block = piece.begin > 0 ? stretch_.first_block : block;
    const int last_block = piece.end < tile.keys ? stretch_.last_block : block;
    float* slot = partial(block, first_block);
#pragma unroll
    for (int pass = 0; pass < 4; ++pass) {
      if (4 * pass >= tile.rows) break;
      if (lane / 16 == pass % 2) {
        const int h = pass / 2;
        float* row = merge_ + (warp * 4 + lane / 4 % 4) * Traits::kMergeStride + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < Traits::kDim / 8; ++n) {
          *reinterpret_cast<float2*>(row + 8 * n) =
              make_float2(state.out[n][2 * h] * factor[h], state.out[n][2 * h + 1] * factor[h]);
        }
      }
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
          if (quad == 0) reinterpret_cast<float2*>(slot + Traits::kRows * Traits::kDim)[row] = row_state;
        } else {
          write(tile, piece.head, row, quad, total, row_state);
        }
      }
      __syncthreads();
    }
    if (cut) merge_pieces(piece, tile, first_block, last_block);
  }

 private:
  __device__ float weight(float maximum, float high) const {
    return maximum == -INFINITY ? 0.0F : exp2_fast((maximum - high) * params_.score_scale);
  }

  // Where `block` leaves its piece of the unit that began in `first_block`: a block has at most one
  // piece of a unit that began before it, and one of a unit that ends after it.
  __device__ float* partial(int block, int first_block) const {
    return params_.partials +
           (int64_t{2} * block + (block == first_block ? 1 : 0)) * Traits::kSlotFloats;
  }

  // The last block to come merges all pieces.
  __device__ void merge_pieces(const DecodePiece& piece,
                               const DecodeTile& tile,
                               int first_block,
                               int last_block) {
    // The barrier that ended the last pass orders the block's stores before this thread's release.
    if (threadIdx.x == 0) {
      int before;
      asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;"
                   : "=r"(before)
                   : "l"(params_.counters + first_block)
                   : "memory");
      *arrived_ = before;
      if (before == last_block - first_block) params_.counters[first_block] = 0;
    }
    __syncthreads();
    const bool last = *arrived_ == last_block - first_block;
    if (last) {
      for (int i = threadIdx.x; i < tile.rows * kQuads; i += Traits::kThreads) {
        merge_quad(tile, piece.head, i / kQuads, i % kQuads, first_block, last_block);
      }
    }
    __syncthreads();  // arrived_ is written again by the next unit
  }

  __device__ void merge_quad(
      const DecodeTile& tile, int head, int row, int quad, int first_block, int last_block) {
    constexpr int kAtOnce = 8;
    float4 total = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
    float2 state = make_float2(-INFINITY, 0.0F);
    for (int block = first_block; block <= last_block; block += kAtOnce) {
      float2 states[kAtOnce];
      float4 parts[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        // Past the end, the last piece again, with a weight of 0.
        const float* slot = partial(min(block + j, last_block), first_block);
        states[j] =
            __ldcg(reinterpret_cast<const float2*>(slot + Traits::kRows * Traits::kDim) + row);
        parts[j] = __ldcg(reinterpret_cast<const float4*>(slot) + row * kQuads + quad);
        if (block + j > last_block) states[j] = make_float2(-INFINITY, 0.0F);
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

  __device__ void write(const DecodeTile& tile,
                        int head,
                        int row,
                        int quad,
                        const float4& total,
                        const float2& state) const {
    if (quad * 4 >= params_.head_dim) return;
    const int packed = tile.first_row + row;
    const int query = divide(packed, params_.group);
    const int q_head = head * params_.group.divisor + packed - query * params_.group.divisor;
    const int64_t token = tile.first_token + query;
    const bool empty = state.y == 0.0F;
    const float scale = empty ? 0.0F : params_.out_scale / state.y;
    T* out = static_cast<T*>(params_.out) + token * params_.out_stride + q_head * params_.head_dim;
    *reinterpret_cast<uint2*>(out + quad * 4) =
        make_uint2(Element<T>::pack(total.x * scale, total.y * scale),
                   Element<T>::pack(total.z * scale, total.w * scale));
    if (quad == 0 && params_.lse != nullptr) {
      constexpr float kLn2 = 0.69314718055994531F;
      params_.lse[token * params_.num_q_heads + q_head] =
          empty ? -INFINITY : state.x * params_.score_scale * kLn2 + logf(state.y);
    }
  }

  const DecodeParams& params_;
  const DecodeStretch& stretch_;
  float* const merge_;         // [kWarps][4][kMergeStride]
  float2* const warp_state_;   // [kWarps][16] (maximum, sum)
  float2* const row_state_;    // [kRows]
  int* const arrived_;
};

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kBlocksPerMultiprocessor)
    decode_kernel(const __grid_constant__ DecodeParams params) {
  extern __shared__ __align__(16) unsigned char shared[];
  DecodeStretch stretch;
  const int4* words = reinterpret_cast<const int4*>(params.stretches + blockIdx.x);
  reinterpret_cast<int4*>(&stretch)[0] = __ldg(words);
  reinterpret_cast<int4*>(&stretch)[1] = __ldg(words + 1);
  if (stretch.unit_begin >= stretch.unit_end) return;

  const int warp = threadIdx.x / 32;
  const int team = warp / Traits::kTeamWarps;
  const uint32_t ring = shared_address(shared) + team * Traits::kStages * Traits::kStageBytes;
  KeyStream<Traits> stream(params, stretch, team, threadIdx.x % (32 * Traits::kTeamWarps));
#pragma unroll
  for (int s = 0; s < Traits::kStages - 1; ++s) stream.copy_next(ring + s * Traits::kStageBytes);

  UnitEnd<Traits> unit_end(params, stretch, shared + Traits::kRingBytes);
  WarpState<Traits> state;
  int stage = 0;
  for (DecodeWalk walk(params, stretch); !walk.done(); walk.next()) {
    const DecodePiece piece = walk.piece();
    state.start(params, walk.tile(), piece.head, warp % Traits::kTeamWarps * 16);
    for (int key = piece.begin + team * Traits::kKeys; key < piece.end;
         key += Traits::kTeams * Traits::kKeys) {
      wait_copies<Traits::kStages - 2>();
      // Orders the copies of all threads of the team before the reads, and the reads of the stage that
      // is filled next before its copies.
      synchronise_team<Traits::kTeamWarps>(team);
      const int free = stage == 0 ? Traits::kStages - 1 : stage - 1;
      stream.copy_next(ring + free * Traits::kStageBytes);
      state.attend(ring + stage * Traits::kStageBytes, key, piece.end, params.score_scale);
      stage = stage + 1 == Traits::kStages ? 0 : stage + 1;
    }
    unit_end.finish(state, piece, walk.tile());
  }
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

// The measured choice for a padded head size: warps of a block and depth of the ring; always one block
// a multiprocessor. The ring holds 160 to 200 KB, nearly all of which is in flight.
template <int kDim, int kTeam>
struct DecodeChoice;
template <> struct DecodeChoice<64, 1> { static constexpr int kWarps = 8, kStages = 6; };
template <> struct DecodeChoice<80, 1> { static constexpr int kWarps = 8, kStages = 4; };
template <> struct DecodeChoice<96, 1> { static constexpr int kWarps = 8, kStages = 4; };
template <> struct DecodeChoice<128, 1> { static constexpr int kWarps = 8, kStages = 3; };
template <> struct DecodeChoice<192, 1> { static constexpr int kWarps = 4, kStages = 4; };
template <> struct DecodeChoice<256, 1> { static constexpr int kWarps = 4, kStages = 3; };
template <> struct DecodeChoice<64, 4> { static constexpr int kWarps = 8, kStages = 6; };
template <> struct DecodeChoice<80, 4> { static constexpr int kWarps = 8, kStages = 6; };
template <> struct DecodeChoice<96, 4> { static constexpr int kWarps = 8, kStages = 6; };
template <> struct DecodeChoice<128, 4> { static constexpr int kWarps = 8, kStages = 5; };
template <> struct DecodeChoice<192, 4> { static constexpr int kWarps = 4, kStages = 6; };
template <> struct DecodeChoice<256, 4> { static constexpr int kWarps = 4, kStages = 5; };

template <typename T, int kDim, int kTeam>
using ChosenTraits = DecodeTraits<T,
                                  kDim,
                                  kTeam,
                                  DecodeChoice<kDim, kTeam>::kWarps,
                                  DecodeChoice<kDim, kTeam>::kStages,
                                  1>;

// The instantiations of one padded head size; one file each.
template <int kDim>
cudaError_t launch_decode_dim(const DecodeVariant& variant,
                              const DecodeParams& params,
                              cudaStream_t stream) {
  if (variant.tile_rows == 16) {
    return variant.bf16 ? launch_decode_kernel<ChosenTraits<__nv_bfloat16, kDim, 1>>(params, stream)
                        : launch_decode_kernel<ChosenTraits<__half, kDim, 1>>(params, stream);
  }
  return variant.bf16 ? launch_decode_kernel<ChosenTraits<__nv_bfloat16, kDim, 4>>(params, stream)
                      : launch_decode_kernel<ChosenTraits<__half, kDim, 4>>(params, stream);
}

}  // namespace tenon::flash
