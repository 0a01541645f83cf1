// The CUDA operators against the reference ones. Inputs are rounded to the type they are passed in,
// so that what remains is the rounding of results (and of f32 sums, bounded by norms).
#include "kernels/cuda/cuda_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/dequantise.h"
#include "tests/gpu.h"
#include "tests/gpu/kernels/gpu_matrix.h"
#include "tests/unit/kernels/kernel_test_util.h"

namespace tenon {
namespace {

using testing::decoded;
using testing::expect_within;
using testing::GpuArray;
using testing::GpuMatrix;
using testing::normal_values;
using testing::rounded;
using testing::StoredMatrix;
using testing::unit_roundoff;

std::vector<float> rounded_all(DType dtype, std::vector<float> values) {
  for (float& value : values) value = rounded(dtype, value);
  return values;
}

TensorView host_view(std::vector<float>& values, int64_t rows, int64_t cols) {
  return TensorView::dense(values.data(), DType::kF32, {rows, cols});
}

std::vector<double> row_norms(const std::vector<float>& values, int64_t cols) {
  std::vector<double> norms;
  for (auto row = values.begin(); row != values.end(); row += cols) {
    norms.push_back(std::sqrt(std::inner_product(row, row + cols, row, 0.0)));
  }
  return norms;
}

class CudaOps : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    TENON_GPU_OR_SKIP(device);
    device_ = device;
    auto made = make_cuda_ops(device, &pool_, dtype());
    ASSERT_TRUE(made.ok()) << made.status().message();
    ops_ = std::move(made).value();
    reference_ = make_reference_ops();
  }
  [[nodiscard]] static DType dtype() { return GetParam(); }

  std::unique_ptr<LinearWeight> prepared(std::span<const WeightSource> parts, int32_t max_tokens) {
    auto made = ops_->make_linear(parts, false);
    if (!made.ok()) {
      ADD_FAILURE() << made.status().message();
      return nullptr;
    }
    const LinearWeight* weight = made->get();
    const LinearUse uses[] = {{weight, dtype(), max_tokens}, {weight, DType::kF32, max_tokens}};
    const Status status = ops_->prepare(uses);
    EXPECT_TRUE(status.ok()) << status.message();
    return std::move(made).value();
  }

  // y = x W^T for every number of tokens in `counts`, both output types, against the reference on
  // weights rounded as they are stored on the device.
  void check_linear(const std::vector<WeightSource>& parts, const std::vector<int64_t>& counts) {
    const int64_t k = parts[0].cols;
    const auto max_tokens = static_cast<int32_t>(*std::max_element(counts.begin(), counts.end()));
    const std::unique_ptr<LinearWeight> weight = prepared(parts, max_tokens);
    ASSERT_NE(weight, nullptr);
    const int64_t n = weight->rows();
    EXPECT_EQ(weight->bytes(), n * k * 2);

    std::vector<float> stored;
    for (const WeightSource& part : parts) {
      std::vector<float> values(static_cast<size_t>(part.rows * k));
      dequantise(part.dtype, part.data, part.rows * k, values.data());
      stored.insert(stored.end(), values.begin(), values.end());
    }
    stored = rounded_all(dtype(), std::move(stored));
    const WeightSource exact{"w", DType::kF32, stored.data(), n, k, nullptr, {}};
    auto expected = reference_->make_linear({&exact, 1}, true);
    ASSERT_TRUE(expected.ok());
    const std::vector<double> weight_norms = row_norms(stored, k);

    for (const int64_t tokens : counts) {
      std::vector<float> x =
          rounded_all(dtype(), normal_values(tokens * k, static_cast<uint32_t>(tokens)));
      std::vector<float> want(static_cast<size_t>(tokens * n));
      reference_->linear(**expected, host_view(x, tokens, k), host_view(want, tokens, n));
      const std::vector<double> x_norms = row_norms(x, k);
      GpuMatrix input(device_, dtype(), tokens, k, k + 8);
      input.set(x);
      for (const DType out : {dtype(), DType::kF32}) {
        GpuMatrix result(device_, out, tokens, n, n + 8 - n % 8);
        ops_->linear(*weight, input.view(), result.view());
        expect_within(result.get(), want,
                      fmt::format("{} x {} x {} to {}", tokens, n, k, dtype_traits(out).name),
                      [&](size_t i) {
                        const auto token = static_cast<int64_t>(i) / n;
                        const auto row = static_cast<int64_t>(i) % n;
                        const double sum = static_cast<double>(k) * 0x1p-24 *
                                           x_norms[static_cast<size_t>(token)] *
                                           weight_norms[static_cast<size_t>(row)];
                        return sum + 1.001 * unit_roundoff(out) * std::abs(want[i]);
                      });
      }
    }
  }

