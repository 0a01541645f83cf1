#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/block_decode.h"
#include "kernels/dequantise.h"
#include "tests/unit/kernels/kernel_test_util.h"

namespace tenon {
namespace {

using testing::CpuOpsFixture;
using testing::Matrix;
using testing::StoredMatrix;

struct Case {
  std::string isa;
  DType dtype;
};

class LinearTest : public ::testing::TestWithParam<Case> {
 protected:
  // Whole blocks: the K formats need 256 columns.
  static std::vector<int64_t> columns() {
    const int64_t block = dtype_traits(GetParam().dtype).block_elements;
    if (block == 256) return {256, 768};
    if (block == 32) return {32, 96, 576};
    return {1, 7, 64, 576, 1031};
  }
};

class QuantisedLinearTest : public LinearTest {};

Matrix multiply(Ops& ops, const LinearWeight& weight, Matrix& x) {
  Matrix y(x.rows, weight.rows(), weight.rows() + 5);
  ops.linear(weight, x.view(), y.view());
  return y;
}

std::unique_ptr<LinearWeight> make_weight(Ops& ops,
                                          const StoredMatrix& matrix,
                                          bool exact = false) {
  const WeightSource source = matrix.source();
  auto weight = ops.make_linear({&source, 1}, exact);
  EXPECT_TRUE(weight.ok()) << weight.status().message();
  return std::move(weight).value();
}

// Sizes of a stored row's weights before scale * quant and minimum cancel.
std::vector<double> magnitudes(const WeightSource& source,
                               int64_t row,
                               const std::vector<float>& values) {
  std::vector<double> result(values.size());
  const void* stored =
      static_cast<const uint8_t*>(source.data) + row * dtype_bytes(source.dtype, source.cols);
  for (size_t k = 0; k < values.size(); ++k) {
    result[k] = std::abs(static_cast<double>(values[k]));
    if (!is_quantised(source.dtype)) continue;
    QuantGroup group;
    decode_group(source.dtype, stored, static_cast<int64_t>(k / 32), &group);
    result[k] = std::abs(static_cast<double>(group.d[k % 32 / 16])) *
                    std::max<int>(group.q[k % 32], quant_zero(source.dtype)) +
                std::abs(static_cast<double>(group.m));
  }
  return result;
}

enum class Rounding {
  kNone,                  // all is f32
  kActivations,           // to steps of (largest of the group) / 16256
  kActivationsAndScales,  // ... and scales and minima to f16: the K formats compute theirs
};

Rounding fast_rounding(DType dtype) {
  if (!is_quantised(dtype)) return Rounding::kNone;
  return dtype_traits(dtype).block_elements == 32 ? Rounding::kActivations
                                                  : Rounding::kActivationsAndScales;
}

// Bound on |fast - oracle| of one output. Sums are f32.
double tolerance(const float* x,
                 const std::vector<float>& w,
                 const std::vector<double>& size,
                 Rounding rounding) {
  double variance = 0.0;
  double magnitude = 0.0;
  for (size_t begin = 0; begin < w.size(); begin += 32) {
    const size_t end = std::min(w.size(), begin + 32);
    double largest = 0.0;
    for (size_t k = begin; k < end; ++k)
      largest = std::max(largest, std::abs(static_cast<double>(x[k])));
    for (size_t k = begin; k < end; ++k) {
      const double error = std::abs(static_cast<double>(w[k])) * largest / 32512.0;  // half a step
      variance += error * error / 3.0;
      magnitude += size[k] * std::abs(static_cast<double>(x[k]));
    }
  }
  const double summation = magnitude * std::numeric_limits<float>::epsilon() * 16 + 1e-30;
  double result = summation;
  if (rounding != Rounding::kNone) result += 6.0 * std::sqrt(variance);
  if (rounding == Rounding::kActivationsAndScales) result += std::ldexp(magnitude, -11);
  return result;
}

void expect_close(const Matrix& y, const Matrix& x, const StoredMatrix& matrix, Rounding rounding) {
  const WeightSource source = matrix.source();
  std::vector<float> w(static_cast<size_t>(source.cols));
  for (int64_t n = 0; n < source.rows; ++n) {
    const int64_t row_bytes = dtype_bytes(source.dtype, source.cols);
    dequantise(source.dtype, static_cast<const uint8_t*>(source.data) + n * row_bytes, source.cols,
               w.data());
    const std::vector<double> size = magnitudes(source, n, w);
    for (int64_t t = 0; t < x.rows; ++t) {
      const float* row = x.values.data() + t * x.stride;
      double want = 0.0;
      for (int64_t k = 0; k < source.cols; ++k)
        want += static_cast<double>(row[k]) * w[static_cast<size_t>(k)];
      ASSERT_NEAR(y.at(t, n), want, tolerance(row, w, size, rounding))
          << "token " << t << " row " << n;
    }
  }
}

TEST_P(LinearTest, AgreesWithTheOracle) {
  CpuOpsFixture cpu(GetParam().isa);
  for (const int64_t rows : {1, 16, 37, 67}) {
    for (const int64_t cols : columns()) {
      SCOPED_TRACE("rows " + std::to_string(rows) + " cols " + std::to_string(cols));
      const StoredMatrix matrix(GetParam().dtype, rows, cols, 7);
      const auto weight = make_weight(*cpu.ops, matrix);
      EXPECT_EQ(weight->rows(), rows);
      EXPECT_EQ(weight->cols(), cols);
      for (const int64_t tokens : {1, 3, 31}) {
        Matrix x(tokens, cols, cols + 3);
        x.randomise(static_cast<uint32_t>(tokens));
        const Matrix y = multiply(*cpu.ops, *weight, x);
        y.expect_guards_intact();
        expect_close(y, x, matrix, fast_rounding(GetParam().dtype));
      }
    }
  }
}

// The promise behind "the same answer alone and in a batch".
TEST_P(LinearTest, ARowDoesNotDependOnItsBatch) {
  CpuOpsFixture cpu(GetParam().isa);
  CpuOpsFixture single(GetParam().isa, 1);
  const int64_t cols = columns().back();
  const StoredMatrix matrix(GetParam().dtype, 45, cols, 11);
  const auto weight = make_weight(*cpu.ops, matrix);
  Matrix all(40, cols);
  all.randomise(3);
  std::vector<Matrix> alone;
  for (int64_t t = 0; t < all.rows; ++t) {
    Matrix row(1, cols);
    std::memcpy(row.values.data(), all.values.data() + t * cols,
                static_cast<size_t>(cols) * sizeof(float));
    alone.push_back(multiply(*cpu.ops, *weight, row));
  }
  for (int64_t tokens = 2; tokens <= all.rows; ++tokens) {
    for (Ops* ops : {cpu.ops.get(), single.ops.get()}) {
      // The last `tokens` rows: each row is met at many positions.
      Matrix x(tokens, cols);
      const int64_t first = all.rows - tokens;
      std::memcpy(x.values.data(), all.values.data() + first * cols,
                  x.values.size() * sizeof(float));
      const Matrix y = multiply(*ops, *weight, x);
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t n = 0; n < y.cols; ++n) {
          ASSERT_EQ(y.at(t, n), alone[static_cast<size_t>(first + t)].at(0, n))
              << tokens << " tokens, token " << t << " row " << n;
        }
      }
    }
  }
}

