// The own kernels of linear layers, called directly: every shape they accept, whatever the rule
// that chooses between them says.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/row_linear.h"
#include "kernels/cuda/skinny_linear.h"
#include "tests/gpu.h"
#include "tests/gpu/kernels/gpu_matrix.h"

namespace tenon {
namespace {

using testing::expect_within;
using testing::GpuArray;
using testing::GpuMatrix;
using testing::normal_values;
using testing::rounded;
using testing::unit_roundoff;

struct Problem {
  int64_t tokens, n, k;
  std::vector<float> x, w, want;
  std::vector<double> size;  // sum of |x w|

  Problem(int64_t tokens_in, int64_t n_in, int64_t k_in, DType dtype)
      : tokens(tokens_in), n(n_in), k(k_in) {
    x = normal_values(tokens * k, 1);
    w = normal_values(n * k, 2, 0.05F);
    for (float& value : x) value = rounded(dtype, value);
    for (float& value : w) value = rounded(dtype, value);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t row = 0; row < n; ++row) {
        double sum = 0;
        double absolute = 0;
        for (int64_t i = 0; i < k; ++i) {
          const double product = static_cast<double>(x[static_cast<size_t>(t * k + i)]) *
                                 w[static_cast<size_t>(row * k + i)];
          sum += product;
          absolute += std::abs(product);
        }
        want.push_back(static_cast<float>(sum));
        size.push_back(absolute);
      }
    }
  }
};

template <typename Launch>
void check(
    CudaDevice* device, const Problem& p, DType dtype, const std::string& what, Launch launch) {
  GpuMatrix x(device, dtype, p.tokens, p.k, p.k + 16);
  GpuMatrix w(device, dtype, p.n, p.k);
  x.set(p.x);
  w.set(p.w);
  for (const DType out : {dtype, DType::kF32}) {
    GpuMatrix y(device, out, p.tokens, p.n, p.n + 5);
    SkinnyLinearArgs args{w.view().data, x.view().data, y.view().data, p.n,   p.k,
                          p.k + 16,      p.n + 5,       p.tokens,      dtype, out};
    launch(args);
    ASSERT_EQ(cudaGetLastError(), cudaSuccess) << what;
    expect_within(y.get(), p.want, fmt::format("{}: {} x {} x {}", what, p.tokens, p.n, p.k),
                  [&](size_t i) {
                    return 1.001 * unit_roundoff(out) * std::abs(p.want[i]) +
                           std::sqrt(static_cast<double>(p.k)) * 0x1p-23 * p.size[i];
                  });
  }
}

TEST(LinearKernels, EveryShapeTheyAccept) {
  TENON_GPU_OR_SKIP(device);
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const auto& [n, k] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 64}, {16, 256}, {17, 320}, {500, 576}, {2200, 1088}, {4500, 512}, {40, 14336}}) {
      for (const int64_t tokens : {1, 2, 3, 5, 8, 9, 16, 17, 32}) {
        if (n * k * tokens > (int64_t{40} << 20)) continue;
        const Problem problem(tokens, n, k, dtype);
        SkinnyLinearArgs shape{nullptr, nullptr, nullptr, n, k, k, n, tokens, dtype, dtype};
        ASSERT_TRUE(can_run_skinny_linear(shape));
        for (const SkinnyVariant v : {SkinnyVariant{1, 8, 4}, {2, 8, 2}, {2, 4, 2}}) {
          check(device, problem, dtype,
                fmt::format("skinny {},{},{}", v.row_tiles, v.warps, v.depth),
                [&](const SkinnyLinearArgs& args) {
                  EXPECT_TRUE(launch_skinny_linear(args, v, device->stream()));
                });
        }
        if (!can_run_row_linear(shape)) continue;
        for (const RowLinearVariant v : {RowLinearVariant{}, {1, 4, 4}}) {
          check(device, problem, dtype, fmt::format("rows {},{},{}", v.pairs, v.depth, v.warps),
                [&](const SkinnyLinearArgs& args) {
                  EXPECT_TRUE(launch_row_linear(args, v, device->stream()));
                });
        }
      }
    }
    // Columns that do not fill a step of either.
    const Problem odd(3, 21, 1000, dtype);
    check(device, odd, dtype, "rows", [&](const SkinnyLinearArgs& args) {
      EXPECT_FALSE(can_run_skinny_linear(args));
      EXPECT_TRUE(can_run_row_linear(args));
      launch_row_linear(args, device->stream());
    });
  }
}

