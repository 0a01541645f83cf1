// q . k for a tile of keys, in two ways that give the same bits: from cells as they lie, for few
// rows, and from transposed keys, for many. Included by kernels.cc only.
#if defined(TENON_ATTENTION_CPU_SCORES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TENON_ATTENTION_CPU_SCORES_INL_H
#undef TENON_ATTENTION_CPU_SCORES_INL_H
#else
#define TENON_ATTENTION_CPU_SCORES_INL_H
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "attention/backends/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tenon::cpu_attention {
namespace HWY_NAMESPACE {
namespace {

// Keys whose dot products with four rows are summed at once, by the same count of registers.
constexpr size_t kKeysAtOnce = kLanes == 8 ? 2 : kLanes == 1 ? 1 : 4;

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE V even_lanes(V, V lo) {
  return lo;
}
HWY_INLINE V odd_lanes(V hi, V) {
  return hi;
}
#else
HWY_INLINE V even_lanes(V hi, V lo) {
  return hn::ConcatEven(F32(), hi, lo);
}
HWY_INLINE V odd_lanes(V hi, V lo) {
  return hn::ConcatOdd(F32(), hi, lo);
}
#endif

// Sums the lanes of kCount vectors, neighbours first: afterwards v[0] holds their sums in order.
template <size_t kCount>
HWY_INLINE void fold(V* v) {
  if constexpr (kCount > 1) {
#pragma GCC unroll 8
    for (size_t i = 0; i < kCount / 2; ++i) {
      v[i] = hn::Add(even_lanes(v[2 * i + 1], v[2 * i]), odd_lanes(v[2 * i + 1], v[2 * i]));
    }
    fold<kCount / 2>(v);
  }
}

// One round of the transposition network; log2(lanes) rounds transpose a square of vectors.
template <size_t kRounds>
HWY_INLINE void transpose(V* v) {
  if constexpr (kRounds > 1) {
    V out[kLanes];
#pragma GCC unroll 8
    for (size_t i = 0; i < kLanes / 2; ++i) {
      out[i] = even_lanes(v[2 * i + 1], v[2 * i]);
      out[i + kLanes / 2] = odd_lanes(v[2 * i + 1], v[2 * i]);
    }
#pragma GCC unroll 16
    for (size_t i = 0; i < kLanes; ++i) v[i] = out[i];
    transpose<kRounds / 2>(v);
  }
}

// k_columns[d][key] := tile[key][d] for the vectors of keys that touch `range`.
void transpose_tile(const float* HWY_RESTRICT tile,
                    KeyRange range,
                    int32_t dim,
                    float* HWY_RESTRICT k_columns) {
  constexpr auto kStep = static_cast<int32_t>(kLanes);
  for (int32_t key = range.begin / kStep * kStep; key < range.end; key += kStep) {
    for (int32_t d = 0; d < dim; d += kStep) {
      V v[kLanes];
#pragma GCC unroll 16
      for (size_t i = 0; i < kLanes; ++i) {
        v[i] = hn::LoadU(F32(), tile + (static_cast<int64_t>(i) + key) * dim + d);
      }
      transpose<kLanes>(v);
#pragma GCC unroll 16
      for (size_t i = 0; i < kLanes; ++i) {
        hn::StoreU(v[i], F32(), k_columns + (static_cast<int64_t>(i) + d) * kTileKeys + key);
      }
    }
  }
}

// scores[r][key] = q[r] . keys[key] for the vectors of keys that touch `range`, from cells as they
// lie.
template <DType kType, int kRows>
void scores_of_cells(const float* HWY_RESTRICT q,
                     CellRows<kType> keys,
                     KeyRange range,
                     int32_t dim,
                     Prefetch& prefetch,
                     float* HWY_RESTRICT scores) {
  constexpr auto kStep = static_cast<int32_t>(kLanes);
  constexpr size_t kParts = kLanes / kKeysAtOnce;
  constexpr auto kAsks = static_cast<int32_t>(kLanes) / Prefetch::kKeysAStep;
  const F32 d;
  for (int32_t key = range.begin / kStep * kStep; key < range.end; key += kStep) {
    if (kAsks == 0) prefetch.ask();
    V folded[kRows][kParts];  // folding in two stages gives the same sums as all lanes at once
    for (size_t part = 0; part < kParts; ++part) {
      const auto* const* k = keys + key + part * kKeysAtOnce;
      if (kAsks > 0 && part % (kParts / std::max(1, kAsks)) == 0) prefetch.ask();
      V sums[kRows][kKeysAtOnce];
#pragma GCC unroll 4
      for (size_t i = 0; i < kKeysAtOnce; ++i) {
        const V cells = Cell<kType>::load(k[i]);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          sums[r][i] = hn::Mul(hn::LoadU(d, q + int64_t{r} * dim), cells);
        }
      }
      for (int32_t at = kStep; at < dim; at += kStep) {
#pragma GCC unroll 4
        for (size_t i = 0; i < kKeysAtOnce; ++i) {
          const V cells = Cell<kType>::load(k[i] + at);
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) {
            sums[r][i] = hn::MulAdd(hn::LoadU(d, q + int64_t{r} * dim + at), cells, sums[r][i]);
          }
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        fold<kKeysAtOnce>(sums[r]);
        folded[r][part] = sums[r][0];
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      fold<kParts>(folded[r]);
      hn::StoreU(folded[r][0], d, scores + int64_t{r} * kTileKeys + key);
    }
  }
}

template <int kRows, int kVectors>
struct Sums {
  V v[kRows][kVectors];
};

// The sum over features i, i + lanes, i + 2 lanes, ... of q[r][i] * k_columns[i]: what lane i of
// scores_of_cells holds before it folds, here for vectors of keys and some rows.
template <int kRows, int kVectors>
HWY_INLINE Sums<kRows, kVectors> feature_chain(const float* HWY_RESTRICT q,
                                               const float* HWY_RESTRICT columns,
                                               int32_t dim) {
  const F32 d;
  Sums<kRows, kVectors> sum;
  V k[kVectors];
#pragma GCC unroll 4
  for (int c = 0; c < kVectors; ++c) k[c] = hn::LoadU(d, columns + c * kLanes);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const V value = hn::Set(d, q[int64_t{r} * dim]);
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) sum.v[r][c] = hn::Mul(value, k[c]);
  }
  for (auto i = static_cast<int32_t>(kLanes); i < dim; i += static_cast<int32_t>(kLanes)) {
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) {
      k[c] = hn::LoadU(d, columns + int64_t{i} * kTileKeys + c * kLanes);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const V value = hn::Set(d, q[int64_t{r} * dim + i]);
#pragma GCC unroll 4
      for (int c = 0; c < kVectors; ++c) sum.v[r][c] = hn::MulAdd(value, k[c], sum.v[r][c]);
    }
  }
  return sum;
}

