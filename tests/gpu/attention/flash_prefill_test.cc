// The prefill kernel below the backend: its work list, and its results against double precision.
#include "attention/backends/flash/prefill.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <tuple>

#include "tests/gpu.h"
#include "tests/gpu/kernels/gpu_matrix.h"

namespace tenon::flash {
namespace {

using testing::expect_within;
using testing::GpuArray;
using testing::GpuMatrix;
using testing::normal_values;
using testing::rounded;
using testing::unit_roundoff;

// ---- the work list ----

PrefillShape shape_of(int32_t q_heads, int32_t kv_heads, int32_t head_dim) {
  return {.num_q_heads = q_heads, .num_kv_heads = kv_heads, .head_dim = head_dim, .page_size = 16};
}

TEST(FlashPrefillPlan, EveryTokenOfEveryHeadOnce) {
  const std::vector<PrefillRow> rows = {
      {.q_begin = 0, .q_len = 700, .kv_len = 700, .kv_begin = 0},
      {.q_begin = 700, .q_len = 1, .kv_len = 90'000, .kv_begin = 44},
      {.q_begin = 701, .q_len = 33, .kv_len = 40, .kv_begin = 701, .ragged = true},
      {.q_begin = 734, .q_len = 5, .kv_len = 0, .kv_begin = 0}};
  for (const PrefillShape& shape :
       {shape_of(32, 8, 128), shape_of(6, 2, 64), shape_of(8, 8, 256), shape_of(128, 1, 128)}) {
    std::vector<PrefillTile> tiles(static_cast<size_t>(max_prefill_tiles(shape, 739, 4)));
    std::vector<PrefillRow> order = rows;
    const PrefillPlan plan = plan_prefill(shape, true, order, tiles);
    // Heads are counted in units of those that share a tile.
    std::map<int32_t, std::map<int32_t, int32_t>> seen;  // head, token -> times
    for (int32_t i = 0; i < plan.num_tiles; ++i) {
      const PrefillTile& tile = tiles[static_cast<size_t>(i)];
      const auto row = std::find_if(rows.begin(), rows.end(), [&](const PrefillRow& candidate) {
        return tile.q_begin >= candidate.q_begin &&
               tile.q_begin < candidate.q_begin + candidate.q_len;
      });
      ASSERT_NE(row, rows.end());
      EXPECT_LE(tile.q_begin + tile.q_len, row->q_begin + row->q_len);
      EXPECT_EQ(tile.kv_len, row->kv_len);
      EXPECT_EQ(tile.kv_begin, row->kv_begin);
      EXPECT_EQ(tile.ragged != 0, row->ragged);
      EXPECT_EQ(tile.visible, row->kv_len - row->q_len + (tile.q_begin - row->q_begin) + 1);
      for (int32_t h = 0; h < plan.heads_per_tile; ++h) {
        for (int32_t t = 0; t < tile.q_len; ++t) ++seen[tile.head_begin + h][tile.q_begin + t];
      }
    }
    const auto heads = static_cast<int32_t>(seen.size());
    EXPECT_EQ(shape.num_q_heads % heads, 0);
    EXPECT_EQ(seen.begin()->first, 0);
    EXPECT_EQ(seen.rbegin()->first, heads - 1);
    for (const auto& [head, tokens] : seen) {
      EXPECT_EQ(tokens.size(), 739U) << "head " << head;
      for (const auto& [token, times] : tokens) EXPECT_EQ(times, 1) << head << " " << token;
    }
  }
}

TEST(FlashPrefillPlan, HeaviestTilesFirst) {
  const PrefillShape shape = shape_of(32, 8, 128);
  std::vector<PrefillRow> rows = {{.q_begin = 0, .q_len = 500, .kv_len = 500},
                                  {.q_begin = 500, .q_len = 900, .kv_len = 900}};
  std::vector<PrefillTile> tiles(static_cast<size_t>(max_prefill_tiles(shape, 1400, 2)));
  const PrefillPlan plan = plan_prefill(shape, true, rows, tiles);
  ASSERT_GT(plan.num_tiles, 1);
  EXPECT_EQ(plan.heads_per_tile, 8);  // all of them fit the cache
  for (int32_t i = 1; i < plan.num_tiles; ++i) {
    const PrefillTile& a = tiles[static_cast<size_t>(i) - 1];
    const PrefillTile& b = tiles[static_cast<size_t>(i)];
    EXPECT_GE(a.visible + a.q_len, b.visible + b.q_len);
  }
}

TEST(FlashPrefillPlan, Supports) {
  EXPECT_TRUE(prefill_supports(shape_of(32, 8, 128)));
  EXPECT_TRUE(prefill_supports(shape_of(3, 1, 80)));
  EXPECT_FALSE(prefill_supports(shape_of(32, 8, 264)));
  EXPECT_FALSE(prefill_supports(shape_of(32, 8, 100)));
  EXPECT_FALSE(prefill_supports(shape_of(32, 7, 128)));
}

// What would read wrong cells is not launched.
TEST(FlashPrefillPlan, SwizzledPagesOfOddSizesAreRefused) {
  PrefillParams params;
  params.shape = shape_of(32, 8, 128);
  params.plan.num_tiles = 1;
  params.pages.swizzled = true;
  params.shape.page_size = 4;
  EXPECT_EQ(launch_prefill(params, nullptr), cudaErrorInvalidValue);
  params.shape = shape_of(32, 8, 96);
  EXPECT_EQ(launch_prefill(params, nullptr), cudaErrorInvalidValue);
}

// ---- results ----

enum class Source { kPages, kActivations, kBoth };

struct Case {
  std::string name;
  int32_t q_heads = 4;
  int32_t kv_heads = 2;
  int32_t head_dim = 128;
  int32_t page_size = 16;
  DType dtype = DType::kBF16;
  Source source = Source::kBoth;
  bool causal = true;
  bool heads_first = false;  // pages as [head, token] instead of [token, head]
  bool swizzled = false;
  bool lse = true;
  int32_t max_blocks = 0;
  // query length, keys
  std::vector<std::pair<int32_t, int32_t>> rows = {{150, 150}, {1, 1}, {9, 300}, {64, 64}, {3, 0}};
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.name;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (int32_t dim : {64, 72, 80, 96, 128, 160, 192, 256}) {
    for (DType dtype : {DType::kBF16, DType::kF16}) {
      const std::string type = dtype == DType::kF16 ? "F16" : "BF16";
      all.push_back({.name = "Dim" + std::to_string(dim) + type, .head_dim = dim, .dtype = dtype});
      all.push_back({.name = "Dim" + std::to_string(dim) + type + "PageOfOne",
                     .head_dim = dim,
                     .page_size = 1,
                     .dtype = dtype});
    }
  }
  for (int32_t page : {2, 5, 8, 24, 32, 64, 128, 256}) {
    all.push_back(
        {.name = "Page" + std::to_string(page), .page_size = page, .source = Source::kPages});
    all.push_back({.name = "Page" + std::to_string(page) + "HeadsFirst",
                   .page_size = page,
                   .source = Source::kPages,
                   .heads_first = true});
  }
  for (int32_t dim : {64, 128, 192, 256}) {
    for (int32_t page : {8, 24, 32, 128}) {
      for (Source source : {Source::kPages, Source::kBoth}) {
        for (bool heads_first : {false, true}) {
          all.push_back({.name = "SwizzledDim" + std::to_string(dim) + "Page" +
                                 std::to_string(page) + (heads_first ? "HeadsFirst" : "") +
                                 (source == Source::kBoth ? "Both" : ""),
                         .head_dim = dim,
                         .page_size = page,
                         .source = source,
                         .heads_first = heads_first,
                         .swizzled = true});
        }
      }
    }
  }
  for (int32_t group : {1, 3, 7, 8, 32, 64, 128}) {
    all.push_back({.name = "Group" + std::to_string(group), .q_heads = 2 * group});
    all.push_back({.name = "Group" + std::to_string(group) + "Dim64",
                   .q_heads = group,
                   .kv_heads = 1,
                   .head_dim = 64});
  }
  all.push_back({.name = "Activations", .source = Source::kActivations});
  all.push_back({.name = "NotCausal", .causal = false});
  all.push_back({.name = "NoLse", .lse = false});
  all.push_back({.name = "FewBlocks", .max_blocks = 3});
  all.push_back(
      {.name = "ManyRows", .rows = std::vector<std::pair<int32_t, int32_t>>(150, {7, 11})});
  all.push_back({.name = "WholeBlocks", .rows = {{128, 128}, {256, 512}, {32, 1024}}});
  return all;
}

// Queries, keys and values as slices of one fused activation; outputs and LSE in double precision.
struct Problem {
  const Case& c;
  std::vector<PrefillRow> rows;
  int32_t tokens = 0;  // of queries
  int32_t keys = 0;
  int64_t width = 0;
  std::vector<float> fused;
  std::vector<float> want, want_lse, reach;  // reach: sum of p |v|, what rounding acts on

  explicit Problem(const Case& test) : c(test) {
    for (auto [q_len, kv_len] : c.rows) {
      rows.push_back({.q_begin = tokens, .q_len = q_len, .kv_len = kv_len, .kv_begin = keys});
      tokens += q_len;
      keys += kv_len;
    }
    width = int64_t{c.q_heads + 2 * c.kv_heads} * c.head_dim;
    fused = normal_values(std::max(tokens, keys) * width, 11);
    for (float& value : fused) value = rounded(c.dtype, value);
    want.resize(static_cast<size_t>(int64_t{tokens} * c.q_heads * c.head_dim));
    reach = want;
    want_lse.resize(static_cast<size_t>(tokens * c.q_heads));
    for (const PrefillRow& row : rows) {
      for (int32_t t = 0; t < row.q_len; ++t) {
        for (int32_t h = 0; h < c.q_heads; ++h) attend(row, t, h);
      }
    }
  }
  [[nodiscard]] const float* at(int64_t token, int64_t head) const {
    return fused.data() + token * width + head * c.head_dim;
  }
  [[nodiscard]] float scale() const { return 1.0F / std::sqrt(static_cast<float>(c.head_dim)); }
  void attend(const PrefillRow& row, int32_t t, int32_t h) {
    const int32_t visible = row.kv_len == 0 ? 0
                            : c.causal      ? row.kv_len - row.q_len + t + 1
                                            : row.kv_len;
    const int32_t kv_head = h / (c.q_heads / c.kv_heads);
    std::vector<double> p(static_cast<size_t>(visible));
    double best = -INFINITY;
    for (int32_t k = 0; k < visible; ++k) {
      const float* q = at(row.q_begin + t, h);
      const float* key = at(row.kv_begin + k, c.q_heads + kv_head);
      double sum = 0;
      for (int32_t d = 0; d < c.head_dim; ++d) sum += static_cast<double>(q[d]) * key[d];
      p[static_cast<size_t>(k)] = sum * scale();
      best = std::max(best, p[static_cast<size_t>(k)]);
    }
    double total = 0;
    for (double& value : p) total += value = std::exp(value - best);
    const size_t row_at = static_cast<size_t>((row.q_begin + t) * c.q_heads + h);
    want_lse[row_at] = visible == 0 ? -INFINITY : static_cast<float>(best + std::log(total));
    std::vector<double> out(static_cast<size_t>(c.head_dim)), absolute = out;
    for (int32_t k = 0; k < visible; ++k) {
      const float* value = at(row.kv_begin + k, c.q_heads + c.kv_heads + kv_head);
      for (int32_t d = 0; d < c.head_dim; ++d) {
        const double term = p[static_cast<size_t>(k)] / total * value[d];
        out[static_cast<size_t>(d)] += term;
        absolute[static_cast<size_t>(d)] += std::abs(term);
      }
    }
    for (int32_t d = 0; d < c.head_dim; ++d) {
      const size_t i = row_at * static_cast<size_t>(c.head_dim) + static_cast<size_t>(d);
      want[i] = static_cast<float>(out[static_cast<size_t>(d)]);
      reach[i] = static_cast<float>(absolute[static_cast<size_t>(d)]);
    }
  }
};

class FlashPrefill : public ::testing::TestWithParam<Case> {};

TEST_P(FlashPrefill, MatchesDoublePrecision) {
  TENON_GPU_OR_SKIP(device);
  const Case& c = GetParam();
  Problem problem(c);
  PrefillParams params;
  params.shape = {.num_q_heads = c.q_heads,
                  .num_kv_heads = c.kv_heads,
                  .head_dim = c.head_dim,
                  .page_size = c.page_size,
                  .bf16 = c.dtype == DType::kBF16};
  ASSERT_TRUE(prefill_supports(params.shape));
  params.causal = c.causal;
  params.scale = problem.scale();
  params.num_tokens = std::max(problem.tokens, problem.keys);
  params.max_blocks = c.max_blocks;

  // Activations, rows with a gap between them.
  const int64_t stride = problem.width + 8;
  GpuMatrix fused(device, c.dtype, params.num_tokens, problem.width, stride);
  fused.set(problem.fused);
  const auto* base = static_cast<const uint16_t*>(fused.view().data);
  params.q = base;
  params.k = base + c.q_heads * c.head_dim;
  params.v = base + (c.q_heads + c.kv_heads) * c.head_dim;
  params.q_stride = params.k_stride = params.v_stride = stride;

  // Pages in random order; cells that hold no key are NaN.
  std::vector<PrefillRow> rows = problem.rows;
  std::vector<int32_t> page_indices;
  int32_t num_pages = 2;
  for (const PrefillRow& row : rows) num_pages += (row.kv_len + c.page_size - 1) / c.page_size;
  std::vector<int32_t> free_pages(static_cast<size_t>(num_pages));
  std::iota(free_pages.begin(), free_pages.end(), 0);
  std::shuffle(free_pages.begin(), free_pages.end(), std::mt19937(5));
  const int64_t cell = 2 * c.head_dim;
  const int64_t cells = int64_t{num_pages} * c.page_size * c.kv_heads;
  params.pages.num_pages = num_pages;
  params.pages.page_stride = c.page_size * c.kv_heads * cell;
  params.pages.head_stride = c.heads_first ? c.page_size * cell : cell;
  params.pages.token_stride = c.heads_first ? cell : c.kv_heads * cell;
  params.pages.v_offset = c.head_dim;
  params.pages.swizzled = c.swizzled;
  std::vector<float> pool(static_cast<size_t>(cells * cell),
                          std::numeric_limits<float>::quiet_NaN());
  for (size_t i = 0; i < rows.size(); ++i) {
    PrefillRow& row = rows[i];
    row.ragged = c.source == Source::kActivations || (c.source == Source::kBoth && i % 2 == 0);
    if (row.ragged) continue;
    const int32_t first_key = row.kv_begin;
    row.kv_begin = static_cast<int32_t>(page_indices.size());
    for (int32_t k = 0; k < row.kv_len; ++k) {
      if (k % c.page_size == 0) {
        page_indices.push_back(free_pages.back());
        free_pages.pop_back();
      }
      for (int32_t h = 0; h < c.kv_heads; ++h) {
        const int64_t at = page_indices.back() * params.pages.page_stride +
                           h * params.pages.head_stride +
                           k % c.page_size * params.pages.token_stride;
        const int64_t swizzle = c.swizzled ? k % c.page_size % 8 * 8 : 0;
        const float* key = problem.at(first_key + k, c.q_heads + h);
        const float* value = problem.at(first_key + k, c.q_heads + c.kv_heads + h);
        for (int64_t d = 0; d < c.head_dim; ++d) {
          pool[static_cast<size_t>(at + (d ^ swizzle))] = key[d];
          pool[static_cast<size_t>(at + ((c.head_dim + d) ^ swizzle))] = value[d];
        }
      }
    }
  }
  GpuMatrix pages(device, c.dtype, cells, cell);
  pages.set(pool);
  params.pages.base = pages.view().data;
  page_indices.push_back(0);  // never empty
  const GpuArray<int32_t> indices(device, page_indices);
  params.page_indices = indices.span().data();

  std::vector<PrefillTile> tiles(static_cast<size_t>(
      max_prefill_tiles(params.shape, problem.tokens, static_cast<int64_t>(rows.size()))));
  params.plan = plan_prefill(params.shape, c.causal, rows, tiles);
  const GpuArray<PrefillTile> device_tiles(device, tiles);
  params.tiles = device_tiles.span().data();
  const GpuArray<int32_t> counters(device, {0, 0});
  params.counters = const_cast<int32_t*>(counters.span().data());

  const int64_t out_width = int64_t{c.q_heads} * c.head_dim;
  std::vector<float> first;
  // The second launch finds the counters as the first left them.
  for (int launch = 0; launch < 2; ++launch) {
    GpuMatrix out(device, c.dtype, problem.tokens, out_width, out_width + 16);
    GpuMatrix lse(device, DType::kF32, problem.tokens, c.q_heads);
    params.out = out.view().data;
    params.out_stride = out_width + 16;
    params.lse = c.lse ? static_cast<float*>(lse.view().data) : nullptr;
    ASSERT_EQ(launch_prefill(params, device->stream()), cudaSuccess);
    ASSERT_TRUE(device->synchronize().ok()) << device->status().message();
    const std::vector<float> got = out.get();
    // Probabilities and results are rounded once each; f32 sums and exp2 add little.
    const float unit = unit_roundoff(c.dtype);
    expect_within(got, problem.want, "out", [&](size_t i) {
      return unit * (1.1F * problem.reach[i] + std::abs(problem.want[i])) + 1e-6F;
    });
    if (c.lse) {
      const std::vector<float> got_lse = lse.get();
      for (size_t i = 0; i < got_lse.size(); ++i) {
        if (std::isinf(problem.want_lse[i])) {
          EXPECT_EQ(got_lse[i], problem.want_lse[i]) << i;
        } else {
          EXPECT_NEAR(got_lse[i], problem.want_lse[i], 1e-4) << i;
        }
      }
    }
    if (launch == 0) first = got;
    EXPECT_EQ(first, got) << "launches differ";
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes,
                         FlashPrefill,
                         ::testing::ValuesIn(cases()),
                         [](const ::testing::TestParamInfo<Case>& test) {
                           return test.param.name;
                         });

}  // namespace
}  // namespace tenon::flash
