// The decode kernel below the backend: its results against double precision, over shapes, pages and
// plans; launches that find counters as the ones before left them.
#include "attention/backends/flash/decode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <random>
#include <string>

#include "attention/synthetic_batch.h"
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

struct Case {
  std::string name;
  int32_t group = 4;
  int32_t kv_heads = 2;
  int32_t head_dim = 128;
  int32_t page_size = 16;
  int32_t tile_rows = 8;
  int32_t blocks = 0;  // 0: one a multiprocessor
  DType dtype = DType::kBF16;
  bool causal = true;
  bool heads_first = true;  // pages as [head, token], or [token, head]
  bool swizzled = false;
  bool lse = true;
  // Empty rows, rows of one key, rows that end with a page and just after it, a row that is cut.
  std::vector<BatchSpecRow> rows = {{1, 1},  {1, 0},  {1, 16},  {1, 17},
                                    {1, 64}, {1, 77}, {1, 333}, {1, 1500}};
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.name;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  const std::vector<BatchSpecRow> extends = {{1, 40}, {5, 90}, {2, 2},   {7, 700},
                                             {3, 0},  {0, 9},  {16, 16}, {4, 1030}};
  for (const int32_t dim : {8, 32, 64, 72, 80, 96, 128, 136, 192, 200, 256}) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      for (const int32_t tile_rows : {8, 16, 64}) {
        const std::string name = "Dim" + std::to_string(dim) +
                                 (dtype == DType::kF16 ? "F16" : "BF16") + "Rows" +
                                 std::to_string(tile_rows);
        for (const bool swizzled : {false, true}) {
          if (swizzled && dim % 64 != 0) continue;
          const std::string cells = swizzled ? "Swizzled" : "";
          all.push_back({.name = name + cells,
                         .head_dim = dim,
                         .tile_rows = tile_rows,
                         .dtype = dtype,
                         .swizzled = swizzled});
          all.push_back({.name = name + cells + "Extends",
                         .group = 3,
                         .head_dim = dim,
                         .tile_rows = tile_rows,
                         .dtype = dtype,
                         .swizzled = swizzled,
                         .rows = extends});
        }
      }
    }
  }
  for (const int32_t page : {1, 2, 5, 8, 24, 32, 64, 256}) {
    for (const bool heads_first : {false, true}) {
      for (const bool swizzled : {false, true}) {
        if (swizzled && page % 8 != 0) continue;
        all.push_back({.name = "Page" + std::to_string(page) + (heads_first ? "HeadsFirst" : "") +
                               (swizzled ? "Swizzled" : ""),
                       .page_size = page,
                       .heads_first = heads_first,
                       .swizzled = swizzled});
      }
    }
  }
  for (const int32_t group : {1, 2, 3, 5, 7, 8, 12, 16, 24, 64, 71}) {
    all.push_back({.name = "Group" + std::to_string(group),
                   .group = group,
                   .tile_rows = group <= 8    ? 8
                                : group <= 16 ? 16
                                              : 64});
  }
  // Few blocks: long stretches, and many that are claimed.
  for (const int32_t blocks : {1, 2, 3, 7}) {
    for (const int32_t tile_rows : {8, 16, 64}) {
      all.push_back({.name = "Blocks" + std::to_string(blocks) + "Rows" + std::to_string(tile_rows),
                     .tile_rows = tile_rows,
                     .blocks = blocks,
                     .swizzled = blocks % 2 == 1,
                     .rows = {{1, 9000}, {2, 3000}, {1, 0}, {1, 5}, {1, 6001}, {1, 2048}}});
    }
  }
  all.push_back({.name = "ManyRows", .rows = std::vector<BatchSpecRow>(200, {1, 21})});
  all.push_back({.name = "OneLongRow", .kv_heads = 1, .rows = {{1, 20000}}});
  all.push_back({.name = "NotCausal", .causal = false, .rows = extends});
  all.push_back({.name = "NoLse", .lse = false});
  all.push_back({.name = "Prefill", .tile_rows = 64, .rows = {{200, 200}, {65, 300}, {33, 33}}});
  return all;
}

// Queries [token, head], keys and values [row and key, KV head], and what attention makes of them.
struct Problem {
  const Case& c;
  SyntheticBatch batch;
  std::vector<int32_t> first_key;  // of a row, among all keys
  std::vector<float> q, k, v;
  std::vector<float> want, want_lse, reach;  // reach: sum of p |v|, what rounding acts on

