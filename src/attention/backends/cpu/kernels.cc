// Compiled once per instruction set: foreach_target.h includes this file again for each.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4)  // between portable and AVX2 nothing is worth its code
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

#include "attention/backends/cpu/cells-inl.h"
#include "attention/backends/cpu/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace tenon::cpu_attention {
namespace HWY_NAMESPACE {
namespace {

// Vectors of output features kept in registers beside four rows: 16 accumulators where there are 32
// registers.
constexpr int kOutVectors = kLanes >= 16 ? 4 : 2;
// Keys whose dot products with four rows are summed at once, by the same count of registers.
constexpr size_t kKeysAtOnce = kLanes == 8 ? 2 : kLanes == 1 ? 1 : 4;

struct KeyRange {
  int32_t begin = 0;
  int32_t end = 0;
};

// Loads K (content 0) or V (content v_offset) of keys `range` into scratch rows key - tile_begin.
template <DType kType>
void load_tile_as(
    const HeadTask& task, int32_t tile_begin, KeyRange range, bool values, float* tile) {
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

// ---- scores

// Where the keys (or values) of a tile lie.
template <DType kType>
using CellRows = const typename Cell<kType>::Type* const*;

// K and V of the keys of the next tile, asked for while this one is worked on: pages lie anywhere,
// so the hardware does not foresee them. Spread over the arithmetic, because a burst would wait for
// free miss buffers.
struct Prefetch {
  const std::byte* cells[kTileKeys] = {};
  int64_t bytes = 0;  // of K and V, which lie side by side

  HWY_INLINE void ask(size_t key) const {
    const std::byte* cell = cells[key];
    if (cell == nullptr) return;  // beyond the last key
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(cell + i, 0, 3);
  }
};

// scores[r][key] = q[r] . keys[key] for the vectors of keys that touch `range`, from cells as they
// lie.
template <DType kType, int kRows>
void scores_of_cells(const float* HWY_RESTRICT q,
                     CellRows<kType> keys,
                     KeyRange range,
                     int32_t dim,
                     const Prefetch& prefetch,
                     float* HWY_RESTRICT scores) {
  constexpr auto kStep = static_cast<int32_t>(kLanes);
  constexpr size_t kParts = kLanes / kKeysAtOnce;
  const F32 d;
  for (int32_t key = range.begin / kStep * kStep; key < range.end; key += kStep) {
    V folded[kRows][kParts];  // folding in two stages gives the same sums as all lanes at once
    for (size_t part = 0; part < kParts; ++part) {
      const auto* const* k = keys + key + part * kKeysAtOnce;
      for (size_t i = 0; i < kKeysAtOnce; ++i) {
        prefetch.ask(static_cast<size_t>(key) + part * kKeysAtOnce + i);
      }
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

struct FourRows {
  V a, b, c, d;
};

HWY_INLINE FourRows add(const FourRows& x, const FourRows& y) {
  return {hn::Add(x.a, y.a), hn::Add(x.b, y.b), hn::Add(x.c, y.c), hn::Add(x.d, y.d)};
}

// The sum over features i, i + lanes, i + 2 lanes, ... of q[r][i] * k_columns[i]: what lane i of
// scores_of_cells holds before it folds, here for a vector of keys and four rows.
HWY_INLINE FourRows feature_chain(const float* HWY_RESTRICT q,
                                  const float* HWY_RESTRICT columns,
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
HWY_INLINE FourRows feature_tree(const float* HWY_RESTRICT q,
                                 const float* HWY_RESTRICT columns,
                                 int32_t dim) {
  if constexpr (kCount == 1) {
    return feature_chain(q, columns, dim);
  } else {
    constexpr size_t kHalf = kCount / 2;
    const FourRows low = feature_tree<kHalf>(q, columns, dim);
    return add(low, feature_tree<kHalf>(q + kHalf, columns + kHalf * kTileKeys, dim));
  }
}

// scores[r][key] for four rows; the same bits as scores_of_cells.
void scores_of_four(const float* HWY_RESTRICT q,
                    const float* HWY_RESTRICT k_columns,
                    KeyRange range,
                    int32_t dim,
                    float* HWY_RESTRICT scores) {
  constexpr auto kStep = static_cast<int32_t>(kLanes);
  for (int32_t key = range.begin / kStep * kStep; key < range.end; key += kStep) {
    const FourRows sum = feature_tree<kLanes>(q, k_columns + key, dim);
    hn::StoreU(sum.a, F32(), scores + key);
    hn::StoreU(sum.b, F32(), scores + kTileKeys + key);
    hn::StoreU(sum.c, F32(), scores + 2 * kTileKeys + key);
    hn::StoreU(sum.d, F32(), scores + 3 * kTileKeys + key);
  }
}

// ---- softmax

// scores := exp(score - max) in `range`, zero in the rest of its vectors; updates max and sum and
// returns the factor for what was summed before. Requires: a range that is not empty.
float softmax_row(
    float* HWY_RESTRICT scores, KeyRange range, float soft_cap, float* max, float* sum) {
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
  // One lane sum per tile position modulo the vector, so that where the range begins does not
  // matter.
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

// ---- weighted values

// acc[r] = acc[r] * alpha[r] + sum over keys in `range`, ascending, of weights[r][key] *
// values[key], for features [first, first + kVectors * lanes) of kRows rows.
template <DType kType, int kRows, int kVectors>
HWY_INLINE void weigh_block(const float* HWY_RESTRICT weights,
                            const float* alpha,
                            KeyRange range,
                            CellRows<kType> values,
                            int32_t first,
                            int32_t dim,
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
                float* acc) {
  constexpr int32_t kWide = kOutVectors * static_cast<int32_t>(kLanes);
  int32_t i = 0;
  for (; i + kWide <= dim; i += kWide) {
    weigh_block<kType, kRows, kOutVectors>(weights, alpha, range, values, i, dim, acc);
  }
  for (; i < dim; i += static_cast<int32_t>(kLanes)) {
    weigh_block<kType, kRows, 1>(weights, alpha, range, values, i, dim, acc);
  }
}

template <DType kType>
void weigh(int32_t rows,
           const float* weights,
           const float* alpha,
           KeyRange range,
           CellRows<kType> values,
           int32_t dim,
           float* acc) {
  switch (rows) {
    case 1: return weigh_rows<kType, 1>(weights, alpha, range, values, dim, acc);
    case 2: return weigh_rows<kType, 2>(weights, alpha, range, values, dim, acc);
    case 3: return weigh_rows<kType, 3>(weights, alpha, range, values, dim, acc);
    default: return weigh_rows<kType, 4>(weights, alpha, range, values, dim, acc);
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
                  float* acc) {
  KeyRange common = ranges[0];
  for (int32_t r = 1; r < rows; ++r) {
    common.begin = std::max(common.begin, ranges[r].begin);
    common.end = std::min(common.end, ranges[r].end);
  }
  const auto alone = [&](int32_t r, KeyRange range) {
    if (range.begin >= range.end) return;
    weigh<kType>(1, weights + int64_t{r} * kTileKeys, alpha + r, range, values, dim,
                 acc + int64_t{r} * dim);
    alpha[r] = 1.0F;
  };
  if (common.begin >= common.end) {
    for (int32_t r = 0; r < rows; ++r) alone(r, ranges[r]);
    return;
  }
  for (int32_t r = 0; r < rows; ++r) alone(r, {ranges[r].begin, common.begin});
  weigh<kType>(rows, weights, alpha, common, values, dim, acc);
  std::fill_n(alpha, rows, 1.0F);
  for (int32_t r = 0; r < rows; ++r) alone(r, {common.end, ranges[r].end});
}

// ---- one tile, one segment

// The part of a task that one tile of keys concerns. Positions ascend with rows, so the rows that
// see some of it are [first, last), and what they see together is `keys`.
struct TileWork {
  const HeadTask& task;
  const Scratch& scratch;
  const SoftmaxState& state;
  int32_t tile_begin = 0;
  int32_t first = 0;
  int32_t last = 0;
  KeyRange keys;

  // Keys that tile row `row` sees, relative to the tile.
  [[nodiscard]] KeyRange range_of(int32_t row) const {
    return {std::max(task.visible_begin(row) - tile_begin, 0),
            std::min(task.visible_end(row) - tile_begin, kTileKeys)};
  }
  // Keys that some row of [begin, end) sees, relative to the tile.
  [[nodiscard]] KeyRange range_of(int32_t begin, int32_t end) const {
    return {range_of(std::max(begin, first)).begin, range_of(std::min(end, last) - 1).end};
  }
  [[nodiscard]] KeyRange local() const { return {keys.begin - tile_begin, keys.end - tile_begin}; }
};

void softmax_rows(const TileWork& work) {
  for (int32_t r = work.first; r < work.last; ++r) {
    work.scratch.alpha[r] =
        softmax_row(work.scratch.scores + int64_t{r} * kTileKeys, work.range_of(r),
                    work.task.soft_cap, work.state.max + r, work.state.sum + r);
  }
}

template <DType kType>
void weigh_all_rows(const TileWork& work, CellRows<kType> values) {
  const int32_t dim = pad(work.task.kv->head_dim_v);
  for (int32_t r = work.first; r < work.last; r += kRowPadding) {
    const int32_t rows = std::min(kRowPadding, work.last - r);
    KeyRange ranges[kRowPadding];
    for (int32_t i = 0; i < rows; ++i) ranges[i] = work.range_of(r + i);
    weigh_ranges<kType>(rows, work.scratch.scores + int64_t{r} * kTileKeys, work.scratch.alpha + r,
                        ranges, values, dim, work.state.acc + int64_t{r} * dim);
  }
}

// Pointers to the rows of scratch.tile.
struct TileRows {
  TileRows(const float* tile, int32_t dim) {
    for (int32_t key = 0; key < kTileKeys; ++key) row[key] = tile + int64_t{key} * pad(dim);
  }
  const float* row[kTileKeys];
};

// Many rows: K is converted and transposed once, V converted once, for all of them.
void attend_packed(const TileWork& work) {
  const HeadTask& task = work.task;
  const Scratch& scratch = work.scratch;
  const int32_t dim = pad(task.kv->head_dim_k);
  load_tile(task, work.tile_begin, work.keys, /*values=*/false, scratch.tile);
  transpose_tile(scratch.tile, work.local(), dim, scratch.k_columns);
  for (int32_t r = work.first / kRowPadding * kRowPadding; r < work.last; r += kRowPadding) {
    scores_of_four(scratch.q + int64_t{r} * dim, scratch.k_columns,
                   work.range_of(r, r + kRowPadding), dim, scratch.scores + int64_t{r} * kTileKeys);
  }
  softmax_rows(work);
  load_tile(task, work.tile_begin, work.keys, /*values=*/true, scratch.tile);
  const TileRows values(scratch.tile, task.kv->head_dim_v);
  weigh_all_rows<DType::kF32>(work, values.row);
}

template <DType kType>
void direct_scores(const TileWork& work, CellRows<kType> keys, const Prefetch& next_tile) {
  const Prefetch nothing;
  const int32_t dim = pad(work.task.kv->head_dim_k);
  for (int32_t r = work.first; r < work.last; r += kRowPadding) {
    const int32_t rows = std::min(kRowPadding, work.last - r);
    const KeyRange range = work.range_of(r, r + rows);
    const float* q = work.scratch.q + int64_t{r} * dim;
    const Prefetch& prefetch = r == work.first ? next_tile : nothing;
    float* scores = work.scratch.scores + int64_t{r} * kTileKeys;
    switch (rows) {
      case 1: scores_of_cells<kType, 1>(q, keys, range, dim, prefetch, scores); break;
      case 2: scores_of_cells<kType, 2>(q, keys, range, dim, prefetch, scores); break;
      case 3: scores_of_cells<kType, 3>(q, keys, range, dim, prefetch, scores); break;
      default: scores_of_cells<kType, 4>(q, keys, range, dim, prefetch, scores); break;
    }
  }
}

// Few rows: K and V are converted on their way into registers. Head sizes that are not a whole
// number of vectors go through the f32 tile, which pads them with zeros.
template <DType kType>
void attend_direct(const TileWork& work) {
  using Type = typename Cell<kType>::Type;
  const HeadTask& task = work.task;
  const KvView& kv = *task.kv;
  const KeyRange local = work.local();
  const auto* base = static_cast<const Type*>(kv.base);
  // Calls use(key, K of key) for keys [begin, end).
  const auto for_each_cell = [&](int32_t begin, int32_t end, auto&& use) {
    while (begin < end) {
      const int32_t page = begin / kv.block_size;
      const int32_t token = begin - page * kv.block_size;
      const int32_t run = std::min(end - begin, kv.block_size - token);
      const Type* cell = base + kv.k_offset(task.pages[page], task.kv_head, token);
      for (int32_t i = 0; i < run; ++i) use(begin + i, cell + i * kv.token_stride);
      begin += run;
    }
  };
  const Type* cells[kTileKeys];
  for_each_cell(work.keys.begin, work.keys.end,
                [&](int32_t key, const Type* cell) { cells[key - work.tile_begin] = cell; });
  Prefetch prefetch;
  prefetch.bytes = (kv.v_offset + kv.head_dim_v) * static_cast<int64_t>(sizeof(Type));
  const int32_t next_tile = work.tile_begin + kTileKeys;
  for_each_cell(next_tile, std::min(next_tile + kTileKeys, task.visible_end(task.rows - 1)),
                [&](int32_t key, const Type* cell) {
                  prefetch.cells[key - next_tile] = reinterpret_cast<const std::byte*>(cell);
                });
  // Neighbours in a vector of keys that nobody sees: any address that may be read will do.
  std::fill(cells, cells + local.begin, cells[local.begin]);
  std::fill(cells + local.end, cells + kTileKeys, cells[local.begin]);

  if (kv.head_dim_k % kDimPadding == 0) {
    direct_scores<kType>(work, cells, prefetch);
  } else {
    load_tile(task, work.tile_begin, work.keys, /*values=*/false, work.scratch.tile);
    direct_scores<DType::kF32>(work, TileRows(work.scratch.tile, kv.head_dim_k).row, prefetch);
  }
  softmax_rows(work);
  if (kv.head_dim_v % kDimPadding == 0) {
    for (const Type*& cell : cells) cell += kv.v_offset;
    weigh_all_rows<kType>(work, cells);
  } else {
    load_tile(task, work.tile_begin, work.keys, /*values=*/true, work.scratch.tile);
    weigh_all_rows<DType::kF32>(work, TileRows(work.scratch.tile, kv.head_dim_v).row);
  }
}

void attend_tile(const HeadTask& task,
                 int32_t tile_begin,
                 const Scratch& scratch,
                 const SoftmaxState& state) {
  TileWork work{task, scratch, state, tile_begin, 0, task.rows, {}};
  const int32_t tile_end = tile_begin + kTileKeys;
  while (work.first < work.last && task.visible_end(work.first) <= tile_begin) {
    work.first += task.group;
  }
  while (work.first < work.last && task.visible_begin(work.last - 1) >= tile_end) {
    work.last -= task.group;
  }
  if (work.first >= work.last) return;
  work.keys = {std::max(task.visible_begin(work.first), tile_begin),
               std::min(task.visible_end(work.last - 1), tile_end)};
  if (task.packed) return attend_packed(work);
  switch (task.kv->dtype) {
    case DType::kF32: return attend_direct<DType::kF32>(work);
    case DType::kF16: return attend_direct<DType::kF16>(work);
    default: return attend_direct<DType::kBF16>(work);
  }
}

void attend(const HeadTask& task,
            int32_t begin,
            int32_t end,
            const Scratch& scratch,
            const SoftmaxState& state) {
  const int32_t dim_v = pad(task.kv->head_dim_v);
  std::fill_n(state.max, task.rows, -std::numeric_limits<float>::infinity());
  std::fill_n(state.sum, task.rows, 0.0F);
  std::fill_n(state.acc, int64_t{task.rows} * dim_v, 0.0F);
  begin = std::max(begin, task.visible_begin(0) / kTileKeys * kTileKeys);
  end = std::min(end, task.visible_end(task.rows - 1));
  for (int32_t tile = begin; tile < end; tile += kTileKeys) {
    attend_tile(task, tile, scratch, state);
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
