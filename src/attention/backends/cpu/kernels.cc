// Compiled once per instruction set: foreach_target.h includes this file again for each.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)  // between portable and AVX2 nothing is worth its code
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/backends/cpu/kernels.cc"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention/backends/cpu/kernels.h"
#include "tensor/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace tenon::cpu_attention {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kLanes = HWY_LANES(float);
static_assert(kDimPadding % kLanes == 0);
using F32 = hn::FixedTag<float, kLanes>;
using U32 = hn::FixedTag<uint32_t, kLanes>;
using I32 = hn::FixedTag<int32_t, kLanes>;
using U16 = hn::FixedTag<uint16_t, kLanes>;
using F16 = hn::FixedTag<hwy::float16_t, kLanes>;
using V = hn::Vec<F32>;
// Vectors of output features kept in registers beside four rows: 16 accumulators where there are 32 registers.
constexpr int kOutVectors = kLanes >= 16 ? 4 : 2;

constexpr int32_t pad(int32_t dim) { return (dim + kDimPadding - 1) / kDimPadding * kDimPadding; }

// ---- conversions -----------------------------------------------------------------------------------------

template <DType kType>
struct Cell;

template <>
struct Cell<DType::kF32> {
  using Type = float;
  static HWY_INLINE V load(const float* src) { return hn::LoadU(F32(), src); }
  static HWY_INLINE void store(V value, float* dst) { hn::StoreU(value, F32(), dst); }
};

template <>
struct Cell<DType::kF16> {
  using Type = uint16_t;
  static HWY_INLINE V load(const uint16_t* src) {
    if constexpr (kLanes == 1) {
      return hn::Set(F32(), f16_to_f32(*src));
    } else {
      return hn::PromoteTo(F32(), hn::BitCast(F16(), hn::LoadU(U16(), src)));
    }
  }
  static HWY_INLINE void store(V value, uint16_t* dst) {
    if constexpr (kLanes == 1) {
      *dst = f32_to_f16(hn::GetLane(value));
    } else {
      hn::StoreU(hn::BitCast(U16(), hn::DemoteTo(F16(), value)), U16(), dst);
    }
  }
};

template <>
struct Cell<DType::kBF16> {
  using Type = uint16_t;
  static HWY_INLINE V load(const uint16_t* src) {
    return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), hn::LoadU(U16(), src))));
  }
  static HWY_INLINE void store(V value, uint16_t* dst) {
    // Round to nearest even by hand: the low half plus half an ulp carries into the high half.
    const U32 d;
    const auto bits = hn::BitCast(d, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(d, 0x7FFF)), odd));
    const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(d, 0x40));
    const auto chosen = hn::IfThenElse(hn::RebindMask(d, hn::IsNaN(value)), quiet, rounded);
    hn::StoreU(hn::DemoteTo(U16(), hn::BitCast(I32(), chosen)), U16(), dst);
  }
};

// dst[0, pad(dim)) := src[0, dim) as f32, zero in the padding. Reads nothing beyond src[dim).
template <DType kType>
HWY_INLINE void load_cells(const typename Cell<kType>::Type* HWY_RESTRICT src, int32_t dim,
                           float* HWY_RESTRICT dst) {
  constexpr auto kStep = static_cast<int32_t>(kLanes);
  int32_t i = 0;
  for (; i + kStep <= dim; i += kStep) hn::StoreU(Cell<kType>::load(src + i), F32(), dst + i);
  if (i < dim) {
    typename Cell<kType>::Type tail[kLanes] = {};
    std::memcpy(tail, src + i, static_cast<size_t>(dim - i) * sizeof(tail[0]));
    hn::StoreU(Cell<kType>::load(tail), F32(), dst + i);
    i += kStep;
  }
  for (; i < pad(dim); i += kStep) hn::StoreU(hn::Zero(F32()), F32(), dst + i);
}