  explicit Problem(const Case& test)
      : c(test), batch(make_batch(c.rows, c.page_size, blocks_needed(c.rows, c.page_size) + 3, 5)) {
    int32_t keys = 0;
    for (const int32_t seq_len : batch.seq_lens) {
      first_key.push_back(keys);
      keys += seq_len;
    }
    q = values(int64_t{batch.view.num_tokens()} * q_heads() * c.head_dim, 11);
    k = values(int64_t{keys} * c.kv_heads * c.head_dim, 12);
    v = values(int64_t{keys} * c.kv_heads * c.head_dim, 13);
    want.resize(q.size());
    reach.resize(q.size());
    want_lse.resize(static_cast<size_t>(batch.view.num_tokens() * q_heads()));
    for (int32_t row = 0; row < batch.view.num_rows(); ++row) {
      for (int32_t t = 0; t < batch.view.query_len(row); ++t) {
        for (int32_t h = 0; h < q_heads(); ++h) attend(row, t, h);
      }
    }
  }
  [[nodiscard]] int32_t q_heads() const { return c.group * c.kv_heads; }
  [[nodiscard]] float scale() const { return 1.0F / std::sqrt(static_cast<float>(c.head_dim)); }
  [[nodiscard]] std::vector<float> values(int64_t count, uint32_t seed) const {
    std::vector<float> made = normal_values(count, seed);
    for (float& value : made) value = rounded(c.dtype, value);
    return made;
  }
  [[nodiscard]] const float* cell(const std::vector<float>& of,
                                  int32_t row,
                                  int32_t key,
                                  int32_t head) const {
    const int64_t at = (int64_t{first_key[static_cast<size_t>(row)]} + key) * c.kv_heads + head;
    return of.data() + at * c.head_dim;
  }
  void attend(int32_t row, int32_t t, int32_t h) {
    const int32_t seq_len = batch.seq_lens[static_cast<size_t>(row)];
    const int32_t query_len = batch.view.query_len(row);
    const int32_t visible = seq_len == 0 ? 0 : c.causal ? seq_len - query_len + t + 1 : seq_len;
    const int64_t at =
        (int64_t{batch.query_start_loc[static_cast<size_t>(row)]} + t) * q_heads() + h;
    std::vector<double> p(static_cast<size_t>(visible));
    double best = -INFINITY;
    for (int32_t key = 0; key < visible; ++key) {
      const float* cells = cell(k, row, key, h / c.group);
      double sum = 0;
      for (int32_t d = 0; d < c.head_dim; ++d) {
        sum += static_cast<double>(q[static_cast<size_t>(at * c.head_dim + d)]) * cells[d];
      }
      p[static_cast<size_t>(key)] = sum * scale();
      best = std::max(best, p[static_cast<size_t>(key)]);
    }
    double total = 0;
    for (double& value : p) total += value = std::exp(value - best);
    want_lse[static_cast<size_t>(at)] =
        visible == 0 ? -INFINITY : static_cast<float>(best + std::log(total));
    std::vector<double> out(static_cast<size_t>(c.head_dim)), absolute = out;
    for (int32_t key = 0; key < visible; ++key) {
      const float* cells = cell(v, row, key, h / c.group);
      for (size_t d = 0; d < out.size(); ++d) {
        const double term = p[static_cast<size_t>(key)] / total * cells[d];
        out[d] += term;
        absolute[d] += std::abs(term);
      }
    }
    for (size_t d = 0; d < out.size(); ++d) {
      want[static_cast<size_t>(at * c.head_dim) + d] = static_cast<float>(out[d]);
      reach[static_cast<size_t>(at * c.head_dim) + d] = static_cast<float>(absolute[d]);
    }
  }
};

class FlashDecode : public ::testing::TestWithParam<Case> {};

