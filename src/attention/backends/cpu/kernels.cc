// Compiled once per instruction set: foreach_target.h includes this file again for each.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4)  // between portable and AVX2 nothing is worth its code
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/backends/cpu/kernels.cc"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention/backends/cpu/cells-inl.h"
#include "attention/backends/cpu/kernels.h"
#include "attention/backends/cpu/scores-inl.h"
#include "attention/backends/cpu/softmax-inl.h"
#include "attention/backends/cpu/tile-inl.h"
#include "attention/backends/cpu/values-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tenon::cpu_attention {
namespace HWY_NAMESPACE {
namespace {

// The part of a task that one tile of keys and one KV head concern. Positions ascend with rows, so
// the rows that see some of it are [first, last), and what they see together is `keys`.
struct TileWork {
  const HeadTask& task;
  const Scratch& scratch;
  int32_t head = 0;  // KV head, from the task's first on
  const float* q = nullptr;
  SoftmaxState state;
  int32_t tile_begin = 0;
  int32_t first = 0;
  int32_t last = 0;
  KeyRange keys;

  [[nodiscard]] int32_t kv_head() const { return task.kv_head + head; }
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
  const HeadTask& task = work.task;
  float* scores = work.scratch.scores;
  float* alpha = work.scratch.alpha;
  const float* scales = nullptr;
  if (task.kv->dtype == DType::kI8) {
    load_token_scales(task, work.kv_head(), work.tile_begin, work.keys, work.scratch.token_scales);
    scales = work.scratch.token_scales;
  }
  ScoreRules rules;
  rules.k_scales = scales;
  rules.soft_cap = task.soft_cap;
  for (int32_t r = work.first; r < work.last; ++r) {
    if (task.slopes != nullptr) {
      rules.slope = task.slopes[work.head * task.group + r % task.group];
      rules.distance = work.tile_begin - task.position(r);
    }
    alpha[r] = std::max(work.state.max[r],
                        finish_scores(scores + int64_t{r} * kTileKeys, work.range_of(r), rules));
  }
  exchange_maxima(alpha + work.first, work.state.max + work.first, work.last - work.first);
  for (int32_t r = work.first; r < work.last; ++r) {
    const float sum =
        weights_of_scores(scores + int64_t{r} * kTileKeys, work.range_of(r), work.state.max[r],
                          scales == nullptr ? nullptr : scales + kTileKeys);
    work.state.sum[r] = work.state.sum[r] * alpha[r] + sum;
  }
}

template <DType kType>
void weigh_all_rows(const TileWork& work, CellRows<kType> values, Prefetch& prefetch) {
  const TileValues<kType> tile{values, pad(work.task.kv->head_dim_v), prefetch};
  for (int32_t r = work.first; r < work.last; r += kRowPadding) {
    const int32_t rows = std::min(kRowPadding, work.last - r);
    KeyRange ranges[kRowPadding];
    for (int32_t i = 0; i < rows; ++i) ranges[i] = work.range_of(r + i);
    weigh_ranges<kType>({ranges, static_cast<size_t>(rows)},
                        work.scratch.scores + int64_t{r} * kTileKeys, work.scratch.alpha + r, tile,
                        work.state.acc + int64_t{r} * tile.dim);
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
  Prefetch prefetch;
  const int32_t next = work.tile_begin + kTileKeys;
  prefetch.set(task, work.kv_head(), next,
               std::min(next + kTileKeys, task.visible_end(task.rows - 1)));
  load_tile(task, work.kv_head(), work.tile_begin, work.keys, /*values=*/false, scratch.tile);
  transpose_tile(scratch.tile, work.local(), dim, scratch.k_columns);
  for (int32_t r = work.first / kRowPadding * kRowPadding; r < work.last; r += kRowPadding) {
    prefetch.ask();
    scores_of_four(work.q + int64_t{r} * dim, scratch.k_columns, work.range_of(r, r + kRowPadding),
                   dim, scratch.scores + int64_t{r} * kTileKeys);
  }
  softmax_rows(work);
  load_tile(task, work.kv_head(), work.tile_begin, work.keys, /*values=*/true, scratch.tile);
  const TileRows values(scratch.tile, task.kv->head_dim_v);
  weigh_all_rows<DType::kF32>(work, values.row, prefetch);
}

template <DType kType>
void direct_scores(const TileWork& work, CellRows<kType> keys, Prefetch& prefetch) {
  const int32_t dim = pad(work.task.kv->head_dim_k);
  for (int32_t r = work.first; r < work.last; r += kRowPadding) {
    const int32_t rows = std::min(kRowPadding, work.last - r);
    const KeyRange range = work.range_of(r, r + rows);
    const float* q = work.q + int64_t{r} * dim;
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
void attend_direct(const TileWork& work, Prefetch& prefetch) {
  using Type = typename Cell<kType>::Type;
  const HeadTask& task = work.task;
  const KvView& kv = *task.kv;
  const KeyRange local = work.local();
  const auto* base = static_cast<const Type*>(kv.base);
  const Type* cells[kTileKeys];
  for (int32_t key = work.keys.begin; key < work.keys.end;) {
    const int32_t page = key / kv.block_size;
    const int32_t token = key - page * kv.block_size;
    const int32_t run = std::min(work.keys.end - key, kv.block_size - token);
    const Type* cell = base + kv.k_offset(task.pages[page], work.kv_head(), token);
    for (int32_t i = 0; i < run; ++i) {
      cells[key - work.tile_begin + i] = cell + i * kv.token_stride;
    }
    key += run;
  }
  // Neighbours in a vector of keys that nobody sees: any address that may be read will do.
  std::fill(cells, cells + local.begin, cells[local.begin]);
  std::fill(cells + local.end, cells + kTileKeys, cells[local.begin]);

  if (kv.head_dim_k % kDimPadding == 0) {
    direct_scores<kType>(work, cells, prefetch);
  } else {
    load_tile(task, work.kv_head(), work.tile_begin, work.keys, /*values=*/false,
              work.scratch.tile);
    direct_scores<DType::kF32>(work, TileRows(work.scratch.tile, kv.head_dim_k).row, prefetch);
  }
  softmax_rows(work);
  if (kv.head_dim_v % kDimPadding == 0) {
    for (const Type*& cell : cells) cell += kv.v_offset;
    weigh_all_rows<kType>(work, cells, prefetch);
  } else {
    load_tile(task, work.kv_head(), work.tile_begin, work.keys, /*values=*/true, work.scratch.tile);
    weigh_all_rows<DType::kF32>(work, TileRows(work.scratch.tile, kv.head_dim_v).row, prefetch);
  }
}

// The tile for each of the task's KV heads.
void attend_tile(const HeadTask& task,
                 int32_t tile_begin,
                 int32_t end,
                 const Scratch& scratch,
                 const SoftmaxState& state) {
  TileWork work{task, scratch, 0, scratch.q, state, tile_begin, 0, task.rows, {}};
  const int32_t tile_end = std::min(tile_begin + kTileKeys, end);
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
  const int64_t rows = task.row_stride;
  for (; work.head < task.num_heads; ++work.head) {
    // What comes next: the same keys of the next head, then the next keys of the first.
    Prefetch prefetch;
    if (work.head + 1 < task.num_heads) {
      prefetch.set(task, work.kv_head() + 1, work.keys.begin, work.keys.end);
    } else {
      const int32_t next = tile_begin + kTileKeys;
      prefetch.set(task, task.kv_head, next,
                   std::min(next + kTileKeys, task.visible_end(task.rows - 1)));
    }
    with_cell_type(task.kv->dtype, [&]<DType kType>() { attend_direct<kType>(work, prefetch); });
    work.q += rows * pad(task.kv->head_dim_k);
    work.state.acc += rows * pad(task.kv->head_dim_v);
    work.state.max += rows;
    work.state.sum += rows;
  }
}

void clear(int32_t rows, int32_t dim, const SoftmaxState& state) {
  std::fill_n(state.max, rows, -std::numeric_limits<float>::infinity());
  std::fill_n(state.sum, rows, 0.0F);
  std::fill_n(state.acc, int64_t{rows} * dim, 0.0F);
}

void copy(int32_t rows, int32_t dim, const SoftmaxState& from, const SoftmaxState& to) {
  std::copy_n(from.max, rows, to.max);
  std::copy_n(from.sum, rows, to.sum);
  std::copy_n(from.acc, int64_t{rows} * dim, to.acc);
}

void attend(const HeadTask& task,
            int32_t begin,
            int32_t end,
            bool fresh,
            const Scratch& scratch,
            const SoftmaxState& state) {
  if (fresh) clear(task.num_heads * task.row_stride, pad(task.kv->head_dim_v), state);
  begin = std::max(begin, task.visible_begin(0) / kTileKeys * kTileKeys);
  end = std::min(end, task.visible_end(task.rows - 1));
  for (int32_t tile = begin; tile < end; tile += kTileKeys) {
    attend_tile(task, tile, end, scratch, state);
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
  return {isa, &attend, &merge, &clear, &copy, &scale, &store_cells};
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