template <DType kType>
void store_cells_as(const float* src, float scale, int32_t count, void* dst) {
  using Type = typename Cell<kType>::Type;
  constexpr auto kStep = static_cast<int32_t>(kLanes);
  const V divisor = hn::Set(F32(), scale);
  const auto scaled = [&](const float* at) HWY_ATTR {
    const V value = hn::LoadU(F32(), at);
    return scale == 1.0F ? value : hn::Div(value, divisor);
  };
  auto* out = static_cast<Type*>(dst);
  int32_t i = 0;
  for (; i + kStep <= count; i += kStep) Cell<kType>::store(scaled(src + i), out + i);
  if (i < count) {
    float in_tail[kLanes] = {};
    Type out_tail[kLanes];
    std::memcpy(in_tail, src + i, static_cast<size_t>(count - i) * sizeof(float));
    Cell<kType>::store(scaled(in_tail), out_tail);
    std::memcpy(out + i, out_tail, static_cast<size_t>(count - i) * sizeof(Type));
  }
}

void store_cells(const float* src, float scale, int32_t count, DType dtype, void* dst) {
  switch (dtype) {
    case DType::kF32: return store_cells_as<DType::kF32>(src, scale, count, dst);
    case DType::kF16: return store_cells_as<DType::kF16>(src, scale, count, dst);
    default: return store_cells_as<DType::kBF16>(src, scale, count, dst);
  }
}

// ---- tiles -----------------------------------------------------------------------------------------------

struct KeyRange {
  int32_t begin = 0;
  int32_t end = 0;
};

// Loads K (content 0) or V (content v_offset) of keys `range` into scratch rows key - tile_begin.
template <DType kType>
void load_tile_as(const HeadTask& task, int32_t tile_begin, KeyRange range, bool values,
                  float* tile) {
  using Type = typename Cell<kType>::Type;
  const KvView& kv = *task.kv;
  const int32_t dim = values ? kv.head_dim_v : kv.head_dim_k;
  const int64_t content = values ? kv.v_offset : 0;
  const auto* base = static_cast<const Type*>(kv.base);
  for (int32_t key = range.begin; key < range.end;) {
    const int32_t page = key / kv.block_size;
    const int32_t token = key - page * kv.block_size;
    const int32_t run = std::min(range.end - key, kv.block_size - token);
    const Type* src = base + kv.k_offset(task.pages[page], task.kv_head, token) + content;
    float* dst = tile + int64_t{key - tile_begin} * pad(dim);
    for (int32_t i = 0; i < run; ++i) {
      load_cells<kType>(src + i * kv.token_stride, dim, dst + int64_t{i} * pad(dim));
    }
    key += run;
  }
}