TEST_P(FlashDecode, MatchesDoublePrecision) {
  TENON_GPU_OR_SKIP(device);
  const Case& c = GetParam();
  const Problem problem(c);
  const BatchView& batch = problem.batch.view;
  const DecodeVariant variant{c.head_dim, c.dtype == DType::kBF16, c.tile_rows};
  ASSERT_TRUE(decode_supports(variant));

  const DecodePlanShape shape{c.blocks > 0 ? c.blocks : device->num_sms(),
                              c.kv_heads,
                              c.group,
                              c.tile_rows,
                              c.page_size,
                              c.causal};
  std::vector<DecodeTile> tiles(
      static_cast<size_t>(max_decode_tiles(shape, batch.num_rows(), batch.num_tokens())));
  size_t count = 0;
  for (int32_t row = 0; row < batch.num_rows(); ++row) {
    count +=
        static_cast<size_t>(make_decode_tiles(shape, batch, row, std::span(tiles).subspan(count)));
  }
  tiles.resize(count);
  const auto most = static_cast<size_t>(max_decode_stretches(shape));
  std::vector<DecodeStretch> stretches(most);
  deal_decode_tiles(shape, tiles, batch.page_indices, stretches);

  // Queries as slices of a wider activation.
  const int64_t width = int64_t{problem.q_heads()} * c.head_dim;
  GpuMatrix q(device, c.dtype, batch.num_tokens(), width, width + 2 * c.head_dim);
  q.set(problem.q);
  // Cells that hold no key are NaN.
  const int64_t cell = 2 * c.head_dim;
  const int64_t cells = (blocks_needed(c.rows, c.page_size) + 3) * c.page_size * c.kv_heads;
  DecodeParams params;
  params.page_stride = c.page_size * c.kv_heads * cell;
  params.head_stride = c.heads_first ? c.page_size * cell : cell;
  params.token_stride = c.heads_first ? cell : c.kv_heads * cell;
  std::vector<float> pool(static_cast<size_t>(cells * cell),
                          std::numeric_limits<float>::quiet_NaN());
  for (int32_t row = 0; row < batch.num_rows(); ++row) {
    for (int32_t key = 0; key < batch.seq_lens[static_cast<size_t>(row)]; ++key) {
      const int32_t page = batch.page_indices[static_cast<size_t>(
          batch.page_indptr[static_cast<size_t>(row)] + key / c.page_size)];
      for (int32_t head = 0; head < c.kv_heads; ++head) {
        const int64_t at = page * params.page_stride + head * params.head_stride +
                           key % c.page_size * params.token_stride;
        const int64_t swizzle = c.swizzled ? key % c.page_size % 8 * 8 : 0;
        for (int64_t i = 0; i < c.head_dim; ++i) {
          pool[static_cast<size_t>(at + (i ^ swizzle))] =
              problem.cell(problem.k, row, key, head)[i];
          pool[static_cast<size_t>(at + ((c.head_dim + i) ^ swizzle))] =
              problem.cell(problem.v, row, key, head)[i];
        }
      }
    }
  }
  GpuMatrix pages(device, c.dtype, cells, cell);
  pages.set(pool);
  const GpuArray<int32_t> indices(device, problem.batch.page_indices);
  const GpuArray<DecodeTile> device_tiles(device, tiles);
  const GpuArray<DecodeStretch> device_stretches(device, stretches);
  const GpuArray<int32_t> counters(device, std::vector<int32_t>(most + 1));
  GpuMatrix partials(device, DType::kF32, static_cast<int64_t>(most),
                     decode_partial_floats(variant));
  params.q = q.view().data;
  params.q_stride = width + 2 * c.head_dim;
  params.kv = pages.view().data;
  params.page_indices = indices.span().data();
  params.page_size = FastDivisor(c.page_size);
  params.tiles = device_tiles.span().data();
  params.stretches = device_stretches.span().data();
  params.partials = static_cast<float*>(partials.view().data);
  params.counters = const_cast<int32_t*>(counters.span().data());
  params.claims = params.counters + most;
  params.blocks = shape.blocks;
  params.num_q_heads = problem.q_heads();
  params.num_kv_heads = c.kv_heads;
  params.group = FastDivisor(c.group);
  params.head_dim = c.head_dim;
  params.swizzle = c.swizzled ? 7 : 0;
  params.score_scale = problem.scale() * std::numbers::log2e_v<float>;
  params.causal = c.causal;
  params.bf16 = variant.bf16;

  for (int launch = 0; launch < 2; ++launch) {
    GpuMatrix out(device, c.dtype, batch.num_tokens(), width, width + 8);
    GpuMatrix lse(device, DType::kF32, batch.num_tokens(), problem.q_heads());
    params.out = out.view().data;
    params.out_stride = width + 8;
    params.lse = c.lse ? static_cast<float*>(lse.view().data) : nullptr;
    ASSERT_EQ(launch_decode(variant, params, device->stream()), cudaSuccess);
    ASSERT_TRUE(device->synchronize().ok()) << device->status().message();
    // Probabilities and results are rounded once each; f32 sums and exp2 add little.
    const float unit = unit_roundoff(c.dtype);
    expect_within(out.get(), problem.want, "out", [&](size_t i) {
      return unit * (1.1F * problem.reach[i] + std::abs(problem.want[i])) + 1e-6F;
    });
    if (!c.lse) continue;
    const std::vector<float> got = lse.get();
    for (size_t i = 0; i < got.size(); ++i) {
      if (std::isinf(problem.want_lse[i])) {
        EXPECT_EQ(got[i], problem.want_lse[i]) << i;
      } else {
        EXPECT_NEAR(got[i], problem.want_lse[i], 1e-4) << i;
      }
    }
  }
  std::vector<int32_t> left(most + 1, -1);
  device->read(left.data(), params.counters, left.size() * sizeof(int32_t));
  EXPECT_EQ(std::count(left.begin(), left.end(), 0), static_cast<ptrdiff_t>(left.size()));
}

