// Matrices in GPU memory for kernel tests: values go there rounded to the type of the tensor, and
// come back as f32; memory that nothing was written to holds NaN.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tensor/cuda/cuda_device.h"
#include "tensor/tensor.h"

namespace tenon::testing {

inline float rounded(DType dtype, float value) {
  switch (dtype) {
    case DType::kBF16: return bf16_to_f32(f32_to_bf16(value));
    case DType::kF16: return f16_to_f32(f32_to_f16(value));
    default: return value;
  }
}

// Half the distance between 1 and the next value: the largest relative error of one rounding.
inline float unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::kBF16: return 0x1p-8F;
    case DType::kF16: return 0x1p-11F;
    default: return 0x1p-24F;
  }
}

inline std::vector<float> normal_values(int64_t count, uint32_t seed, float deviation = 1.0F) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, deviation);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

inline std::vector<std::byte> encoded(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> bytes(
      static_cast<size_t>(dtype_bytes(dtype, static_cast<int64_t>(values.size()))));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) {
      std::memcpy(bytes.data() + 4 * i, &values[i], 4);
    } else {
      const uint16_t bits = dtype == DType::kBF16 ? f32_to_bf16(values[i]) : f32_to_f16(values[i]);
      std::memcpy(bytes.data() + 2 * i, &bits, 2);
    }
  }
  return bytes;
}

inline std::vector<float> decoded(DType dtype, const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / static_cast<size_t>(dtype_bytes(dtype, 1)));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) {
      std::memcpy(&values[i], bytes.data() + 4 * i, 4);
    } else {
      uint16_t bits;
      std::memcpy(&bits, bytes.data() + 2 * i, 2);
      values[i] = dtype == DType::kBF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
    }
  }
  return values;
}

// rows x cols, rows `stride` elements apart (0: dense); all NaN until set.
class GpuMatrix {
 public:
  GpuMatrix(CudaDevice* device, DType dtype, int64_t rows, int64_t cols, int64_t stride = 0)
      : device_(device),
        dtype_(dtype),
        rows_(rows),
        cols_(cols),
        stride_(stride == 0 ? cols : stride) {
    auto made = device->allocate(static_cast<size_t>(dtype_bytes(dtype, rows * stride_)));
    if (!made.ok()) {
      ADD_FAILURE() << made.status().message();
      return;
    }
    memory_ = std::move(made).value();
    const std::vector<std::byte> poison(memory_.size(), std::byte{0xFF});  // NaN in every type
    device->write(memory_.data(), poison.data(), poison.size());
  }
  void set(const std::vector<float>& values) {
    ASSERT_EQ(static_cast<int64_t>(values.size()), rows_ * cols_);
    std::vector<float> all(static_cast<size_t>(rows_ * stride_),
                           std::numeric_limits<float>::quiet_NaN());
    for (int64_t r = 0; r < rows_; ++r) {
      std::copy_n(values.begin() + r * cols_, cols_, all.begin() + r * stride_);
    }
    const std::vector<std::byte> bytes = encoded(dtype_, all);
    device_->write(memory_.data(), bytes.data(), bytes.size());
  }
  // The cols of every row; fails if something wrote between the rows.
  [[nodiscard]] std::vector<float> get() const {
    std::vector<std::byte> bytes(memory_.size());
    device_->read(bytes.data(), memory_.data(), bytes.size());
    EXPECT_TRUE(device_->status().ok()) << device_->status().message();
    const std::vector<float> all = decoded(dtype_, bytes);
    std::vector<float> values(static_cast<size_t>(rows_ * cols_));
    for (int64_t r = 0; r < rows_; ++r) {
      std::copy_n(all.begin() + r * stride_, cols_, values.begin() + r * cols_);
      for (int64_t c = cols_; c < stride_; ++c) {
        EXPECT_TRUE(std::isnan(all[static_cast<size_t>(r * stride_ + c)]))
            << "row " << r << " was written at column " << c;
      }
    }
    return values;
  }
  [[nodiscard]] TensorView view() const {
    TensorView view = TensorView::dense(memory_.data(), dtype_, {rows_, cols_});
    view.stride[0] = stride_;
    return view;
  }

 private:
  CudaDevice* device_;
  DType dtype_;
  int64_t rows_, cols_, stride_;
  Buffer memory_;
};

// Plain values in GPU memory.
template <typename T>
class GpuArray {
 public:
  GpuArray(CudaDevice* device, const std::vector<T>& values) : size_(values.size()) {
    auto made = to_device<T>(*device, values);
    if (!made.ok()) {
      ADD_FAILURE() << made.status().message();
      return;
    }
    memory_ = std::move(made).value();
  }
  [[nodiscard]] std::span<const T> span() const { return {memory_.as<const T>(), size_}; }

 private:
  size_t size_;
  Buffer memory_;
};

// |got - want| <= bound(i) for all, with the worst one reported.
template <typename Bound>
void expect_within(const std::vector<float>& got,
                   const std::vector<float>& want,
                   const std::string& what,
                   Bound bound) {
  ASSERT_EQ(got.size(), want.size()) << what;
  size_t bad = 0;
  size_t worst = 0;
  double worst_ratio = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(static_cast<double>(got[i]) - want[i]);
    const double ratio = error / (static_cast<double>(bound(i)) + 1e-30);
    if (ratio <= 1.0) continue;  // NaN is not <= 1
    ++bad;
    if (!(ratio <= worst_ratio)) {
      worst_ratio = ratio;
      worst = i;
    }
  }
  EXPECT_EQ(bad, 0U) << what << ": of " << got.size() << " values; worst at " << worst << ": "
                     << got[worst] << " instead of " << want[worst] << ", bound " << bound(worst);
}

}  // namespace tenon::testing