void load_tile(const HeadTask& task, int32_t tile_begin, KeyRange range, bool values, float* tile) {
  switch (task.kv->dtype) {
    case DType::kF32: return load_tile_as<DType::kF32>(task, tile_begin, range, values, tile);
    case DType::kF16: return load_tile_as<DType::kF16>(task, tile_begin, range, values, tile);
    default: return load_tile_as<DType::kBF16>(task, tile_begin, range, values, tile);
  }
}

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE V even_lanes(V, V lo) { return lo; }
HWY_INLINE V odd_lanes(V hi, V) { return hi; }
#else
HWY_INLINE V even_lanes(V hi, V lo) { return hn::ConcatEven(F32(), hi, lo); }
HWY_INLINE V odd_lanes(V hi, V lo) { return hn::ConcatOdd(F32(), hi, lo); }
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
void transpose_tile(const float* HWY_RESTRICT tile, KeyRange range, int32_t dim,
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

// ---- scores ----------------------------------------------------------------------------------------------

// scores[key] = q . tile[key] for the vectors of keys that touch `range`.
void scores_of_row(const float* HWY_RESTRICT q, const float* HWY_RESTRICT tile, KeyRange range,
                   int32_t dim, float* HWY_RESTRICT scores) {
  constexpr auto kStep = static_cast<int32_t>(kLanes);
  for (int32_t key = range.begin / kStep * kStep; key < range.end; key += kStep) {
    const float* k = tile + int64_t{key} * dim;
    V sums[kLanes];
    const V q0 = hn::LoadU(F32(), q);
#pragma GCC unroll 16
    for (size_t i = 0; i < kLanes; ++i) {
      sums[i] = hn::Mul(q0, hn::LoadU(F32(), k + static_cast<int64_t>(i) * dim));
    }
    for (int32_t d = kStep; d < dim; d += kStep) {
      const V qd = hn::LoadU(F32(), q + d);
#pragma GCC unroll 16
      for (size_t i = 0; i < kLanes; ++i) {
        sums[i] = hn::MulAdd(qd, hn::LoadU(F32(), k + static_cast<int64_t>(i) * dim + d), sums[i]);
      }
    }
    fold<kLanes>(sums);
    hn::StoreU(sums[0], F32(), scores + key);
  }
}

struct FourRows {
  V a, b, c, d;
};

HWY_INLINE FourRows add(const FourRows& x, const FourRows& y) {
  return {hn::Add(x.a, y.a), hn::Add(x.b, y.b), hn::Add(x.c, y.c), hn::Add(x.d, y.d)};
}

// The sum over features i, i + lanes, i + 2 lanes, ... of q[r][i] * k_columns[i]: what lane i of scores_of_row
// holds before it folds, here for a vector of keys and four rows.
HWY_INLINE FourRows feature_chain(const float* HWY_RESTRICT q, const float* HWY_RESTRICT columns,
                                  int32_t dim) {
  const F32 d;
  const float* q1 = q + dim;
  const float* q2 = q1 + dim;
  const float* q3 = q2 + dim;
  const V k0 = hn::LoadU(d, columns);
  FourRows sum = {hn::Mul(hn::Set(d, q[0]), k0), hn::Mul(hn::Set(d, q1[0]), k0),
                  hn::Mul(hn::Set(d, q2[0]), k0), hn::Mul(hn::Set(d, q3[0]), k0)};
  for (auto i = static_cast<int32_t>(kLanes); i < dim; i += static_cast<int32_t>(kLanes)) {
    const V k = hn::LoadU(d, columns + int64_t{i} * kTileKeys);
    sum.a = hn::MulAdd(hn::Set(d, q[i]), k, sum.a);
    sum.b = hn::MulAdd(hn::Set(d, q1[i]), k, sum.b);
    sum.c = hn::MulAdd(hn::Set(d, q2[i]), k, sum.c);
    sum.d = hn::MulAdd(hn::Set(d, q3[i]), k, sum.d);
  }
  return sum;
}

// Adds the chains of kCount features in the order in which fold() adds lanes.
template <size_t kCount>
HWY_INLINE FourRows feature_tree(const float* HWY_RESTRICT q, const float* HWY_RESTRICT columns,
                                 int32_t dim) {
  if constexpr (kCount == 1) {
    return feature_chain(q, columns, dim);
  } else {
    constexpr size_t kHalf = kCount / 2;
    const FourRows low = feature_tree<kHalf>(q, columns, dim);
    return add(low, feature_tree<kHalf>(q + kHalf, columns + kHalf * kTileKeys, dim));
  }
}

// scores[r][key] for four rows; the same bits as scores_of_row.
void scores_of_four(const float* HWY_RESTRICT q, const float* HWY_RESTRICT k_columns,
                    KeyRange range, int32_t dim, float* HWY_RESTRICT scores) {
  constexpr auto kStep = static_cast<int32_t>(kLanes);
  for (int32_t key = range.begin / kStep * kStep; key < range.end; key += kStep) {
    const FourRows sum = feature_tree<kLanes>(q, k_columns + key, dim);
    hn::StoreU(sum.a, F32(), scores + key);
    hn::StoreU(sum.b, F32(), scores + kTileKeys + key);
    hn::StoreU(sum.c, F32(), scores + 2 * kTileKeys + key);
    hn::StoreU(sum.d, F32(), scores + 3 * kTileKeys + key);
  }
}

// ---- softmax ---------------------------------------------------------------------------------------------

// scores := exp(score - max) in `range`, zero in the rest of its vectors; updates max and sum and returns the
// factor for what was summed before. Requires: a range that is not empty.
float softmax_row(float* HWY_RESTRICT scores, KeyRange range, float soft_cap, float* max,
                  float* sum) {
  const F32 d;
  constexpr auto kStep = static_cast<int32_t>(kLanes);
  const int32_t begin = range.begin / kStep * kStep;
  const V lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  const V first = hn::Set(d, static_cast<float>(range.begin));
  const V last = hn::Set(d, static_cast<float>(range.end));
  V top = lowest;
  for (int32_t key = begin; key < range.end; key += kStep) {
    V s = hn::LoadU(d, scores + key);
    if (soft_cap > 0) {
      const V cap = hn::Set(d, soft_cap);
      s = hn::Mul(cap, hn::Tanh(d, hn::Div(s, cap)));
    }
    if (key < range.begin || key + kStep > range.end) {
      const V index = hn::Iota(d, static_cast<float>(key));
      s = hn::IfThenElse(hn::And(hn::Ge(index, first), hn::Lt(index, last)), s, lowest);
    }
    top = hn::Max(top, s);
    hn::StoreU(s, d, scores + key);
  }
  const float old_max = *max;
  const float new_max = std::max(old_max, hn::GetLane(hn::MaxOfLanes(d, top)));
  const V shift = hn::Set(d, new_max);
  // One lane sum per tile position modulo the vector, so that where the range begins does not matter.
  V total = hn::Zero(d);
  for (int32_t key = begin; key < range.end; key += kStep) {
    const V p = hn::Exp(d, hn::Sub(hn::LoadU(d, scores + key), shift));
    total = hn::Add(total, p);
    hn::StoreU(p, d, scores + key);
  }
  const float alpha =
      old_max == new_max ? 1.0F : hn::GetLane(hn::Exp(d, hn::Set(d, old_max - new_max)));
  *max = new_max;
  *sum = *sum * alpha + hn::GetLane(hn::SumOfLanes(d, total));
  return alpha;
}

// ---- weighted values -------------------------------------------------------------------------------------

// acc[r] = acc[r] * alpha[r] + sum over keys in `range`, ascending, of weights[r][key] * tile[key], for
// features [0, kVectors * lanes) of kRows rows.
template <int kRows, int kVectors>
HWY_INLINE void weigh_block(const float* HWY_RESTRICT weights, const float* alpha, KeyRange range,
                            const float* HWY_RESTRICT tile, int32_t dim, float* HWY_RESTRICT acc) {
  const F32 d;
  V sum[kRows][kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const V factor = hn::Set(d, alpha[r]);
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) {
      sum[r][c] = hn::Mul(factor, hn::LoadU(d, acc + int64_t{r} * dim + c * int64_t{kLanes}));
    }
  }
  for (int32_t key = range.begin; key < range.end; ++key) {
    V value[kVectors];
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) {
      value[c] = hn::LoadU(d, tile + int64_t{key} * dim + c * int64_t{kLanes});
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
      hn::StoreU(sum[r][c], d, acc + int64_t{r} * dim + c * int64_t{kLanes});
    }
  }
}