  CudaDevice* device_ = nullptr;
  ThreadPool pool_{3};
  std::unique_ptr<Ops> ops_, reference_;
};

using testing::kWeightTypes;

TEST_P(CudaOps, LinearLayersOfEveryStoredType) {
  for (const DType stored : kWeightTypes) {
    const StoredMatrix matrix(stored, 40, 512, 7);
    check_linear({matrix.source()}, {1, 5, 70});
  }
}

TEST_P(CudaOps, LinearLayersOfManyShapes) {
  // Columns that are and are not multiples of a skinny step, rows that do not fill a tile.
  const std::vector<int64_t> counts = {1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 257};
  for (const auto& [n, k] : std::vector<std::pair<int64_t, int64_t>>{
           {576, 576}, {960, 576}, {3, 64}, {17, 1536}, {33, 40}, {130, 8}}) {
    const StoredMatrix matrix(DType::kF32, n, k, static_cast<uint32_t>(n));
    check_linear({matrix.source()}, counts);
  }
  const StoredMatrix narrow(DType::kF32, 192, 576, 5);
  check_linear({narrow.source()}, {2048});
  const StoredMatrix deep(DType::kBF16, 48, 14336, 6);
  check_linear({deep.source()}, {1, 8, 16, 64});
  const StoredMatrix wide(DType::kBF16, 49152, 64, 8);
  check_linear({wide.source()}, {1, 3, 17});
}

TEST_P(CudaOps, PartsOfDifferentTypesAreStacked) {
  const StoredMatrix q(DType::kQ4_1, 64, 512, 1);
  const StoredMatrix k(DType::kQ8_0, 24, 512, 2);
  const StoredMatrix v(DType::kF16, 24, 512, 3);
  check_linear({q.source(), k.source(), v.source()}, {1, 33});
}

// More rows than one buffer of the upload ring takes, more buffers than the ring has.
TEST_P(CudaOps, LargeWeightsArriveWhole) {
  const int64_t rows = 9000;
  const int64_t cols = 8192;
  const StoredMatrix matrix(dtype(), rows, cols, 11);
  const WeightSource source = matrix.source();
  const std::unique_ptr<LinearWeight> weight = prepared({&source, 1}, 1);
  auto table = ops_->make_embedding(source, weight.get());
  ASSERT_TRUE(table.ok()) << table.status().message();
  for (const int64_t begin : {int64_t{0}, rows / 3, rows / 2, rows - 200}) {
    std::vector<int32_t> ids(200);
    std::iota(ids.begin(), ids.end(), static_cast<int32_t>(begin));
    const GpuArray<int32_t> rows_wanted(device_, ids);
    GpuMatrix out(device_, DType::kF32, 200, cols);
    ops_->embedding(**table, rows_wanted.span(), out.view());
    std::vector<float> want(static_cast<size_t>(200 * cols));
    dequantise(dtype(), static_cast<const std::byte*>(source.data) + begin * cols * 2, 200 * cols,
               want.data());
    EXPECT_EQ(out.get(), want) << "from row " << begin;
  }
}

TEST_P(CudaOps, RandomWeightsAreThoseOfTheCpu) {
  const int64_t rows = 37;
  const int64_t cols = 72;
  WeightSource source{"random", DType::kBF16, nullptr, rows, cols, nullptr, {}};
  source.random = WeightSource::Random{12345, 0.25F};
  auto table = ops_->make_embedding(source, nullptr);
  ASSERT_TRUE(table.ok()) << table.status().message();
  EXPECT_EQ((*table)->bytes(), rows * cols * 2);
  std::vector<int32_t> ids(static_cast<size_t>(rows));
  std::iota(ids.begin(), ids.end(), 0);
  const GpuArray<int32_t> all(device_, ids);
  GpuMatrix out(device_, DType::kF32, rows, cols);
  ops_->embedding(**table, all.span(), out.view());
  std::vector<float> want(static_cast<size_t>(rows * cols));
  uint64_t state = 12345;
  for (float& value : want) {
    state += 0x9E3779B97F4A7C15U;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    z ^= z >> 31;
    value = rounded(dtype(), static_cast<float>(static_cast<int32_t>(z >> 32)) * 0x1p-31F * 0.25F);
  }
  EXPECT_EQ(out.get(), want);
}

