#include "tensor/tensor.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <utility>

namespace tenon {
namespace {

constexpr size_t kAlignment = 64;                  // one cache line, one AVX-512 register
constexpr size_t kMapThreshold = size_t{4} << 20;  // two huge pages; below it malloc is better

}  // namespace

Buffer Buffer::try_allocate(size_t bytes) {
  Buffer buffer;
  if (bytes == 0) return buffer;
  if (bytes >= kMapThreshold) {
    // Anonymous pages arrive zeroed and on first touch, so an unused part of the KV pool costs
    // nothing.
    void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return buffer;
    ::madvise(data, bytes, MADV_HUGEPAGE);
    buffer.data_ = static_cast<std::byte*>(data);
    buffer.mapped_ = true;
  } else {
    const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    void* data = std::aligned_alloc(kAlignment, rounded);
    if (data == nullptr) return buffer;
    std::memset(data, 0, rounded);
    buffer.data_ = static_cast<std::byte*>(data);
  }
  buffer.size_ = bytes;
  return buffer;
}

Buffer::Buffer(size_t bytes) : Buffer(try_allocate(bytes)) {
  TENON_CHECK(bytes == 0 || data_ != nullptr);
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  if (mapped_) {
    ::munmap(data_, size_);
  } else {
    std::free(data_);
  }
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      mapped_(other.mapped_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

}  // namespace tenon