template <int kRows>
void weigh_rows(const float* weights, const float* alpha, KeyRange range, const float* tile,
                int32_t dim, float* acc) {
  constexpr int32_t kWide = kOutVectors * static_cast<int32_t>(kLanes);
  int32_t i = 0;
  for (; i + kWide <= dim; i += kWide) {
    weigh_block<kRows, kOutVectors>(weights, alpha, range, tile + i, dim, acc + i);
  }
  for (; i < dim; i += static_cast<int32_t>(kLanes)) {
    weigh_block<kRows, 1>(weights, alpha, range, tile + i, dim, acc + i);
  }
}

void weigh(int32_t rows, const float* weights, const float* alpha, KeyRange range,
           const float* tile, int32_t dim, float* acc) {
  switch (rows) {
    case 1: return weigh_rows<1>(weights, alpha, range, tile, dim, acc);
    case 2: return weigh_rows<2>(weights, alpha, range, tile, dim, acc);
    case 3: return weigh_rows<3>(weights, alpha, range, tile, dim, acc);
    default: return weigh_rows<4>(weights, alpha, range, tile, dim, acc);
  }
}

// As weigh(), for up to four rows whose ranges differ: the keys common to all go in one pass, before and after
// them each row alone, so that no row ever touches a value it may not see.
void weigh_ranges(int32_t rows, const float* weights, float* alpha, const KeyRange* ranges,
                  const float* tile, int32_t dim, float* acc) {
  KeyRange common = ranges[0];
  for (int32_t r = 1; r < rows; ++r) {
    common.begin = std::max(common.begin, ranges[r].begin);
    common.end = std::min(common.end, ranges[r].end);
  }
  const auto alone = [&](int32_t r, KeyRange range) {
    if (range.begin >= range.end) return;
    weigh(1, weights + int64_t{r} * kTileKeys, alpha + r, range, tile, dim, acc + int64_t{r} * dim);
    alpha[r] = 1.0F;
  };
  if (common.begin >= common.end) {
    for (int32_t r = 0; r < rows; ++r) alone(r, ranges[r]);
    return;
  }
  for (int32_t r = 0; r < rows; ++r) alone(r, {ranges[r].begin, common.begin});
  weigh(rows, weights, alpha, common, tile, dim, acc);
  std::fill_n(alpha, rows, 1.0F);
  for (int32_t r = 0; r < rows; ++r) alone(r, {common.end, ranges[r].end});
}