// Enough tokens for several blocks of activations.
TEST_P(LinearTest, LongPrefillEqualsItsRows) {
  CpuOpsFixture cpu(GetParam().isa);
  const int64_t cols = 1536;
  const StoredMatrix matrix(GetParam().dtype, 33, cols, 13);
  const auto weight = make_weight(*cpu.ops, matrix);
  Matrix x(257, cols);
  x.randomise(5);
  const Matrix y = multiply(*cpu.ops, *weight, x);
  for (const int64_t t : {0, 1, 23, 24, 100, 191, 192, 255, 256}) {
    Matrix row(1, cols);
    std::memcpy(row.values.data(), x.values.data() + t * cols,
                static_cast<size_t>(cols) * sizeof(float));
    const Matrix want = multiply(*cpu.ops, *weight, row);
    for (int64_t n = 0; n < y.cols; ++n)
      ASSERT_EQ(y.at(t, n), want.at(0, n)) << "token " << t << " row " << n;
  }
}

TEST_P(LinearTest, ExactModeHasOnlyRoundingErrors) {
  CpuOpsFixture cpu(GetParam().isa);
  const int64_t cols = columns().back();
  const StoredMatrix matrix(GetParam().dtype, 50, cols, 17);
  const auto weight = make_weight(*cpu.ops, matrix, /*exact=*/true);
  Matrix x(5, cols);
  x.randomise(9);
  expect_close(multiply(*cpu.ops, *weight, x), x, matrix, Rounding::kNone);
}

