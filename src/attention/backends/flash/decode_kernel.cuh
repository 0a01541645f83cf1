// The decode kernel; decode_*.cu instantiate it, decode.cc chooses the instantiation.
//
// A block is made of teams of one or four warps. A team has its own ring of stages in shared memory and
// takes every kTeams-th run of kKeys keys of the block's stretch, so that teams never wait for each
// other inside a unit. The copies of a team run ahead of its products by the depth of the ring, also
// across units. At the end of a unit the teams' results meet in shared memory; the pieces of a unit
// that was cut meet in global memory.
#pragma once

#include <cmath>
#include <type_traits>

#include "attention/backends/flash/decode.h"
#include "attention/backends/flash/mma.cuh"

namespace tenon::flash {

template <typename ElementType, int kHeadDim, int kTileRows, int kBlockWarps, int kDepth>
struct DecodeTraits {
  using T = ElementType;
  static constexpr int kDim = kHeadDim;  // padded
  static constexpr int kRows = kTileRows;
  static constexpr int kTeamWarps = kTileRows <= 16 ? 1 : kTileRows / 16;
  static constexpr int kWarps = kBlockWarps;
  static constexpr int kStages = kDepth;

  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kTeams = kWarps / kTeamWarps;
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
  static_assert(kSharedBytes <= 232448);  // what a block may have on sm_90

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

// A stretch as threads hold it.
struct StretchStart {
  int unit_begin;
  int unit_end;
  int key_begin;
  int key_end;
  int first_stretch;
  int last_stretch;
  int first_page;
  int total;
  DecodeTile tile;
  int page;  // the lane's one of DecodeStretch::pages
};

__device__ __forceinline__ StretchStart load_stretch(const DecodeStretch& from) {
  const int4* words = reinterpret_cast<const int4*>(&from);
  const int4 a = __ldg(words);
  const int4 b = __ldg(words + 1);
  StretchStart s;
  reinterpret_cast<int4*>(&s.tile)[0] = __ldg(words + 2);
  reinterpret_cast<int4*>(&s.tile)[1] = __ldg(words + 3);
  s.page = __ldg(from.pages + threadIdx.x % DecodeStretch::kPages);
  s.unit_begin = a.x, s.unit_end = a.y, s.key_begin = a.z, s.key_end = a.w;
  s.first_stretch = b.x, s.last_stretch = b.y, s.first_page = b.z, s.total = b.w;
  return s;
}

// Walks the units of a stretch, and keeps the tile of the current one.
class DecodeWalk {
 public:
  // Requires: a stretch that is not empty.
  __device__ DecodeWalk(const DecodeParams& params, const StretchStart& stretch)
      : params_(params),
        stretch_(stretch),
        unit_(stretch.unit_begin),
        tile_index_(stretch.unit_begin / params.num_kv_heads),
        tile_(stretch.tile) {}
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
  __device__ bool at_first() const { return unit_ == stretch_.unit_begin; }
  __device__ bool at_last() const { return unit_ + 1 == stretch_.unit_end; }

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
  const StretchStart& stretch_;
  int unit_;
  int tile_index_;
  DecodeTile tile_;
};

// The copying side of a team: puts run after run of keys into the ring. All threads of a team carry
// the same state, but for the page that each lane has looked up for its key of the next run.
template <typename Traits>
class KeyStream {
 public:
  using T = typename Traits::T;

  __device__ KeyStream(const DecodeParams& params, const StretchStart& stretch, int team, int thread)
      : params_(params),
        stretch_(stretch),
        walk_(params, stretch),
        team_(team),
        thread_(thread),
        lane_(thread % 32) {
    policy_ = evict_first_policy();
    open();
    look_up();
  }