INSTANTIATE_TEST_SUITE_P(Shapes,
                         FlashDecode,
                         ::testing::ValuesIn(cases()),
                         [](const ::testing::TestParamInfo<Case>& test) {
                           return test.param.name;
                         });

TEST(FlashDecodeVariants, Supports) {
  EXPECT_TRUE(decode_supports({128, true, 8}));
  EXPECT_TRUE(decode_supports({72, false, 16}));
  EXPECT_FALSE(decode_supports({264, true, 8}));
  EXPECT_FALSE(decode_supports({100, true, 8}));
  EXPECT_FALSE(decode_supports({128, true, 32}));
  EXPECT_TRUE(decode_supports({80, true, 8, Cells::kI8}));
  EXPECT_FALSE(decode_supports({72, true, 8, Cells::kF8})) << "pieces of 16 bytes are 16 cells";
}

// Tiles of 8 rows may be done as tiles of 16: see launch_extras().
TEST(FlashDecodeVariants, PartialResultsHaveRoomForTheRowsOfTheKernel) {
  const DecodeVariant plain{128, true, 8};
  DecodeVariant other = plain;
  other.extras = true;
  EXPECT_EQ(decode_partial_floats(other), 2 * decode_partial_floats(plain));
  other = plain;
  other.cells = Cells::kF8;
  EXPECT_EQ(decode_partial_floats(other), 2 * decode_partial_floats(plain));
  other.tile_rows = 64;
  EXPECT_EQ(decode_partial_floats(other), 8 * decode_partial_floats(plain));
}

TEST(FlashDecodeVariants, BulkCopies) {
  const DecodeVariant variant{128, true, 8};
  DecodeParams params;
  params.page_size = FastDivisor(32);
  params.token_stride = 256;
  EXPECT_FALSE(decode_copies_in_bulk(variant, params)) << "as cells are not swizzled";
  params.swizzle = 7;
  EXPECT_TRUE(decode_copies_in_bulk(variant, params));
  EXPECT_FALSE(decode_copies_in_bulk({128, true, 64}, params)) << "as the tile is wide";
  params.page_size = FastDivisor(24);
  EXPECT_FALSE(decode_copies_in_bulk(variant, params)) << "as runs lie across pages";
  params.page_size = FastDivisor(16);
  params.token_stride = 8 * 256;
  EXPECT_FALSE(decode_copies_in_bulk(variant, params)) << "as the next cell is of another head";
}

TEST(FlashDecodeVariants, FastDivisorIsExact) {
  std::mt19937 random(3);
  for (int i = 0; i < 200'000; ++i) {
    const auto d = static_cast<int32_t>(1 + random() % (i % 2 == 0 ? 100U : 0x7FFFFFFFU));
    const auto n = static_cast<int32_t>(random() & 0x7FFFFFFFU);
    const FastDivisor divisor(d);
    for (const int32_t value : {n, n / d * d, std::max(n / d * d - 1, 0), 0x7FFFFFFF}) {
      ASSERT_EQ(
          static_cast<int32_t>((static_cast<uint64_t>(value) * divisor.factor) >> divisor.shift),
          value / d)
          << value << " / " << d;
    }
  }
}

// What would read wrong cells is not launched.
TEST(FlashDecodeVariants, WhatCannotBeIsRefused) {
  DecodeParams params;
  params.page_size = FastDivisor(16);
  params.swizzle = 7;
  EXPECT_EQ(launch_decode({96, true, 8}, params, nullptr), cudaErrorInvalidValue);
  params.page_size = FastDivisor(4);
  EXPECT_EQ(launch_decode({128, true, 8}, params, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace tenon::flash
