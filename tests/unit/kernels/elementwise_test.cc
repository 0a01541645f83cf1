#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/dequantise.h"
#include "tests/unit/kernels/kernel_test_util.h"

namespace tenon {
namespace {

using testing::CpuOpsFixture;
using testing::Matrix;
using testing::StoredMatrix;

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

class ElementwiseTest : public ::testing::TestWithParam<std::string> {
 protected:
  ElementwiseTest() : cpu_(GetParam()), oracle_(make_reference_ops()) {}

  // Sizes around the vector widths, and one that is spread over threads.
  static constexpr int64_t kSizes[] = {1, 3, 8, 15, 16, 17, 33, 64, 576};
  static constexpr int64_t kRows[] = {1, 5, 200};

  Ops& cpu() { return *cpu_.ops; }
  Ops& oracle() { return *oracle_; }

 private:
  CpuOpsFixture cpu_;
  std::unique_ptr<Ops> oracle_;
};

void expect_near(const Matrix& got, const Matrix& want, float relative, float absolute) {
  got.expect_guards_intact();
  for (int64_t r = 0; r < want.rows; ++r) {
    for (int64_t c = 0; c < want.cols; ++c) {
      ASSERT_NEAR(got.at(r, c), want.at(r, c), std::abs(want.at(r, c)) * relative + absolute)
          << "row " << r << " column " << c;
    }
  }
}

std::vector<float> random_weight(int64_t cols) {
  Matrix weight(1, cols);
  weight.randomise(99);
  return weight.values;
}

TEST_P(ElementwiseTest, RmsNorm) {
  for (const int64_t rows : kRows) {
    for (const int64_t cols : kSizes) {
      SCOPED_TRACE(cols);
      Matrix x(rows, cols, cols + 3);
      x.randomise(1, 3.0F);
      const std::vector<float> weight = random_weight(cols);
      Matrix got(rows, cols, cols + 1);
      Matrix want(rows, cols);
      cpu().rms_norm(x.view(), weight, 1e-5F, got.view());
      oracle().rms_norm(x.view(), weight, 1e-5F, want.view());
      expect_near(got, want, 2e-6F, 1e-30F);
      cpu().rms_norm(x.view(), weight, 1e-5F, x.view());  // in place
      expect_near(x, got, 0.0F, 0.0F);
    }
  }
}

TEST_P(ElementwiseTest, AddRmsNorm) {
  for (const int64_t rows : kRows) {
    for (const int64_t cols : kSizes) {
      SCOPED_TRACE(cols);
      Matrix residual(rows, cols, cols + 2);
      Matrix x(rows, cols, cols + 3);
      residual.randomise(1, 3.0F);
      x.randomise(2);
      Matrix sum = residual;
      const std::vector<float> weight = random_weight(cols);
      Matrix got(rows, cols, cols + 1);
      Matrix want(rows, cols);
      cpu().add_rms_norm(residual.view(), x.view(), weight, 1e-5F, got.view());
      oracle().add_rms_norm(sum.view(), x.view(), weight, 1e-5F, want.view());
      expect_near(residual, sum, 0.0F, 0.0F);
      expect_near(got, want, 2e-6F, 1e-30F);
    }
  }
}

TEST_P(ElementwiseTest, NormOfZerosIsZeroAndNanSpreads) {
  Matrix x(2, 40);
  std::fill(x.values.begin(), x.values.end(), 0.0F);
  x.at(1, 39) = kNan;
  const std::vector<float> weight = random_weight(40);
  Matrix out(2, 40);
  cpu().rms_norm(x.view(), weight, 1e-5F, out.view());
  for (int64_t c = 0; c < 40; ++c) {
    EXPECT_EQ(out.at(0, c), 0.0F);
    EXPECT_TRUE(std::isnan(out.at(1, c)));
  }
}

TEST_P(ElementwiseTest, Rope) {
  for (const bool interleaved : {false, true}) {
    for (const int32_t rotary : {2, 6, 32, 48, 64}) {
      for (const int32_t head_dim : {64, 80}) {
        for (const int64_t rows : kRows) {
          SCOPED_TRACE(::testing::Message() << interleaved << " " << rotary << " of " << head_dim);
          RopeTable table;
          table.rotary_dim = rotary;
          table.interleaved = interleaved;
          for (int position = 0; position < 300; ++position) {
            for (int i = 0; i < rotary / 2; ++i) {
              const double angle = position * std::pow(10000.0, -2.0 * i / rotary);
              table.cos.push_back(static_cast<float>(std::cos(angle)));
              table.sin.push_back(static_cast<float>(std::sin(angle)));
            }
          }
          std::vector<int32_t> positions(static_cast<size_t>(rows));
          for (size_t t = 0; t < positions.size(); ++t)
            positions[t] = static_cast<int32_t>(299 - t);
          Matrix got(rows, 3 * head_dim, 3 * head_dim + 1);
          got.randomise(3);
          Matrix want = got;
          cpu().rope(got.view(), positions, head_dim, table);
          oracle().rope(want.view(), positions, head_dim, table);
          expect_near(got, want, 1e-6F, 1e-6F);
        }
      }
    }
  }
}

TEST_P(ElementwiseTest, SiluAndMul) {
  for (const int64_t rows : kRows) {
    for (const int64_t features : kSizes) {
      Matrix gate_up(rows, 2 * features, 2 * features + 1);
      gate_up.randomise(4, 10.0F);
      Matrix got(rows, features, features + 2);
      Matrix want(rows, features);
      cpu().silu_and_mul(gate_up.view(), got.view());
      oracle().silu_and_mul(gate_up.view(), want.view());
      expect_near(got, want, 2e-6F, 1e-36F);
    }
  }
}

TEST_P(ElementwiseTest, SiluAtItsEnds) {
  const std::vector<float> gates = {-1e30F, -200.0F, -89.0F, -88.0F, -20.0F,
                                    0.0F,   20.0F,   100.0F, 3e38F,  kNan};
  const auto count = static_cast<int64_t>(gates.size());
  Matrix gate_up(1, 2 * count);
  for (int64_t i = 0; i < count; ++i) {
    gate_up.at(0, i) = gates[static_cast<size_t>(i)];
    gate_up.at(0, count + i) = 1.0F;
  }
  Matrix out(1, count);
  cpu().silu_and_mul(gate_up.view(), out.view());
  // The true values below -88 are denormal; anything that small will do, but not NaN or a large
  // number.
  EXPECT_NEAR(out.at(0, 1), 0.0F, 1e-35F);
  EXPECT_NEAR(out.at(0, 2), 0.0F, 1e-35F);
  EXPECT_NEAR(out.at(0, 3), 0.0F, 1e-35F);
  EXPECT_NEAR(out.at(0, 4), -20.0F * std::exp(-20.0F), 1e-12F);
  EXPECT_EQ(out.at(0, 5), 0.0F);
  EXPECT_EQ(out.at(0, 6), 20.0F);
  EXPECT_EQ(out.at(0, 7), 100.0F);
  EXPECT_EQ(out.at(0, 8), 3e38F);
  EXPECT_TRUE(std::isnan(out.at(0, 9)));
  EXPECT_NEAR(out.at(0, 0), 0.0F, 1e-7F);
}

TEST_P(ElementwiseTest, LogSumExp) {
  for (const int64_t rows : kRows) {
    for (const int64_t cols : {1, 5, 16, 19, 1000, 49152}) {
      if (rows * cols > 1000000) continue;
      Matrix logits(rows, cols, cols + 1);
      logits.randomise(5, 6.0F);
      std::vector<float> got(static_cast<size_t>(rows));
      std::vector<float> want(static_cast<size_t>(rows));
      cpu().log_sum_exp(logits.view(), got);
      oracle().log_sum_exp(logits.view(), want);
      for (size_t t = 0; t < got.size(); ++t) ASSERT_NEAR(got[t], want[t], 4e-6F) << cols;
    }
  }
}

TEST_P(ElementwiseTest, LogSumExpOfSpecialRows) {
  Matrix logits(5, 37);
  for (int64_t c = 0; c < 37; ++c) {
    logits.at(0, c) = -kInf;
    logits.at(1, c) = c == 20 ? 3.0F : -kInf;  // all tokens but one forbidden
    logits.at(2, c) = c == 36 ? kInf : 0.0F;
    logits.at(3, c) = c == 36 ? kNan : 0.0F;
    logits.at(4, c) = 3e38F;
  }
  std::vector<float> out(5);
  cpu().log_sum_exp(logits.view(), out);
  EXPECT_EQ(out[0], -kInf);
  EXPECT_NEAR(out[1], 3.0F, 1e-6F);
  EXPECT_EQ(out[2], kInf);
  EXPECT_TRUE(std::isnan(out[3]));
  EXPECT_EQ(out[4], 3e38F);
}

TEST_P(ElementwiseTest, GatherRows) {
  Matrix x(7, 33, 40);
  x.randomise(6);
  const std::vector<int32_t> rows = {6, 0, 3, 3};
  Matrix out(4, 33, 35);
  cpu().gather_rows(x.view(), rows, out.view());
  out.expect_guards_intact();
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t c = 0; c < 33; ++c) ASSERT_EQ(out.at(i, c), x.at(rows[static_cast<size_t>(i)], c));
  }
}

