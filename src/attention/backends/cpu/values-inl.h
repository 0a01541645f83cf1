// Sums of values, weighted, for a tile of keys. Included by kernels.cc only.
#if defined(TENON_ATTENTION_CPU_VALUES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TENON_ATTENTION_CPU_VALUES_INL_H
#undef TENON_ATTENTION_CPU_VALUES_INL_H
#else
#define TENON_ATTENTION_CPU_VALUES_INL_H
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "attention/backends/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tenon::cpu_attention {
namespace HWY_NAMESPACE {
namespace {

// Vectors of output features kept in registers beside four rows: 16 accumulators where there are 32
// registers.
constexpr int kOutVectors = kLanes >= 16 ? 4 : 2;

// acc[r] = acc[r] * alpha[r] + sum over keys in `range`, ascending, of weights[r][key] *
// values[key], for features [first, first + kVectors * lanes) of kRows rows.
template <DType kType, int kRows, int kVectors>
HWY_INLINE void weigh_block(const float* HWY_RESTRICT weights,
                            const float* alpha,
                            KeyRange range,
                            CellRows<kType> values,
                            int32_t first,
                            int32_t dim,
                            Prefetch& prefetch,
                            float* HWY_RESTRICT acc) {
  const F32 d;
  V sum[kRows][kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const V factor = hn::Set(d, alpha[r]);
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) {
      sum[r][c] =
          hn::Mul(factor, hn::LoadU(d, acc + int64_t{r} * dim + first + c * int64_t{kLanes}));
    }
  }
  for (int32_t key = range.begin; key < range.end; ++key) {
    if (key % Prefetch::kKeysAStep == 0) prefetch.ask();
    V value[kVectors];
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) {
      value[c] = Cell<kType>::load(values[key] + first + c * int64_t{kLanes});
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const V weight = hn::Set(d, weights[r * kTileKeys + key]);
#pragma GCC unroll 4
      for (int c = 0; c < kVectors; ++c) sum[r][c] = hn::MulAdd(weight, value[c], sum[r][c]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) {
      hn::StoreU(sum[r][c], d, acc + int64_t{r} * dim + first + c * int64_t{kLanes});
    }
  }
}

template <DType kType, int kRows>
void weigh_rows(const float* weights,
                const float* alpha,
                KeyRange range,
                CellRows<kType> values,
                int32_t dim,
                Prefetch& prefetch,
                float* acc) {
  constexpr int32_t kWide = kOutVectors * static_cast<int32_t>(kLanes);
  int32_t i = 0;
  for (; i + kWide <= dim; i += kWide) {
    weigh_block<kType, kRows, kOutVectors>(weights, alpha, range, values, i, dim, prefetch, acc);
  }
  for (; i < dim; i += static_cast<int32_t>(kLanes)) {
    weigh_block<kType, kRows, 1>(weights, alpha, range, values, i, dim, prefetch, acc);
  }
}

template <DType kType>
void weigh(int32_t rows,
           const float* weights,
           const float* alpha,
           KeyRange range,
           CellRows<kType> values,
           int32_t dim,
           Prefetch& prefetch,
           float* acc) {
  switch (rows) {
    case 1: return weigh_rows<kType, 1>(weights, alpha, range, values, dim, prefetch, acc);
    case 2: return weigh_rows<kType, 2>(weights, alpha, range, values, dim, prefetch, acc);
    case 3: return weigh_rows<kType, 3>(weights, alpha, range, values, dim, prefetch, acc);
    default: return weigh_rows<kType, 4>(weights, alpha, range, values, dim, prefetch, acc);
  }
}

// As weigh(), for up to four rows whose ranges differ: the keys common to all go in one pass,
// before and after them each row alone, so that no row ever touches a value it may not see.
template <DType kType>
void weigh_ranges(int32_t rows,
                  const float* weights,
                  float* alpha,
                  const KeyRange* ranges,
                  CellRows<kType> values,
                  int32_t dim,
                  Prefetch& prefetch,
                  float* acc) {
  KeyRange common = ranges[0];
  for (int32_t r = 1; r < rows; ++r) {
    common.begin = std::max(common.begin, ranges[r].begin);
    common.end = std::min(common.end, ranges[r].end);
  }
  const auto alone = [&](int32_t r, KeyRange range) {
    if (range.begin >= range.end) return;
    weigh<kType>(1, weights + int64_t{r} * kTileKeys, alpha + r, range, values, dim,
                 prefetch, acc + int64_t{r} * dim);
    alpha[r] = 1.0F;
  };
  if (common.begin >= common.end) {
    for (int32_t r = 0; r < rows; ++r) alone(r, ranges[r]);
    return;
  }
  for (int32_t r = 0; r < rows; ++r) alone(r, {ranges[r].begin, common.begin});
  weigh<kType>(rows, weights, alpha, common, values, dim, prefetch, acc);
  std::fill_n(alpha, rows, 1.0F);
  for (int32_t r = 0; r < rows; ++r) alone(r, {common.end, ranges[r].end});
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tenon::cpu_attention
HWY_AFTER_NAMESPACE();

#endif