TEST_P(CudaOps, EmbeddingOfATableAndOfATiedHead) {
  const StoredMatrix matrix(DType::kQ8_0, 300, 576, 9);
  const WeightSource source = matrix.source();
  const std::unique_ptr<LinearWeight> head = prepared({&source, 1}, 4);
  auto own = ops_->make_embedding(source, nullptr);
  auto tied = ops_->make_embedding(source, head.get());
  ASSERT_TRUE(own.ok() && tied.ok());
  EXPECT_EQ((*own)->bytes(), 300 * 576 * 2);
  EXPECT_EQ((*tied)->bytes(), 0);
  const std::vector<int32_t> ids = {299, 0, 17, 17, 128};
  const GpuArray<int32_t> wanted(device_, ids);
  for (const EmbeddingTable* table : {own->get(), tied->get()}) {
    GpuMatrix out(device_, DType::kF32, 5, 576, 600);
    ops_->embedding(*table, wanted.span(), out.view());
    std::vector<float> want;
    for (const int32_t id : ids) {
      std::vector<float> row(576);
      dequantise(DType::kQ8_0, static_cast<const std::byte*>(source.data) + id * 576 / 32 * 34, 576,
                 row.data());
      row = rounded_all(dtype(), std::move(row));
      want.insert(want.end(), row.begin(), row.end());
    }
    EXPECT_EQ(out.get(), want);
  }
}

TEST_P(CudaOps, NormsOfManySizes) {
  for (const int64_t cols : {8, 64, 576, 4096, 5120, 8192, 14336, 32768}) {
    for (const int64_t rows : {1, 3, 17, 257}) {
      std::vector<float> residual = normal_values(rows * cols, 1, 3.0F);
      std::vector<float> x = rounded_all(dtype(), normal_values(rows * cols, 2));
      std::vector<float> weight = normal_values(cols, 3);
      const GpuArray<float> gpu_weight(device_, weight);
      GpuMatrix gpu_residual(device_, DType::kF32, rows, cols, cols + 8);
      GpuMatrix gpu_x(device_, dtype(), rows, cols, cols + 16);
      gpu_residual.set(residual);
      gpu_x.set(x);
      const auto bound = [&](const std::vector<float>& want) {
        return [&want](size_t i) {
          return (1.01F * unit_roundoff(GetParam()) + 1e-5F) * std::abs(want[i]) + 1e-7F;
        };
      };
      std::vector<float> want(residual.size());
      {
        reference_->rms_norm(host_view(residual, rows, cols), weight, 1e-5F,
                             host_view(want, rows, cols));
        GpuMatrix out(device_, dtype(), rows, cols, cols + 8);
        ops_->rms_norm(gpu_residual.view(), gpu_weight.span(), 1e-5F, out.view());
        expect_within(out.get(), want, fmt::format("rms_norm {} x {}", rows, cols), bound(want));
        EXPECT_EQ(gpu_residual.get(), residual);
      }
      {
        reference_->add_rms_norm(host_view(residual, rows, cols), host_view(x, rows, cols), weight,
                                 1e-5F, host_view(want, rows, cols));
        GpuMatrix out(device_, dtype(), rows, cols);
        ops_->add_rms_norm(gpu_residual.view(), gpu_x.view(), gpu_weight.span(), 1e-5F, out.view());
        expect_within(out.get(), want, fmt::format("add_rms_norm {} x {}", rows, cols),
                      bound(want));
        EXPECT_EQ(gpu_residual.get(), residual);  // one f32 addition, the same everywhere
      }
    }
  }
}

