// Random weights of every stored type and matrices for kernel tests.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/ops.h"

namespace tenon::testing {

inline constexpr DType kWeightTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ4_0,
                                         DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0,
                                         DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

// A stored matrix: arbitrary quants, scales of about 0.01.
class StoredMatrix {
 public:
  StoredMatrix(DType dtype, int64_t rows, int64_t cols, uint32_t seed)
      : dtype_(dtype), rows_(rows), cols_(cols) {
    std::mt19937 random(seed);
    const DTypeTraits& traits = dtype_traits(dtype);
    bytes_.resize(static_cast<size_t>(dtype_bytes(dtype, cols) * rows));
    if (dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16) {
      std::normal_distribution<float> normal(0.0F, 0.05F);
      for (int64_t i = 0; i < rows * cols; ++i) put_float(i, normal(random));
      return;
    }
    for (uint8_t& byte : bytes_) byte = static_cast<uint8_t>(random());
    std::uniform_real_distribution<float> scale(0.002F, 0.02F);
    for (size_t block = 0; block < bytes_.size();
         block += static_cast<size_t>(traits.block_bytes)) {
      const size_t at = block + (dtype == DType::kQ6_K ? 208 : 0);
      const float super =
          dtype == DType::kQ4_K || dtype == DType::kQ5_K || dtype == DType::kQ6_K ? 0.03F : 1.0F;
      put_half(at, f32_to_f16(scale(random) * super));
      const bool has_minimum = dtype == DType::kQ4_1 || dtype == DType::kQ5_1 ||
                               dtype == DType::kQ4_K || dtype == DType::kQ5_K;
      if (has_minimum)
        put_half(at + 2, f32_to_f16((super == 1.0F ? -8.0F : 8.0F) * scale(random) * super));
    }
  }

  [[nodiscard]] WeightSource source() const {
    return {std::string(dtype_traits(dtype_).name), dtype_, bytes_.data(), rows_, cols_, nullptr};
  }
  std::vector<uint8_t>& bytes() { return bytes_; }

 private:
  void put_half(size_t at, uint16_t bits) {
    bytes_[at] = static_cast<uint8_t>(bits);
    bytes_[at + 1] = static_cast<uint8_t>(bits >> 8);
  }
  void put_float(int64_t index, float value) {
    const auto i = static_cast<size_t>(index);
    if (dtype_ == DType::kF32) {
      std::memcpy(bytes_.data() + i * sizeof(float), &value, sizeof(value));
    } else {
      put_half(2 * i, dtype_ == DType::kF16 ? f32_to_f16(value) : f32_to_bf16(value));
    }
  }

  DType dtype_;
  int64_t rows_, cols_;
  std::vector<uint8_t> bytes_;
};

// Rows `stride` floats apart, so that writes outside the columns can be seen.
struct Matrix {
  Matrix(int64_t rows_in, int64_t cols_in, int64_t stride_in = 0)
      : rows(rows_in),
        cols(cols_in),
        stride(stride_in == 0 ? cols_in : stride_in),
        values(static_cast<size_t>(rows * stride), kGuard) {}
  static constexpr float kGuard = -777.0F;

  void randomise(uint32_t seed, float deviation = 1.0F) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0F, deviation);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) at(r, c) = normal(random);
    }
  }
  float& at(int64_t r, int64_t c) { return values[static_cast<size_t>(r * stride + c)]; }
  [[nodiscard]] float at(int64_t r, int64_t c) const {
    return values[static_cast<size_t>(r * stride + c)];
  }
  TensorView view() {
    TensorView result = TensorView::dense(values.data(), DType::kF32, {rows, cols});
    result.stride[0] = stride;
    return result;
  }
  void expect_guards_intact() const {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = cols; c < stride; ++c)
        ASSERT_EQ(at(r, c), kGuard) << "row " << r << " column " << c;
    }
  }

  int64_t rows, cols, stride;
  std::vector<float> values;
};

// The instruction sets this CPU can run.
inline std::vector<std::string> available_isas() {
  ThreadPool pool(1);
  std::vector<std::string> names;
  for (const char* name : {"portable", "avx2", "avx512"}) {
    if (make_cpu_ops(&pool, name).ok()) names.emplace_back(name);
  }
  return names;
}

// A CPU Ops of one instruction set with its own pool.
struct CpuOpsFixture {
  explicit CpuOpsFixture(const std::string& isa, int threads = 2) : pool(threads) {
    auto made = make_cpu_ops(&pool, isa);
    if (!made.ok()) {
      ADD_FAILURE() << made.status().message();
      return;
    }
    ops = std::move(made).value();
  }
  ThreadPool pool;
  std::unique_ptr<Ops> ops;
};

}  // namespace tenon::testing