// ---- one tile, one segment -------------------------------------------------------------------------------

// The keys of the tile at `tile_begin` that tile row `row` sees, relative to the tile.
KeyRange range_in_tile(const HeadTask& task, int32_t row, int32_t tile_begin, int32_t tile_end) {
  return {std::max(task.visible_begin(row), tile_begin) - tile_begin,
          std::min(task.visible_end(row), tile_end) - tile_begin};
}

void attend_tile(const HeadTask& task, int32_t tile_begin, int32_t tile_end, const Scratch& scratch,
                 const SoftmaxState& state) {
  const int32_t dim_k = pad(task.kv->head_dim_k);
  const int32_t dim_v = pad(task.kv->head_dim_v);
  // Positions ascend with rows, so the rows that see something of the tile are [first, last).
  int32_t first = 0;
  int32_t last = task.rows;
  while (first < last && task.visible_end(first) <= tile_begin) first += task.group;
  while (first < last && task.visible_begin(last - 1) >= tile_end) last -= task.group;
  if (first >= last) return;
  const KeyRange keys = {std::max(task.visible_begin(first), tile_begin),
                         std::min(task.visible_end(last - 1), tile_end)};
  const KeyRange local = {keys.begin - tile_begin, keys.end - tile_begin};
  load_tile(task, tile_begin, keys, /*values=*/false, scratch.tile);
  if (task.packed) {
    transpose_tile(scratch.tile, local, dim_k, scratch.k_columns);
    for (int32_t r = first / kRowPadding * kRowPadding; r < last; r += kRowPadding) {
      const int32_t low = std::max(r, first);
      const int32_t high = std::min(r + kRowPadding, last) - 1;
      const KeyRange range = {range_in_tile(task, low, tile_begin, tile_end).begin,
                              range_in_tile(task, high, tile_begin, tile_end).end};
      scores_of_four(scratch.q + int64_t{r} * dim_k, scratch.k_columns, range, dim_k,
                     scratch.scores + int64_t{r} * kTileKeys);
    }
  } else {
    for (int32_t r = first; r < last; ++r) {
      scores_of_row(scratch.q + int64_t{r} * dim_k, scratch.tile,
                    range_in_tile(task, r, tile_begin, tile_end), dim_k,
                    scratch.scores + int64_t{r} * kTileKeys);
    }
  }
  for (int32_t r = first; r < last; ++r) {
    scratch.alpha[r] = softmax_row(scratch.scores + int64_t{r} * kTileKeys,
                                   range_in_tile(task, r, tile_begin, tile_end), task.soft_cap,
                                   state.max + r, state.sum + r);
  }
  load_tile(task, tile_begin, keys, /*values=*/true, scratch.tile);
  for (int32_t r = first; r < last; r += kRowPadding) {
    const int32_t rows = std::min(kRowPadding, last - r);
    KeyRange ranges[kRowPadding];
    for (int32_t i = 0; i < rows; ++i) ranges[i] = range_in_tile(task, r + i, tile_begin, tile_end);
    weigh_ranges(rows, scratch.scores + int64_t{r} * kTileKeys, scratch.alpha + r, ranges,
                 scratch.tile, dim_v, state.acc + int64_t{r} * dim_v);
  }
}

