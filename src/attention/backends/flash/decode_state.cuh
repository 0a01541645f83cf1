// What a warp of the decode kernel keeps of its query rows, and how it takes keys in. Part of
// decode_kernel.cuh.
#pragma once

#include <cmath>

#include "attention/backends/flash/decode_stream.cuh"

namespace tenon::flash {

// e^x in base 2 for x <= 0, 0 for -inf.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Where packed query row `row` of a tile lies.
struct QueryRow {
  int token;  // of the batch row
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

// A warp's state for tiles of 8 or 16 query rows: products with keys and dimensions as rows and
// queries as columns, so that 8 queries fill the narrow side of mma. scores^T = K Q^T, out^T += V^T
// P^T. A thread holds, in each group of 8 queries, those at lane % 4 * 2 and one further; in each
// group of 16 keys or dimensions those at lane / 4 and 8 further.
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
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      uint32_t a[4];
      load_matrices(a, stage + Traits::cell(lane % 16, s, lane / 16));
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
    const uint32_t v_token = lane / 16 * 8 + lane % 8;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      uint32_t a[4];
      load_matrices_transposed(
          a, stage + Traits::cell(v_token, Traits::kFirstValuePair + s, lane / 8 % 2));
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

// A warp's state for tiles of 64 query rows, of which warp w of a team has [16 w, 16 w + 16):
// queries are rows, keys and dimensions columns. A thread holds rows lane / 4 and lane / 4 + 8, in
// each group of 8 columns those at lane % 4 * 2 and one further.
template <typename Traits>
struct WideState {
  using T = typename Traits::T;
  static constexpr int kSteps = Traits::kDim / 16;
  static constexpr int kStats = 2;
  static_assert(!Traits::kBulk);

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

}  // namespace tenon::flash
