// What a warp of the decode kernel keeps of its query rows, and how it takes keys in. Part of
// decode_kernel.cuh.
#pragma once

#include <cmath>

#include "attention/backends/flash/decode_rules.cuh"
#include "attention/backends/flash/decode_stream.cuh"

namespace tenon::flash {

// Where packed query row `row` of a tile lies.
struct QueryRow {
  int token;  // of the batch row
  int q_head;
  int position;
  int visible;  // keys that it sees

  // Rows past the tile's end are its last one.
  __device__ QueryRow(const DecodeParams& params, const DecodeTile& tile, int head, int row) {
    const int packed = tile.first_row + min(row, tile.rows - 1);
    token = divide(packed, params.group);
    q_head = head * params.group.divisor + packed - token * params.group.divisor;
    position = tile.seq_len - tile.query_len + token;
    visible = params.causal ? position + 1 : tile.seq_len;
  }
  // `factor`: of the row's products, besides those of all rows and of the KV head.
  [[nodiscard]] __device__ RowRule rule(const DecodeParams& params, int head, float factor) const {
    const Extras& extras = params.extras;
    factor *= params.score_scale;
    if (extras.k_scales != nullptr) factor *= __ldg(extras.k_scales + head);
    const float slope = extras.alibi == nullptr ? 0.0F : __ldg(extras.alibi + q_head) * kLog2E;
    return {factor, slope, position, visible};
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

// Sixteen elements of Q from `column` on, in pairs; zeros past the head size.
__device__ __forceinline__ void load_query_16(const void* row,
                                              int column,
                                              int head_dim,
                                              uint32_t (&pairs)[8]) {
  const uint4* from = reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(row) + column);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint4 words = column < head_dim ? __ldg(from + i) : make_uint4(0U, 0U, 0U, 0U);
    pairs[4 * i] = words.x, pairs[4 * i + 1] = words.y;
    pairs[4 * i + 2] = words.z, pairs[4 * i + 3] = words.w;
  }
}

// A row's pairs that the four threads of a quad hold, as f16; returns what products are to be
// multiplied by. `pairs(i)` is a reference to one of a thread's kCount.
template <int kCount, typename Pairs>
__device__ __forceinline__ float queries_to_half(bool bf16, const Pairs& pairs) {
  if (!bf16) return 1.0F;
  float largest = 0.0F;
#pragma unroll
  for (int i = 0; i < kCount; ++i) largest = QueryScale::larger_of(pairs(i), largest);
  largest = fmaxf(largest, __shfl_xor_sync(0xffffffffU, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(0xffffffffU, largest, 2));
  const QueryScale scale(largest);
#pragma unroll
  for (int i = 0; i < kCount; ++i) pairs(i) = scale.to_half(pairs(i));
  return scale.inverse();
}

// The queries of a thread's quad from `row`, as operands of products; returns what those are to be
// multiplied by. `operand(step, half)` is a reference to one of a thread's.
template <typename Traits, typename Operand>
__device__ __forceinline__ float load_queries(const DecodeParams& params,
                                              const typename Traits::T* row,
                                              const Operand& operand) {
  constexpr int kSteps = Traits::kDim / 16;
  const int lane = threadIdx.x % 32;
  if constexpr (Traits::kQuantised) {
#pragma unroll
    for (int s = 0; s < kSteps; s += 4) {
      uint32_t pairs[8];
      load_query_16(row, 16 * s + lane % 4 * 16, params.head_dim, pairs);
#pragma unroll
      for (int i = 0; i < 8; ++i) operand(s + i / 2, i % 2) = pairs[i];
    }
    return queries_to_half<2 * kSteps>(params.bf16,
                                       [&](int i) -> uint32_t& { return operand(i / 2, i % 2); });
  } else {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      operand(s, 0) = load_query(row, 16 * s + lane % 4 * 2, params.head_dim);
      operand(s, 1) = load_query(row, 16 * s + lane % 4 * 2 + 8, params.head_dim);
    }
    return 1.0F;
  }
}

// A warp's state for tiles of 8 or 16 query rows: products with keys and dimensions as rows and
// queries as columns, so that 8 queries fill the narrow side of mma. scores^T = K Q^T, out^T += V^T
// P^T. A thread holds, in each group of 8 queries, those at lane % 4 * 2 and one further; in each
// group of 16 keys or dimensions those at lane / 4 and 8 further; of 8-bit cells, see
// decode_cells.cuh, keys in the order of row_token() and dimensions lane / 4 * 2 and one further.
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
  int visible[kStats];    // without rules
  RowRule rule[Traits::kRules ? kStats : 1];  // with them