void attend(const HeadTask& task, int32_t begin, int32_t end, const Scratch& scratch,
            const SoftmaxState& state) {
  const int32_t dim_v = pad(task.kv->head_dim_v);
  std::fill_n(state.max, task.rows, -std::numeric_limits<float>::infinity());
  std::fill_n(state.sum, task.rows, 0.0F);
  std::fill_n(state.acc, int64_t{task.rows} * dim_v, 0.0F);
  begin = std::max(begin, task.visible_begin(0) / kTileKeys * kTileKeys);
  end = std::min(end, task.visible_end(task.rows - 1));
  for (int32_t tile = begin; tile < end; tile += kTileKeys) {
    attend_tile(task, tile, tile + kTileKeys, scratch, state);
  }
}

void merge(int32_t rows, int32_t dim, const SoftmaxState& total, const SoftmaxState& part) {
  const F32 d;
  for (int32_t r = 0; r < rows; ++r) {
    if (part.sum[r] == 0.0F) continue;
    float* acc = total.acc + int64_t{r} * dim;
    const float* other = part.acc + int64_t{r} * dim;
    if (total.sum[r] == 0.0F) {
      std::copy_n(other, dim, acc);
      total.max[r] = part.max[r];
      total.sum[r] = part.sum[r];
      continue;
    }
    const float max = std::max(total.max[r], part.max[r]);
    const float a = std::exp(total.max[r] - max);
    const float b = std::exp(part.max[r] - max);
    const V va = hn::Set(d, a);
    const V vb = hn::Set(d, b);
    for (int32_t i = 0; i < dim; i += static_cast<int32_t>(kLanes)) {
      const V scaled = hn::Mul(va, hn::LoadU(d, acc + i));
      hn::StoreU(hn::MulAdd(vb, hn::LoadU(d, other + i), scaled), d, acc + i);
    }
    total.max[r] = max;
    total.sum[r] = total.sum[r] * a + part.sum[r] * b;
  }
}

void scale(const float* src, float factor, int32_t count, float* dst) {
  constexpr auto kStep = static_cast<int32_t>(kLanes);
  const V f = hn::Set(F32(), factor);
  int32_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    hn::StoreU(hn::Mul(hn::LoadU(F32(), src + i), f), F32(), dst + i);
  }
  for (; i < count; ++i) dst[i] = src[i] * factor;
}

}  // namespace

Kernels make_kernels(std::string_view isa) {
  return {isa, &attend, &merge, &scale, &store_cells};
}

}  // namespace HWY_NAMESPACE
}  // namespace tenon::cpu_attention
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tenon::cpu_attention {
namespace {

struct Target {
  uint64_t bit;
  Kernels kernels;
};

// Best first.
const std::vector<Target>& targets() {
  static const std::vector<Target> list = [] {
    std::vector<Target> found;
    const auto supported = static_cast<uint64_t>(hwy::SupportedTargets());
    const auto add = [&](uint64_t bit, const Kernels& kernels) {
      if ((supported & bit) != 0) found.push_back({bit, kernels});
    };
#if HWY_TARGETS & HWY_AVX3
    add(HWY_AVX3, N_AVX3::make_kernels("avx512"));
#endif
#if HWY_TARGETS & HWY_AVX2
    add(HWY_AVX2, N_AVX2::make_kernels("avx2"));
#endif
    found.push_back({HWY_STATIC_TARGET, HWY_STATIC_DISPATCH(make_kernels)("portable")});
    return found;
  }();
  return list;
}

}  // namespace

const Kernels* find_kernels(std::string_view isa) {
  for (const Target& target : targets()) {
    if (isa == "auto" || isa == target.kernels.isa) return &target.kernels;
  }
  return nullptr;
}

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Target& target : targets()) names.emplace_back(target.kernels.isa);
  return names;
}

}  // namespace tenon::cpu_attention
#endif
