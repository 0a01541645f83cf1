// Strided, non-owning views and owning buffers.
//
// Ownership:     TensorView owns nothing; Buffer frees its memory in the destructor.
// Thread safety: plain data; synchronise writers yourself.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "base/check.h"
#include "tensor/dtype.h"

namespace tenon {

enum class DeviceType : uint8_t { kCpu, kCuda };

// Sizes and strides are int64 elements: block_id * stride passes 2^31 in ordinary pools (case
// ATT-09).
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int32_t rank = 0;
  std::array<int64_t, 4> shape{};
  std::array<int64_t, 4> stride{};

  // A view of dense memory, innermost dimension last.
  static TensorView dense(void* data, DType dtype, std::initializer_list<int64_t> shape) {
    TensorView view;
    view.data = data;
    view.dtype = dtype;
    view.rank = static_cast<int32_t>(shape.size());
    TENON_CHECK_LE(view.rank, 4);
    int i = 0;
    for (const int64_t size : shape) view.shape[static_cast<size_t>(i++)] = size;
    int64_t step = 1;
    for (int d = view.rank - 1; d >= 0; --d) {
      view.stride[static_cast<size_t>(d)] = step;
      step *= view.shape[static_cast<size_t>(d)];
    }
    return view;
  }
  [[nodiscard]] int64_t rows() const { return shape[0]; }
  // Rows [begin, begin + count) of the outermost dimension. Plain dtypes only.
  [[nodiscard]] TensorView slice(int64_t begin, int64_t count) const {
    TensorView part = *this;
    part.data = static_cast<std::byte*>(data) + dtype_bytes(dtype, begin * stride[0]);
    part.shape[0] = count;
    return part;
  }
  // Columns [begin, begin + count) of a rank-2 view. Plain dtypes only.
  [[nodiscard]] TensorView columns(int64_t begin, int64_t count) const {
    TensorView part = *this;
    part.data = static_cast<std::byte*>(data) + dtype_bytes(dtype, begin * stride[1]);
    part.shape[1] = count;
    return part;
  }
  template <typename T>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(data);
  }
  // Start of row `row` of the outermost dimension.
  template <typename T>
  [[nodiscard]] T* row(int64_t index) const {
    return static_cast<T*>(data) + index * stride[0];
  }
};

// Owned memory: of the host (zero-initialised, aligned to 64 bytes; large buffers ask for huge
// pages), or of a device (made by Device::allocate).
class Buffer {
 public:
  Buffer() = default;
  // Ends the process only on a size no machine has; use try_allocate() for sizes input decides.
  explicit Buffer(size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // Memory that somebody else allocated; `release(data, size)` frees it.
  using Release = void (*)(std::byte* data, size_t size);
  Buffer(std::byte* data, size_t size, Release release)
      : data_(data), size_(size), release_(release) {}

  // An empty buffer (data() == nullptr) if the memory cannot be had.
  static Buffer try_allocate(size_t bytes);

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] size_t size() const { return size_; }
  template <typename T>
  [[nodiscard]] T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  Release release_ = nullptr;
};

}  // namespace tenon