TEST_P(CudaOps, RotationsOfManyHeadSizes) {
  for (const bool interleaved : {false, true}) {
    for (const auto& [head_dim, rotary_dim] : std::vector<std::pair<int32_t, int32_t>>{
             {64, 64}, {128, 128}, {80, 80}, {96, 48}, {72, 36}, {8, 8}, {256, 64}}) {
      for (const int64_t rows : {1, 17, 257}) {
        const int64_t heads = 5;
        const int32_t positions_known = 300;
        RopeTable table;
        table.rotary_dim = rotary_dim;
        table.interleaved = interleaved;
        for (int32_t i = 0; i < positions_known * rotary_dim / 2; ++i) {
          table.cos.push_back(std::cos(0.37F * static_cast<float>(i)));
          table.sin.push_back(std::sin(0.37F * static_cast<float>(i)));
        }
        std::vector<int32_t> positions(static_cast<size_t>(rows));
        for (size_t i = 0; i < positions.size(); ++i) {
          positions[i] = static_cast<int32_t>(i * 13 % positions_known);
        }
        const int64_t cols = heads * head_dim;
        std::vector<float> x = rounded_all(dtype(), normal_values(rows * cols, 4));
        GpuMatrix gpu_x(device_, dtype(), rows, cols, cols + 3 * head_dim);
        gpu_x.set(x);
        const std::vector<float> before = x;
        reference_->rope(host_view(x, rows, cols), positions, head_dim, table);
        const GpuArray<float> cos(device_, table.cos);
        const GpuArray<float> sin(device_, table.sin);
        const GpuArray<int32_t> gpu_positions(device_, positions);
        ops_->rope(gpu_x.view(), gpu_positions.span(), head_dim,
                   {rotary_dim, interleaved, cos.span(), sin.span()});
        expect_within(
            gpu_x.get(), x,
            fmt::format("head_dim {} rotary_dim {} interleaved {} rows {}", head_dim, rotary_dim,
                        interleaved, rows),
            [&](size_t i) { return 1.01F * unit_roundoff(dtype()) * std::abs(x[i]) + 1e-5F; });
      }
    }
  }
}

TEST_P(CudaOps, SiluAndMul) {
  for (const int64_t cols : {8, 576, 1536, 14336}) {
    for (const int64_t rows : {1, 3, 17, 257}) {
      std::vector<float> gate_up = rounded_all(dtype(), normal_values(rows * 2 * cols, 5, 6.0F));
      GpuMatrix in(device_, dtype(), rows, 2 * cols);
      in.set(gate_up);
      std::vector<float> want(static_cast<size_t>(rows * cols));
      reference_->silu_and_mul(host_view(gate_up, rows, 2 * cols), host_view(want, rows, cols));
      GpuMatrix out(device_, dtype(), rows, cols, cols + 8);
      ops_->silu_and_mul(in.view(), out.view());
      expect_within(out.get(), want, fmt::format("{} x {}", rows, cols), [&](size_t i) {
        return (1.01F * unit_roundoff(dtype()) + 1e-5F) * std::abs(want[i]) + 1e-7F;
      });
    }
  }
}

TEST_P(CudaOps, RowsAreGathered) {
  const std::vector<int32_t> ids = {40, 0, 0, 7, 39, 22, 3};
  const GpuArray<int32_t> wanted(device_, ids);
  for (const DType type : {DType::kF32, dtype()}) {
    const std::vector<float> x = rounded_all(type, normal_values(41 * 576, 6));
    GpuMatrix in(device_, type, 41, 576, 584);
    in.set(x);
    GpuMatrix out(device_, type, 7, 576);
    ops_->gather_rows(in.view(), wanted.span(), out.view());
    std::vector<float> want;
    for (const int32_t id : ids) want.insert(want.end(), &x[id * 576], &x[id * 576] + 576);
    EXPECT_EQ(out.get(), want);
  }
}

TEST_P(CudaOps, LogSumExp) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const int64_t cols : {1, 5, 1000, 49152, 128256, 32003}) {
    const int64_t rows = 6;
    std::vector<float> logits = normal_values(rows * cols, 7, 10.0F);
    for (int64_t c = 0; c < cols; ++c) {
      logits[static_cast<size_t>(cols + c)] = -inf;                         // nothing allowed
      if (c != cols / 2) logits[static_cast<size_t>(2 * cols + c)] = -inf;  // one allowed
      logits[static_cast<size_t>(3 * cols + c)] += 3e4F;                    // exp overflows
      if (c % 2 == 0) logits[static_cast<size_t>(4 * cols + c)] = -inf;
    }
    logits[static_cast<size_t>(5 * cols + cols / 3)] = inf;
    std::vector<float> want(rows);
    reference_->log_sum_exp(host_view(logits, rows, cols), want);
    GpuMatrix in(device_, DType::kF32, rows, cols);
    in.set(logits);
    GpuMatrix out(device_, DType::kF32, 1, rows);
    ops_->log_sum_exp(in.view(), {out.view().as<float>(), static_cast<size_t>(rows)});
    const std::vector<float> got = out.get();
    for (size_t row = 0; row < got.size(); ++row) {
      if (std::isinf(want[row])) {
        EXPECT_EQ(got[row], want[row]) << row << " of " << cols;
      } else {
        EXPECT_NEAR(got[row], want[row], 1e-4 + 1e-6 * std::abs(want[row]))
            << row << " of " << cols;
      }
    }
  }
}