TEST(LinearKernels, WhatTheyCannotServe) {
  SkinnyLinearArgs good{nullptr, nullptr, nullptr, 4096, 4096, 4096, 4096, 4};
  EXPECT_TRUE(can_run_skinny_linear(good));
  EXPECT_TRUE(can_run_row_linear(good));
  SkinnyLinearArgs bad = good;
  bad.k = 4100;
  EXPECT_FALSE(can_run_skinny_linear(bad));
  EXPECT_FALSE(can_run_row_linear(bad));
  bad = good;
  bad.x_stride = 4100;
  EXPECT_FALSE(can_run_skinny_linear(bad));
  EXPECT_FALSE(can_run_row_linear(bad));
  bad = good;
  bad.tokens = kMaxSkinnyTokens + 1;
  EXPECT_FALSE(can_run_skinny_linear(bad));
  bad.tokens = kMaxRowLinearTokens + 1;
  EXPECT_FALSE(can_run_row_linear(bad));
}

// Kernels that start before their predecessor ends still read what it wrote: a long chain gives the
// same bits as one that waits after every kernel.
TEST(LinearKernels, ChainsKeepTheirOrder) {
  TENON_GPU_OR_SKIP(device);
  const int64_t hidden = 2048;
  const int64_t inner = 5632;
  const DType dtype = DType::kBF16;
  GpuMatrix up(device, dtype, 2 * inner, hidden);
  GpuMatrix down(device, dtype, hidden, inner);
  launch_random_fill({up.view().data, dtype, 2 * inner * hidden, 1, 0.03F}, device->stream());
  launch_random_fill({down.view().data, dtype, hidden * inner, 2, 0.03F}, device->stream());
  const GpuArray<float> weight(device, normal_values(hidden, 3));
  for (const int64_t tokens : {1, 2, 7}) {
    GpuMatrix residual(device, DType::kF32, tokens, hidden);
    GpuMatrix x(device, dtype, tokens, hidden);
    GpuMatrix gate_up(device, dtype, tokens, 2 * inner);
    GpuMatrix activated(device, dtype, tokens, inner);
    const auto linear = [&](const GpuMatrix& w, const GpuMatrix& from, const GpuMatrix& to,
                            bool by_rows) {
      SkinnyLinearArgs args{w.view().data,
                            from.view().data,
                            to.view().data,
                            w.view().shape[0],
                            w.view().shape[1],
                            from.view().stride[0],
                            to.view().stride[0],
                            tokens,
                            dtype,
                            dtype};
      by_rows ? launch_row_linear(args, device->stream())
              : launch_skinny_linear(args, device->stream());
    };
    const auto chain = [&](bool waiting, bool by_rows) {
      residual.set(normal_values(tokens * hidden, 4));
      x.set(normal_values(tokens * hidden, 5));
      const auto next = [&] {
        if (waiting) (void)device->synchronize();
      };
      for (int layer = 0; layer < 60; ++layer) {
        RmsNormArgs norm;
        norm.residual = {residual.view().data, DType::kF32, hidden};
        norm.x = {x.view().data, dtype, hidden};
        norm.out = norm.x;
        norm.weight = weight.span().data();
        norm.eps = 1e-5F;
        norm.rows = tokens;
        norm.cols = hidden;
        launch_rms_norm(norm, device->stream());
        next();
        linear(up, x, gate_up, by_rows);
        next();
        launch_silu_and_mul({{gate_up.view().data, dtype, 2 * inner},
                             {activated.view().data, dtype, inner},
                             tokens,
                             inner},
                            device->stream());
        next();
        linear(down, activated, x, by_rows);
        next();
      }
      return residual.get();
    };
    for (const bool by_rows : {false, true}) {
      const std::vector<float> want = chain(true, by_rows);
      for (int repeat = 0; repeat < 3; ++repeat) {
        EXPECT_EQ(chain(false, by_rows), want)
            << tokens << " tokens, " << (by_rows ? "rows" : "skinny");
      }
    }
  }
}

}  // namespace
}  // namespace tenon