  __device__ static int row_of(int stat) { return stat / 2 * 8 + threadIdx.x % 4 * 2 + stat % 2; }
  // Of the threads that hold a row, the one that speaks for it.
  __device__ static bool speaks() { return threadIdx.x % 32 < 4; }

  __device__ void start(const DecodeParams& params, const DecodeTile& tile, int head) {
    const int lane = threadIdx.x % 32;
    float factor[kGroups];  // of the products of row lane / 4 of each group
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const QueryRow query(params, tile, head, g * 8 + lane / 4);
      factor[g] =
          load_queries<Traits>(params, query.address<T>(params, tile),
                               [&](int step, int half) -> uint32_t& { return q[g][step][half]; });
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[g][s][i] = 0.0F;
      }
    }
#pragma unroll
    for (int i = 0; i < kStats; ++i) {
      maximum[i] = -INFINITY;
      sum[i] = 0.0F;
      const QueryRow query(params, tile, head, row_of(i));
      if constexpr (Traits::kRules) {
        const float own = __shfl_sync(0xffffffffU, factor[i / 2], row_of(i) % 8 * 4);
        rule[i] = query.rule(params, head, own);
      } else {
        visible[i] = query.visible;
      }
    }
  }

  // Takes the run of keys [key, key + kKeys) at `stage` in, of which those below `end` exist.
  __device__ void attend(uint32_t stage, int key, int end, const DecodeParams& params) {
    const int lane = threadIdx.x % 32;
    const float scale = Traits::kRules ? 1.0F : params.score_scale;
    // Two sums each, for shorter chains of products that depend on each other.
    float part[kGroups][2][4] = {};
    multiply_keys(stage, part);
    float scores[kGroups][4];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[g][i] = part[g][0][i] + part[g][1][i];
    }
    TokenScales token[2];  // of the thread's two keys
    if constexpr (Traits::kRules) {
      const int row = Traits::kQuantised ? row_token(lane / 4) : lane / 4;
      if constexpr (Traits::kTokenScales) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          token[h] =
              TokenScales(stage + Traits::token_scale(row + 8 * h, false),
                          stage + Traits::token_scale(row + 8 * h, true), key + row + 8 * h < end);
        }
      }
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          scores[g][i] = ruled(params.extras, rule[2 * g + i % 2], scores[g][i] * token[i / 2].k,
                               key + row + i / 2 * 8, end);
        }
      }
    } else if (key + Traits::kKeys > min(__shfl_sync(0xffffffffU, visible[0], 0), end)) {
      // Rows are in the order of their tokens: the first one, of lane 0, sees least.
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
      // With scales by token, of the weights as V meets them.
      high[i] = fmaxf(weighed<Traits::kTokenScales>(scores[i / 2][i % 2], token[0]),
                      weighed<Traits::kTokenScales>(scores[i / 2][i % 2 + 2], token[1]));
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
      p[g][0] =
          transpose_matrix(Element<T>::pack(scores[g][0] * token[0].v, scores[g][1] * token[0].v));
      p[g][1] =
          transpose_matrix(Element<T>::pack(scores[g][2] * token[1].v, scores[g][3] * token[1].v));
    }
    multiply_values(stage, p);
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
        constexpr int kNext = Traits::kQuantised ? 1 : 8;  // the thread's other dimension
        float* row = to + (lane % 2 * 2 + h) * Traits::kMergeStride +
                     lane / 4 * (Traits::kQuantised ? 2 : 1);
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          row[16 * s] = out[g][s][h] * factor[2 * g + h];
          row[16 * s + kNext] = out[g][s][2 + h] * factor[2 * g + h];
        }
      }
    }
  }

 private:
  // part += K Q^T of a stage.
  __device__ void multiply_keys(uint32_t stage, float (&part)[kGroups][2][4]) const {
    const int lane = threadIdx.x % 32;
    if constexpr (Traits::kQuantised) {
      using Format = CellFormat<Traits::kCells>;
      const uint32_t token = row_token(lane / 4);
#pragma unroll
      for (int s = 0; s < kSteps; s += 4) {
        const uint4 rows[2] = {load_shared_16(stage + Traits::piece(token, s + lane % 4)),
                               load_shared_16(stage + Traits::piece(token + 8, s + lane % 4))};
        const uint32_t bytes[2][4] = {{rows[0].x, rows[0].y, rows[0].z, rows[0].w},
                                      {rows[1].x, rows[1].y, rows[1].z, rows[1].w}};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          uint32_t a[4];
          Format::neighbours(bytes[0][i], a[0], a[2]);
          Format::neighbours(bytes[1][i], a[1], a[3]);
#pragma unroll
          for (int g = 0; g < kGroups; ++g) {
            Element<T>::multiply_add(part[g][i % 2], a, q[g][s + i][0], q[g][s + i][1]);
          }
        }
      }
    } else {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        uint32_t a[4];
        load_matrices(a, stage + Traits::cell(lane % 16, s, lane / 16));
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          Element<T>::multiply_add(part[g][s % 2], a, q[g][s][0], q[g][s][1]);
        }
      }
    }
  }

  // out += V^T P^T of a stage.
  __device__ void multiply_values(uint32_t stage, const uint32_t (&p)[kGroups][2]) {
    const int lane = threadIdx.x % 32;
    if constexpr (Traits::kQuantised) {
      using Format = CellFormat<Traits::kCells>;
      const uint32_t token = row_token(lane % 8) + lane / 8 % 2 * 8;
#pragma unroll
      for (int s = 0; s < kSteps; s += 2) {
        uint32_t bytes[4];
        load_matrices_transposed(bytes, stage + Traits::piece(token, kSteps + s + lane / 16));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          uint32_t a[4];
          Format::alternate(bytes[2 * i], a[0], a[1]);
          Format::alternate(bytes[2 * i + 1], a[2], a[3]);
#pragma unroll
          for (int g = 0; g < kGroups; ++g) {
            Element<T>::multiply_add(out[g][s + i], a, p[g][0], p[g][1]);
          }
        }
      }
    } else {
      const uint32_t token = lane / 16 * 8 + lane % 8;
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        uint32_t a[4];
        load_matrices_transposed(
            a, stage + Traits::cell(token, Traits::kFirstValuePair + s, lane / 8 % 2));
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          Element<T>::multiply_add(out[g][s], a, p[g][0], p[g][1]);
        }
      }
    }
  }

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
// each group of 8 columns those at lane % 4 * 2 and one further; of 8-bit cells, see
// decode_cells.cuh, keys in the order of row_token() and dimensions lane % 4 * 4 to 3 further
// of 16.
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
  int visible[2];    // keys that the row sees, without rules
  RowRule rule[Traits::kRules ? 2 : 1];  // with them

  __device__ static int row_of(int stat) { return threadIdx.x % 32 / 4 + 8 * stat; }
  __device__ static bool speaks() { return threadIdx.x % 4 == 0; }

  __device__ void start(const DecodeParams& params, const DecodeTile& tile, int head) {
    const int first = threadIdx.x / 32 % Traits::kTeamWarps * 16;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const QueryRow query(params, tile, head, first + row_of(h));
      const float factor = load_queries<Traits>(
          params, query.address<T>(params, tile),
          [&](int step, int half) -> uint32_t& { return q[step][2 * half + h]; });
      if constexpr (Traits::kRules) {
        rule[h] = query.rule(params, head, factor);
      } else {
        visible[h] = query.visible;
      }
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
  __device__ void attend(uint32_t stage, int key, int end, const DecodeParams& params) {
    const int lane = threadIdx.x % 32;
    const float scale = Traits::kRules ? 1.0F : params.score_scale;
    float scores[kGroups][4];
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[n][i] = 0.0F;
    }
    multiply_keys(stage, scores);
    TokenScales token[Traits::kTokenScales ? kGroups : 1][2];  // of the thread's keys
    if constexpr (Traits::kRules) {
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at =
              8 * n + (Traits::kQuantised ? row_token(lane % 4 * 2 + i % 2) : lane % 4 * 2 + i % 2);
          if constexpr (Traits::kTokenScales) {
            if (i < 2) {
              token[n][i] = TokenScales(stage + Traits::token_scale(at, false),
                                        stage + Traits::token_scale(at, true), key + at < end);
            }
            scores[n][i] *= token[n][i % 2].k;
          }
          scores[n][i] = ruled(params.extras, rule[i / 2], scores[n][i], key + at, end);
        }
      }
    } else if (key + Traits::kKeys > min(__shfl_sync(0xffffffffU, visible[0], 0), end)) {
      // Rows are in the order of their tokens: the first one sees least.
      const int limit[2] = {min(visible[0], end), min(visible[1], end)};
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
        // With scales by token, of the weights as V meets them.
        const TokenScales(&of)[2] = token[Traits::kTokenScales ? n : 0];
        high[h] = fmaxf(high[h], fmaxf(weighed<Traits::kTokenScales>(scores[n][2 * h], of[0]),
                                       weighed<Traits::kTokenScales>(scores[n][2 * h + 1], of[1])));
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
      const TokenScales(&of)[2] = token[Traits::kTokenScales ? n : 0];
      p[n / 2][n % 2 * 2] = Element<T>::pack(scores[n][0] * of[0].v, scores[n][1] * of[1].v);
      p[n / 2][n % 2 * 2 + 1] = Element<T>::pack(scores[n][2] * of[0].v, scores[n][3] * of[1].v);
    }
    multiply_values(stage, p);
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
        if constexpr (Traits::kQuantised) {
          // Products n and n + 1 have the even and the odd dimensions of sixteen.
          if (n % 2 != 0) continue;
          *reinterpret_cast<float4*>(row + lane % 4 * 2 + 8 * n) =
              make_float4(out[n][2 * h] * factor[h], out[n + 1][2 * h] * factor[h],
                          out[n][2 * h + 1] * factor[h], out[n + 1][2 * h + 1] * factor[h]);
        } else {
          *reinterpret_cast<float2*>(row + 8 * n) =
              make_float2(out[n][2 * h] * factor[h], out[n][2 * h + 1] * factor[h]);
        }
      }
    }
  }

 private:
  static constexpr int kGroups = Traits::kKeys / 8;

  // scores += Q K^T of a stage.
  __device__ void multiply_keys(uint32_t stage, float (&scores)[kGroups][4]) const {
    const int lane = threadIdx.x % 32;
    if constexpr (Traits::kQuantised) {
      using Format = CellFormat<Traits::kCells>;
      const uint32_t token = row_token(lane / 4);
#pragma unroll
      for (int s = 0; s < kSteps; s += 4) {
#pragma unroll
        for (int n = 0; n < kGroups; ++n) {
          const uint4 words = load_shared_16(stage + Traits::piece(8 * n + token, s + lane % 4));
          const uint32_t bytes[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            uint32_t b[2];
            Format::neighbours(bytes[i], b[0], b[1]);
            Element<T>::multiply_add(scores[n], q[s + i], b[0], b[1]);
          }
        }
      }
    } else {
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
    }
  }

  // out += P V of a stage.
  __device__ void multiply_values(uint32_t stage, const uint32_t (&p)[kGroups / 2][4]) {
    const int lane = threadIdx.x % 32;
    if constexpr (Traits::kQuantised) {
      using Format = CellFormat<Traits::kCells>;
      const uint32_t token = row_token(lane % 8) + lane / 8 % 2 * 8;
#pragma unroll
      for (int g = 0; g < kGroups / 2; ++g) {
#pragma unroll
        for (int s = 0; s < kSteps; s += 2) {
          uint32_t bytes[4];
          load_matrices_transposed(bytes,
                                   stage + Traits::piece(16 * g + token, kSteps + s + lane / 16));
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            uint32_t even[2];
            uint32_t odd[2];
            Format::alternate(bytes[2 * i], even[0], odd[0]);
            Format::alternate(bytes[2 * i + 1], even[1], odd[1]);
            Element<T>::multiply_add(out[2 * (s + i)], p[g], even[0], even[1]);
            Element<T>::multiply_add(out[2 * (s + i) + 1], p[g], odd[0], odd[1]);
          }
        }
      }
    } else {
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
  }

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