  // Starts the copies of the next run, if there is one; commits a group in any case.
  __device__ void copy_next(uint32_t stage) {
    if (!walk_.done()) {
      const int page = divide(key_, params_.page_size);
      const int in_page = key_ - page * params_.page_size.divisor;
      if (in_page + Traits::kKeys <= params_.page_size.divisor && key_ + Traits::kKeys <= end_ &&
          params_.head_dim == Traits::kDim) {
        copy_run(stage, in_page);
      } else {
        copy_cells(stage);
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
  // A run of whole cells inside one page.
  __device__ void copy_run(uint32_t stage, int in_page) {
    const int64_t page = __shfl_sync(0xffffffffU, page_, 0);
    const T* cell = head_base_ + page * params_.page_stride + in_page * params_.token_stride;
#pragma unroll
    for (int i = 0; i < Traits::kCopies; ++i) {
      const int chunk = i * 32 * Traits::kTeamWarps + thread_;
      const int token = chunk / Traits::kChunks;
      const int column = chunk % Traits::kChunks;
      copy_async(stage + token * Traits::kRowBytes + column * 16,
                 cell + token * params_.token_stride + column * 8, policy_);
    }
  }
  // Any run: cells may lie in several pages, end before the run does, and be narrower than the stage.
  __device__ void copy_cells(uint32_t stage) {
    const int key = key_ + lane_;
    const int in_page = key - divide(key, params_.page_size) * params_.page_size.divisor;
    const T* cell = head_base_ + int64_t{page_} * params_.page_stride + in_page * params_.token_stride;
    const auto address = reinterpret_cast<unsigned long long>(cell);
#pragma unroll 4
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
  }
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
  // Keys past the end look up the last one's page: some address that exists.
  __device__ void look_up() {
    if (walk_.done()) return;
    const int page = divide(min(key_ + lane_, end_ - 1), params_.page_size);
    const int nth = page - stretch_.first_page;
    if (walk_.at_first() && __all_sync(0xffffffffU, nth < DecodeStretch::kPages)) {
      page_ = __shfl_sync(0xffffffffU, stretch_.page, nth);  // the low half of the warp has them
    } else {
      page_ = __ldg(params_.page_indices + walk_.tile().page_begin + page);
    }
  }

  const DecodeParams& params_;
  const StretchStart& stretch_;
  DecodeWalk walk_;
  const int team_;
  const int thread_;  // of the team
  const int lane_;
  uint64_t policy_;
  const T* head_base_ = nullptr;
  int key_ = 0;  // first key of the next run
  int end_ = 0;
  int page_ = 0;
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

// Where packed query row `row` of a tile lies.
struct QueryRow {
  int token;    // of the batch row
  int q_head;
  int visible;  // keys that it sees

  // Rows past the tile's end are its last one.
  __device__ QueryRow(const DecodeParams& params, const DecodeTile& tile, int head, int row) {
    const int packed = tile.first_row + min(row, tile.rows - 1);
    token = divide(packed, params.group);
    q_head = head * params.group.divisor + packed - token * params.group.divisor;
    visible = params.causal ? tile.seq_len - tile.query_len + token + 1 : tile.seq_len;
  }
  template <typename T>
  __device__ const T* address(const DecodeParams& params, const DecodeTile& tile) const {
    return static_cast<const T*>(params.q) + (tile.first_token + token) * params.q_stride +
           q_head * params.head_dim;
  }
};

// Two elements of Q from `column` on; zeros past the head size.
template <typename T>
__device__ __forceinline__ uint32_t load_query(const T* row, int column, int head_dim) {
  return column < head_dim ? __ldg(reinterpret_cast<const unsigned int*>(row + column)) : 0U;
}

// A warp's state for tiles of 8 or 16 query rows: products with keys and dimensions as rows and queries
// as columns, so that 8 queries fill the narrow side of mma. scores^T = K Q^T, out^T += V^T P^T. A thread
// holds, in each group of 8 queries, those at lane % 4 * 2 and one further; in each group of 16 keys or
// dimensions those at lane / 4 and 8 further.
template <typename Traits>
struct NarrowState {
  using T = typename Traits::T;
  static constexpr int kSteps = Traits::kDim / 16;
  static constexpr int kGroups = Traits::kRows / 8;
  static constexpr int kStats = 2 * kGroups;  // query rows of a thread
  static_assert(Traits::kKeys == 16);

  uint32_t q[kGroups][kSteps][2];
  float out[kGroups][kSteps][4];
  float maximum[kStats];  // of the row's scores before scaling, -inf while there is none
  float sum[kStats];      // of this thread's keys
  int visible[kStats];

  __device__ static int row_of(int stat) { return stat / 2 * 8 + threadIdx.x % 4 * 2 + stat % 2; }
  // Of the threads that hold a row, the one that speaks for it.
  __device__ static bool speaks() { return threadIdx.x % 32 < 4; }

  __device__ void start(const DecodeParams& params, const DecodeTile& tile, int head) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const QueryRow query(params, tile, head, g * 8 + lane / 4);
      const T* row = query.address<T>(params, tile);
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        q[g][s][0] = load_query(row, 16 * s + lane % 4 * 2, params.head_dim);
        q[g][s][1] = load_query(row, 16 * s + lane % 4 * 2 + 8, params.head_dim);
#pragma unroll
        for (int i = 0; i < 4; ++i) out[g][s][i] = 0.0F;
      }
    }
#pragma unroll
    for (int i = 0; i < kStats; ++i) {
      maximum[i] = -INFINITY;
      sum[i] = 0.0F;
      visible[i] = QueryRow(params, tile, head, row_of(i)).visible;
    }
  }

  // Takes the run of keys [key, key + kKeys) at `stage` in, of which those below `end` exist.
  __device__ void attend(uint32_t stage, int key, int end, float scale) {
    const int lane = threadIdx.x % 32;
    // Two sums each, for shorter chains of products that depend on each other.
    float part[kGroups][2][4] = {};
    const uint32_t k_row = stage + lane % 16 * Traits::kRowBytes + lane / 16 * 16;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      uint32_t a[4];
      load_matrices(a, k_row + s * 32);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        Element<T>::multiply_add(part[g][s % 2], a, q[g][s][0], q[g][s][1]);
      }
    }
    float scores[kGroups][4];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[g][i] = part[g][0][i] + part[g][1][i];
    }
    // Rows are in the order of their tokens: the first one, of lane 0, sees least.
    if (key + Traits::kKeys > min(__shfl_sync(0xffffffffU, visible[0], 0), end)) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int limit = min(visible[2 * g + i % 2], end);
          if (key + lane / 4 + i / 2 * 8 >= limit) scores[g][i] = -INFINITY;
        }
      }
    }
    float high[kStats];
    bool rises = false;