// Extreme quants: the integer accumulators of every instruction set must hold them.
TEST_P(QuantisedLinearTest, ExtremeQuantsDoNotSaturate) {
  CpuOpsFixture cpu(GetParam().isa);
  const DTypeTraits& traits = dtype_traits(GetParam().dtype);
  const int64_t cols = 256;
  for (const uint8_t fill : {uint8_t{0x00}, uint8_t{0x7F}, uint8_t{0x80}, uint8_t{0xFF}}) {
    StoredMatrix matrix(GetParam().dtype, 16, cols, 19);
    // All bytes but the scales: those are the first 2 or 4 bytes of a block, or the last 2 of Q6_K.
    const bool at_end = GetParam().dtype == DType::kQ6_K;
    const int64_t keep = at_end || traits.block_bytes % 4 == 2 ? 2 : 4;
    for (size_t i = 0; i < matrix.bytes().size(); ++i) {
      const int64_t inner = static_cast<int64_t>(i) % traits.block_bytes;
      const bool scale = at_end ? inner >= traits.block_bytes - 2 : inner < keep;
      if (!scale) matrix.bytes()[i] = fill;
    }
    const auto weight = make_weight(*cpu.ops, matrix);
    // Quantised to steps of 1 / 128. The last two rows have the largest low planes (127) beside
    // high planes of 126 and -127.
    Matrix x(5, cols);
    for (int64_t k = 0; k < cols; ++k) {
      x.at(0, k) = 127.0F;
      x.at(1, k) = -127.0F;
      x.at(2, k) = k % 2 == 0 ? 127.0F : -127.0F;
      x.at(3, k) = k % 32 == 0 ? 127.0F : 16255.0F / 128.0F;
      x.at(4, k) = k % 32 == 0 ? 127.0F : -16129.0F / 128.0F;
    }
    expect_close(multiply(*cpu.ops, *weight, x), x, matrix, fast_rounding(GetParam().dtype));
  }
}

// A NaN or infinity in a token's activations reaches all its outputs that depend on it as NaN
// (infinity may stay infinity for float weights), and no other token.
TEST_P(LinearTest, NanStaysInItsRow) {
  CpuOpsFixture cpu(GetParam().isa);
  const int64_t cols = columns().back();
  const StoredMatrix matrix(GetParam().dtype, 20, cols, 23);
  const auto weight = make_weight(*cpu.ops, matrix);
  for (const float poison :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Matrix x(9, cols);
    x.randomise(2);
    x.at(4, cols / 2) = poison;
    const Matrix y = multiply(*cpu.ops, *weight, x);
    for (int64_t t = 0; t < x.rows; ++t) {
      for (int64_t n = 0; n < y.cols; ++n) {
        ASSERT_EQ(std::isfinite(y.at(t, n)), t != 4) << "token " << t << " row " << n;
      }
    }
  }
}

TEST_P(LinearTest, TinyAndZeroActivationsGiveFiniteResults) {
  CpuOpsFixture cpu(GetParam().isa);
  const int64_t cols = columns().back();
  const StoredMatrix matrix(GetParam().dtype, 16, cols, 29);
  const auto weight = make_weight(*cpu.ops, matrix);
  for (const float value : {0.0F, 1e-45F, 1e-38F, 1e-30F, 1e30F}) {
    Matrix x(1, cols);
    for (int64_t k = 0; k < cols; ++k) x.at(0, k) = value;
    const Matrix y = multiply(*cpu.ops, *weight, x);
    for (int64_t n = 0; n < y.cols; ++n) ASSERT_TRUE(std::isfinite(y.at(0, n))) << value;
  }
}

TEST_P(LinearTest, MemoryStaysCloseToTheFile) {
  CpuOpsFixture cpu(GetParam().isa);
  const StoredMatrix matrix(GetParam().dtype, 576, 1536, 31);
  const auto weight = make_weight(*cpu.ops, matrix);
  EXPECT_LE(static_cast<double>(weight->bytes()),
            1.2 * static_cast<double>(matrix.source().rows) *
                static_cast<double>(dtype_bytes(GetParam().dtype, 1536)));
}

std::vector<Case> all_cases(bool quantised_only) {
  std::vector<Case> cases;
  for (const std::string& isa : testing::available_isas()) {
    for (const DType dtype : testing::kWeightTypes) {
      if (!quantised_only || is_quantised(dtype)) cases.push_back({isa, dtype});
    }
  }
  return cases;
}
std::string case_name(const ::testing::TestParamInfo<Case>& test) {
  return test.param.isa + "_" + std::string(dtype_traits(test.param.dtype).name);
}
INSTANTIATE_TEST_SUITE_P(AllTypes, LinearTest, ::testing::ValuesIn(all_cases(false)), case_name);
INSTANTIATE_TEST_SUITE_P(AllTypes,
                         QuantisedLinearTest,
                         ::testing::ValuesIn(all_cases(true)),
                         case_name);