TEST_P(ElementwiseTest, EmbeddingReadsTheFilesRows) {
  for (const DType dtype : testing::kWeightTypes) {
    const StoredMatrix table(dtype, 50, 512, 8);
    std::vector<int32_t> ids(130);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7 % 50);
    Matrix got(130, 512, 515);
    Matrix want(130, 512);
    const auto embedding = cpu().make_embedding(table.source(), nullptr);
    const auto expected = oracle().make_embedding(table.source(), nullptr);
    ASSERT_TRUE(embedding.ok() && expected.ok());
    cpu().embedding(**embedding, ids, got.view());
    oracle().embedding(**expected, ids, want.view());
    expect_near(got, want, 0.0F, 0.0F);
  }
}

// A row alone gives the same bits as the same row among others, whichever thread takes it.
TEST_P(ElementwiseTest, RowsDoNotDependOnTheBatch) {
  const int64_t cols = 577;
  Matrix x(300, 2 * cols);
  x.randomise(7);
  const std::vector<float> weight = random_weight(2 * cols);
  Matrix normed(300, 2 * cols);
  Matrix gated(300, cols);
  std::vector<float> sums(300);
  cpu().rms_norm(x.view(), weight, 1e-5F, normed.view());
  cpu().silu_and_mul(x.view(), gated.view());
  cpu().log_sum_exp(x.view(), sums);
  for (int64_t t = 0; t < 300; t += 37) {
    Matrix one_normed(1, 2 * cols);
    Matrix one_gated(1, cols);
    std::vector<float> one_sum(1);
    const TensorView row = x.view().slice(t, 1);
    cpu().rms_norm(row, weight, 1e-5F, one_normed.view());
    cpu().silu_and_mul(row, one_gated.view());
    cpu().log_sum_exp(row, one_sum);
    for (int64_t c = 0; c < 2 * cols; ++c) ASSERT_EQ(one_normed.at(0, c), normed.at(t, c));
    for (int64_t c = 0; c < cols; ++c) ASSERT_EQ(one_gated.at(0, c), gated.at(t, c));
    ASSERT_EQ(one_sum[0], sums[static_cast<size_t>(t)]);
  }
}

INSTANTIATE_TEST_SUITE_P(AllIsas,
                         ElementwiseTest,
                         ::testing::ValuesIn(testing::available_isas()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace tenon