#pragma unroll
    for (int i = 0; i < kStats; ++i) {
      high[i] = fmaxf(scores[i / 2][i % 2], scores[i / 2][i % 2 + 2]);
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) {
        high[i] = fmaxf(high[i], __shfl_xor_sync(0xffffffffU, high[i], lanes));
      }
      high[i] = fmaxf(high[i], maximum[i]);
      rises = rises || high[i] > maximum[i];
    }
    if (__any_sync(0xffffffffU, rises)) rescale(high, scale);
    uint32_t p[kGroups][2];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float offset = high[2 * g + i % 2] == -INFINITY ? 0.0F : high[2 * g + i % 2] * scale;
        scores[g][i] = exp2_fast(scores[g][i] * scale - offset);
        sum[2 * g + i % 2] += scores[g][i];
      }
      p[g][0] = transpose_matrix(Element<T>::pack(scores[g][0], scores[g][1]));
      p[g][1] = transpose_matrix(Element<T>::pack(scores[g][2], scores[g][3]));
    }
    const uint32_t v_row = stage + (lane / 16 * 8 + lane % 8) * Traits::kRowBytes +
                           Traits::kDim * 2 + lane / 8 % 2 * 16;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      uint32_t a[4];
      load_matrices_transposed(a, v_row + s * 32);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        Element<T>::multiply_add(out[g][s], a, p[g][0], p[g][1]);
      }
    }
  }

  // Makes the sums those of the whole rows.
  __device__ void add_sums() {
#pragma unroll
    for (int i = 0; i < kStats; ++i) {
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) {
        sum[i] += __shfl_xor_sync(0xffffffffU, sum[i], lanes);
      }
    }
  }

  // Stores rows [4 pass, 4 pass + 4), each times its factor.
  __device__ void store_rows(int pass, const float (&factor)[kStats], float* to) const {
    const int lane = threadIdx.x % 32;
    if (lane % 4 / 2 != pass % 2) return;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (g != pass / 2) continue;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float* row = to + (lane % 2 * 2 + h) * Traits::kMergeStride + lane / 4;
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          row[16 * s] = out[g][s][h] * factor[2 * g + h];
          row[16 * s + 8] = out[g][s][2 + h] * factor[2 * g + h];
        }
      }
    }
  }

 private:
  __device__ void rescale(const float (&high)[kStats], float scale) {
#pragma unroll
    for (int i = 0; i < kStats; ++i) {
      // A row that has seen nothing yet holds zeros.
      const float factor =
          maximum[i] == -INFINITY ? 0.0F : exp2_fast((maximum[i] - high[i]) * scale);
      maximum[i] = high[i];
      sum[i] *= factor;
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        out[i / 2][s][i % 2] *= factor;
        out[i / 2][s][i % 2 + 2] *= factor;
      }
    }
  }
};