class LinearIsaTest : public ::testing::TestWithParam<std::string> {};

TEST_P(LinearIsaTest, StacksPartsOfDifferentTypes) {
  CpuOpsFixture cpu(GetParam());
  const StoredMatrix q(DType::kQ4_1, 40, 256, 1);
  const StoredMatrix k(DType::kQ6_K, 13, 256, 2);
  const StoredMatrix v(DType::kF16, 21, 256, 3);
  const WeightSource sources[] = {q.source(), k.source(), v.source()};
  auto stacked = cpu.ops->make_linear(sources, false);
  ASSERT_TRUE(stacked.ok());
  EXPECT_EQ((*stacked)->rows(), 74);
  for (const int64_t tokens : {1, 4, 30}) {
    Matrix x(tokens, 256);
    x.randomise(4);
    const Matrix y = multiply(*cpu.ops, **stacked, x);
    y.expect_guards_intact();
    int64_t first = 0;
    for (const StoredMatrix* part : {&q, &k, &v}) {
      const auto weight = make_weight(*cpu.ops, *part);
      const Matrix want = multiply(*cpu.ops, *weight, x);
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t n = 0; n < want.cols; ++n) ASSERT_EQ(y.at(t, first + n), want.at(t, n));
      }
      first += want.cols;
    }
  }
}

TEST_P(LinearIsaTest, SameResultForAnyNumberOfThreads) {
  const StoredMatrix matrix(DType::kQ4_1, 200, 576, 1);
  Matrix x(70, 576);
  x.randomise(6);
  std::vector<float> first;
  for (const int threads : {1, 2, 5}) {
    CpuOpsFixture cpu(GetParam(), threads);
    const auto weight = make_weight(*cpu.ops, matrix);
    const Matrix y = multiply(*cpu.ops, *weight, x);
    if (first.empty()) first = y.values;
    EXPECT_EQ(y.values, first) << threads << " threads";
  }
}

TEST_P(LinearIsaTest, NoTokensIsNoWork) {
  CpuOpsFixture cpu(GetParam());
  const StoredMatrix matrix(DType::kQ8_0, 16, 64, 1);
  const auto weight = make_weight(*cpu.ops, matrix);
  Matrix x(0, 64);
  Matrix y(0, 16);
  cpu.ops->linear(*weight, x.view(), y.view());
}

INSTANTIATE_TEST_SUITE_P(AllIsas,
                         LinearIsaTest,
                         ::testing::ValuesIn(testing::available_isas()),
                         [](const auto& test) { return test.param; });

TEST(MakeLinear, NamesWhatIsWrong) {
  CpuOpsFixture cpu("auto");
  const StoredMatrix a(DType::kQ4_0, 4, 64, 1);
  const StoredMatrix b(DType::kQ4_0, 4, 96, 1);
  const auto reference = make_reference_ops();
  for (Ops* ops : {cpu.ops.get(), reference.get()}) {
    const WeightSource uneven[] = {a.source(), b.source()};
    EXPECT_EQ(ops->make_linear(uneven, false).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(ops->make_linear({}, false).status().code(), StatusCode::kInvalidArgument);
    WeightSource partial = a.source();
    partial.cols = 48;
    const auto refused = ops->make_linear({&partial, 1}, false);
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(refused.status().message().find("48"), std::string::npos);
    WeightSource integers = a.source();
    integers.dtype = DType::kI32;
    EXPECT_EQ(ops->make_linear({&integers, 1}, false).status().code(), StatusCode::kUnsupported);
    WeightSource empty = a.source();
    empty.data = nullptr;
    EXPECT_EQ(ops->make_linear({&empty, 1}, false).status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(MakeCpuOps, RefusesUnknownAndMissingInstructionSets) {
  ThreadPool pool(1);
  EXPECT_EQ(make_cpu_ops(&pool, "sse9").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(make_cpu_ops(&pool, "").status().code(), StatusCode::kInvalidArgument);
  for (const char* isa : {"avx2", "avx512"}) {
    const auto ops = make_cpu_ops(&pool, isa);
    if (ops.ok()) {
      EXPECT_EQ((*ops)->isa(), isa);
    } else {
      EXPECT_EQ(ops.status().code(), StatusCode::kUnsupported);
      EXPECT_NE(ops.status().message().find("portable"), std::string::npos);
    }
  }
  EXPECT_EQ((*make_cpu_ops(&pool, "auto"))->isa(), testing::available_isas().back());
}

}  // namespace
}  // namespace tenon