// What a step enqueues can be captured, and a replay reads what is in the inputs then. Nothing is
// allocated after prepare().
TEST_P(CudaOps, AStepIsCapturedWithoutAllocating) {
  const int64_t hidden = 576;
  const int64_t inner = 1536;
  const StoredMatrix up_matrix(DType::kF32, 2 * inner, hidden, 1);
  const StoredMatrix down_matrix(DType::kF32, hidden, inner, 2);
  const WeightSource up_source = up_matrix.source();
  const WeightSource down_source = down_matrix.source();
  auto up = ops_->make_linear({&up_source, 1}, false);
  auto down = ops_->make_linear({&down_source, 1}, false);
  ASSERT_TRUE(up.ok() && down.ok());
  const LinearUse uses[] = {{up->get(), dtype(), 64}, {down->get(), dtype(), 64}};
  ASSERT_TRUE(ops_->prepare(uses).ok());
  const GpuArray<float> weight(device_, normal_values(hidden, 3));
  for (const int64_t tokens : {1, 5, 16, 48}) {
    GpuMatrix residual(device_, DType::kF32, tokens, hidden);
    GpuMatrix x(device_, dtype(), tokens, hidden);
    GpuMatrix normed(device_, dtype(), tokens, hidden);
    GpuMatrix gate_up(device_, dtype(), tokens, 2 * inner);
    GpuMatrix activated(device_, dtype(), tokens, inner);
    GpuMatrix out(device_, dtype(), tokens, hidden);
    const auto step = [&] {
      ops_->add_rms_norm(residual.view(), x.view(), weight.span(), 1e-5F, normed.view());
      ops_->linear(**up, normed.view(), gate_up.view());
      ops_->silu_and_mul(gate_up.view(), activated.view());
      ops_->linear(**down, activated.view(), out.view());
    };
    const auto fill = [&](uint32_t seed) {
      residual.set(normal_values(tokens * hidden, seed));
      x.set(normal_values(tokens * hidden, seed + 1));
    };
    fill(10);
    step();
    ASSERT_TRUE(device_->synchronize().ok()) << device_->status().message();
    const int64_t free_before = device_->available_bytes();
    ASSERT_TRUE(device_->begin_capture().ok());
    step();
    auto graph = device_->end_capture();
    ASSERT_TRUE(graph.ok()) << graph.status().message();
    for (const uint32_t seed : {20U, 30U, 40U}) {
      fill(seed);
      step();
      const std::vector<float> want = out.get();
      EXPECT_TRUE(std::none_of(want.begin(), want.end(), [](float v) { return std::isnan(v); }));
      fill(seed);
      (*graph)->launch();
      EXPECT_EQ(out.get(), want) << tokens << " tokens, seed " << seed;
    }
    EXPECT_GE(device_->available_bytes(), free_before - (int64_t{4} << 20));  // the graph itself
  }
}

TEST_P(CudaOps, WhatAGpuCannotServeIsRefused) {
  const StoredMatrix matrix(DType::kF32, 16, 12, 1);
  const WeightSource source = matrix.source();
  EXPECT_EQ(ops_->make_linear({&source, 1}, false).status().code(), StatusCode::kUnsupported);
  const StoredMatrix good(DType::kF32, 16, 16, 1);
  const WeightSource good_source = good.source();
  EXPECT_EQ(ops_->make_linear({&good_source, 1}, true).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(ops_->make_linear({}, false).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(make_cuda_ops(device_, &pool_, DType::kF32).status().code(), StatusCode::kUnsupported);
}

INSTANTIATE_TEST_SUITE_P(Types,
                         CudaOps,
                         ::testing::Values(DType::kBF16, DType::kF16),
                         [](const auto& type) {
                           return std::string(dtype_traits(type.param).name);
                         });

}  // namespace
}  // namespace tenon