// A warp's state for tiles of 64 query rows, of which warp w of a team has [16 w, 16 w + 16): queries are
// rows, keys and dimensions columns. A thread holds rows lane / 4 and lane / 4 + 8, in each group of 8
// columns those at lane % 4 * 2 and one further.
template <typename Traits>
struct WideState {
  using T = typename Traits::T;
  static constexpr int kSteps = Traits::kDim / 16;
  static constexpr int kStats = 2;

  uint32_t q[kSteps][4];
  float out[2 * kSteps][4];
  float maximum[2];  // of the row's scores before scaling, -inf while there is none
  float sum[2];      // of this thread's columns
  int visible[2];    // keys that the row sees

  __device__ static int row_of(int stat) { return threadIdx.x % 32 / 4 + 8 * stat; }
  __device__ static bool speaks() { return threadIdx.x % 4 == 0; }

  __device__ void start(const DecodeParams& params, const DecodeTile& tile, int head) {
    const int lane = threadIdx.x % 32;
    const int first = threadIdx.x / 32 % Traits::kTeamWarps * 16;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const QueryRow query(params, tile, head, first + row_of(h));
      const T* row = query.address<T>(params, tile);
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        q[s][h] = load_query(row, 16 * s + lane % 4 * 2, params.head_dim);
        q[s][2 + h] = load_query(row, 16 * s + lane % 4 * 2 + 8, params.head_dim);
      }
      visible[h] = query.visible;
      maximum[h] = -INFINITY;
      sum[h] = 0.0F;
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

