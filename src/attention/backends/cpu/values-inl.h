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
#include <span>

#include "attention/backends/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tenon::cpu_attention {
namespace HWY_NAMESPACE {
namespace {

// Vectors of output features kept in registers beside four rows: 16 accumulators where there are 32
// registers.
constexpr int kOutVectors = kLanes >= 16 ? 4 : 2;

// The values of a tile, and the keys of the next one to ask for meanwhile.
template <DType kType>
struct TileValues {
  CellRows<kType> cells;
  int32_t dim;  // padded
  Prefetch& prefetch;
};

// Up to four rows of a tile: acc[r] = acc[r] * alpha[r] + sum over keys in `range`, ascending, of
// weights[r][key] * value of the key.
struct WeighedRows {
  const float* HWY_RESTRICT weights;
  const float* alpha;
  KeyRange range;
  float* HWY_RESTRICT acc;
};

// For features [first, first + kVectors * lanes) of kRows rows.
template <DType kType, int kRows, int kVectors>
HWY_INLINE void weigh_block(const WeighedRows& rows,
                            const TileValues<kType>& values,
                            int32_t first) {
  const F32 d;
  V sum[kRows][kVectors];
  const auto acc_at = [&](int r, int c) {
    return rows.acc + int64_t{r} * values.dim + first + c * int64_t{kLanes};
  };
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const V factor = hn::Set(d, rows.alpha[r]);
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) sum[r][c] = hn::Mul(factor, hn::LoadU(d, acc_at(r, c)));
  }
  for (int32_t key = rows.range.begin; key < rows.range.end; ++key) {
    if (key % Prefetch::kKeysAStep == 0) values.prefetch.ask();
    V value[kVectors];
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) {
      value[c] = Cell<kType>::load(values.cells[key] + first + c * int64_t{kLanes});
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const V weight = hn::Set(d, rows.weights[r * kTileKeys + key]);
#pragma GCC unroll 4
      for (int c = 0; c < kVectors; ++c) sum[r][c] = hn::MulAdd(weight, value[c], sum[r][c]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) hn::StoreU(sum[r][c], d, acc_at(r, c));
  }
}

template <DType kType, int kRows>
void weigh_rows(const WeighedRows& rows, const TileValues<kType>& values) {
  constexpr int32_t kWide = kOutVectors * static_cast<int32_t>(kLanes);
  int32_t i = 0;
  for (; i + kWide <= values.dim; i += kWide)
    weigh_block<kType, kRows, kOutVectors>(rows, values, i);
  for (; i < values.dim; i += static_cast<int32_t>(kLanes)) {
    weigh_block<kType, kRows, 1>(rows, values, i);
  }
}

template <DType kType>
void weigh(int32_t count, const WeighedRows& rows, const TileValues<kType>& values) {
  switch (count) {
    case 1: return weigh_rows<kType, 1>(rows, values);
    case 2: return weigh_rows<kType, 2>(rows, values);
    case 3: return weigh_rows<kType, 3>(rows, values);
    default: return weigh_rows<kType, 4>(rows, values);
  }
}

// As weigh(), for up to four rows whose ranges differ: the keys common to all go in one pass,
// before and after them each row alone, so that no row ever touches a value it may not see.
template <DType kType>
void weigh_ranges(std::span<const KeyRange> ranges,
                  const float* weights,
                  float* alpha,
                  const TileValues<kType>& values,
                  float* acc) {
  const auto count = static_cast<int32_t>(ranges.size());
  KeyRange common = ranges[0];
  for (const KeyRange& range : ranges) {
    common.begin = std::max(common.begin, range.begin);
    common.end = std::min(common.end, range.end);
  }
  const auto alone = [&](int32_t r, KeyRange range) {
    if (range.begin >= range.end) return;
    weigh<kType>(
        1, {weights + int64_t{r} * kTileKeys, alpha + r, range, acc + int64_t{r} * values.dim},
        values);
    alpha[r] = 1.0F;
  };
  if (common.begin >= common.end) {
    for (int32_t r = 0; r < count; ++r) alone(r, ranges[static_cast<size_t>(r)]);
    return;
  }
  for (int32_t r = 0; r < count; ++r) {
    alone(r, {ranges[static_cast<size_t>(r)].begin, common.begin});
  }
  weigh<kType>(count, {weights, alpha, common, acc}, values);
  std::fill_n(alpha, count, 1.0F);
  for (int32_t r = 0; r < count; ++r) alone(r, {common.end, ranges[static_cast<size_t>(r)].end});
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tenon::cpu_attention
HWY_AFTER_NAMESPACE();

#endif