// Adds the chains of kCount features in the order in which fold() adds lanes.
template <size_t kCount, int kRows, int kVectors>
HWY_INLINE Sums<kRows, kVectors> feature_tree(const float* HWY_RESTRICT q,
                                              const float* HWY_RESTRICT columns,
                                              int32_t dim) {
  if constexpr (kCount == 1) {
    return feature_chain<kRows, kVectors>(q, columns, dim);
  } else {
    constexpr size_t kHalf = kCount / 2;
    Sums<kRows, kVectors> low = feature_tree<kHalf, kRows, kVectors>(q, columns, dim);
    const Sums<kRows, kVectors> high =
        feature_tree<kHalf, kRows, kVectors>(q + kHalf, columns + kHalf * kTileKeys, dim);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kVectors; ++c) low.v[r][c] = hn::Add(low.v[r][c], high.v[r][c]);
    }
    return low;
  }
}

// scores[r][key] for four rows; the same bits as scores_of_cells.
void scores_of_four(const float* HWY_RESTRICT q,
                    const float* HWY_RESTRICT k_columns,
                    KeyRange range,
                    int32_t dim,
                    float* HWY_RESTRICT scores) {
  // What there are registers for, beside the partial sums of the tree.
  constexpr int kRows = 4;
  constexpr int kVectors = kLanes >= 16 ? 2 : 1;
  constexpr auto kStep = static_cast<int32_t>(kLanes) * kVectors;
  for (int32_t key = range.begin / kStep * kStep; key < range.end; key += kStep) {
    for (int first = 0; first < kRowPadding; first += kRows) {
      const auto sum =
          feature_tree<kLanes, kRows, kVectors>(q + int64_t{first} * dim, k_columns + key, dim);
      for (int r = 0; r < kRows; ++r) {
        for (int c = 0; c < kVectors; ++c) {
          hn::StoreU(sum.v[r][c], F32(), scores + (first + r) * kTileKeys + key + c * kLanes);
        }
      }
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tenon::cpu_attention
HWY_AFTER_NAMESPACE();

#endif