  __device__ void add_sums() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] += __shfl_xor_sync(0xffffffffU, sum[h], 1);
      sum[h] += __shfl_xor_sync(0xffffffffU, sum[h], 2);
    }
  }

  __device__ void store_rows(int pass, const float (&factor)[kStats], float* to) const {
    const int lane = threadIdx.x % 32;
    if (lane / 16 != pass % 2) return;
    float* row = to + lane / 4 % 4 * Traits::kMergeStride + lane % 4 * 2;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (h != pass / 2) continue;
#pragma unroll
      for (int n = 0; n < 2 * kSteps; ++n) {
        *reinterpret_cast<float2*>(row + 8 * n) =
            make_float2(out[n][2 * h] * factor[h], out[n][2 * h + 1] * factor[h]);
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

template <typename Traits>
using StateOf =
    std::conditional_t<Traits::kTeamWarps == 1, NarrowState<Traits>, WideState<Traits>>;

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
          if (quad == 0) reinterpret_cast<float2*>(slot + Traits::kRows * Traits::kDim)[row] = row_state;
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
    return maximum == -INFINITY ? 0.0F : exp2_fast((maximum - high) * params_.score_scale);
  }

  // Where stretch `index` leaves its piece of the unit that began in stretch `first`: there is at most
  // one piece of a unit that began before it, and one of a unit that ends after it.
  __device__ float* partial(int index, int first) const {
    return params_.partials + (int64_t{2} * index + (index == first ? 1 : 0)) * Traits::kSlotFloats;
  }

  // The last block to come merges the pieces, of stretches [first, last].
  __device__ void merge_pieces(const DecodePiece& piece, const DecodeTile& tile, int first, int last) {
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
  const StretchStart& stretch_;
  const int index_;            // of the stretch
  float* const merge_;         // [kWarps][4][kMergeStride]
  float2* const warp_state_;   // [kWarps][16] (maximum, sum)
  float2* const row_state_;    // [kRows]
  int* const arrived_;
};

// Streams one stretch; returns the one to do next, if any.
template <typename Traits>
__device__ __forceinline__ int run_stretch(const DecodeParams& params,
                                           int index,
                                           unsigned char* shared) {
  const StretchStart stretch = load_stretch(params.stretches[index]);
  if (stretch.unit_begin >= stretch.unit_end) return -1;
  const int team = threadIdx.x / 32 / Traits::kTeamWarps;
  const uint32_t ring = shared_address(shared) + team * Traits::kStages * Traits::kStageBytes;
  KeyStream<Traits> stream(params, stretch, team, threadIdx.x % (32 * Traits::kTeamWarps));
#pragma unroll 1  // code that is short starts sooner
  for (int s = 0; s < Traits::kStages - 1; ++s) stream.copy_next(ring + s * Traits::kStageBytes);

  UnitEnd<Traits> unit_end(params, stretch, index, shared + Traits::kRingBytes);
  StateOf<Traits> state;
  int stage = 0;
  const int blocks = static_cast<int>(gridDim.x);
  int claimed = stretch.total;
  for (DecodeWalk walk(params, stretch); !walk.done(); walk.next()) {
    const DecodePiece piece = walk.piece();
    state.start(params, walk.tile(), piece.head);
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
  extern __shared__ __align__(16) unsigned char shared[];
  int index = static_cast<int>(blockIdx.x);
  do {
    index = run_stretch<Traits>(params, index, shared);
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

// The measured choice for a padded head size: warps of a block and depth of the ring, which holds 160
// to 200 KB; nearly all of it is in flight.
template <int kDim, bool kWide>
struct DecodeChoice;
template <> struct DecodeChoice<64, false> { static constexpr int kWarps = 8, kStages = 6; };
template <> struct DecodeChoice<80, false> { static constexpr int kWarps = 8, kStages = 4; };
template <> struct DecodeChoice<96, false> { static constexpr int kWarps = 8, kStages = 4; };
template <> struct DecodeChoice<128, false> { static constexpr int kWarps = 8, kStages = 3; };
template <> struct DecodeChoice<192, false> { static constexpr int kWarps = 4, kStages = 4; };
template <> struct DecodeChoice<256, false> { static constexpr int kWarps = 4, kStages = 3; };
template <> struct DecodeChoice<64, true> { static constexpr int kWarps = 8, kStages = 6; };
template <> struct DecodeChoice<80, true> { static constexpr int kWarps = 8, kStages = 6; };
template <> struct DecodeChoice<96, true> { static constexpr int kWarps = 8, kStages = 6; };
template <> struct DecodeChoice<128, true> { static constexpr int kWarps = 8, kStages = 5; };
template <> struct DecodeChoice<192, true> { static constexpr int kWarps = 4, kStages = 6; };
template <> struct DecodeChoice<256, true> { static constexpr int kWarps = 4, kStages = 5; };

template <typename T, int kDim, int kRows>
cudaError_t launch_chosen(const DecodeParams& params, cudaStream_t stream) {
  using Choice = DecodeChoice<kDim, (kRows > 16)>;
  return launch_decode_kernel<DecodeTraits<T, kDim, kRows, Choice::kWarps, Choice::kStages>>(
      params, stream);
}

template <typename T, int kDim>
cudaError_t launch_rows(const DecodeVariant& variant,
                        const DecodeParams& params,
                        cudaStream_t stream) {
  switch (variant.tile_rows) {
    case 8:
      return launch_chosen<T, kDim, 8>(params, stream);
    case 16:
      return launch_chosen<T, kDim, 16>(params, stream);
    default:
      return launch_chosen<T, kDim, 64>(params, stream);
  }
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
