#include "tensor/tensor.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <utility>

namespace tenon {
namespace {

constexpr size_t kAlignment = 64;                  // one cache line, one AVX-512 register
constexpr size_t kMapThreshold = size_t{4} << 20;  // two huge pages; below it malloc is better

void release_mapped(std::byte* data, size_t size) {
  ::munmap(data, size);
}
void release_heap(std::byte* data, size_t /*size*/) {
  std::free(data);
}

}  // namespace

Buffer Buffer::try_allocate(size_t bytes) {
  if (bytes == 0) return {};
  if (bytes >= kMapThreshold) {
    // Anonymous pages arrive zeroed and on first touch, so an unused part of the KV pool costs
    // nothing.
    void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return {};
    ::madvise(data, bytes, MADV_HUGEPAGE);
    return {static_cast<std::byte*>(data), bytes, release_mapped};
  }
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* data = std::aligned_alloc(kAlignment, rounded);
  if (data == nullptr) return {};
  std::memset(data, 0, rounded);
  return {static_cast<std::byte*>(data), bytes, release_heap};
}

Buffer::Buffer(size_t bytes) : Buffer(try_allocate(bytes)) {
  TENON_CHECK(bytes == 0 || data_ != nullptr);
}

Buffer::~Buffer() {
  if (data_ != nullptr) release_(data_, size_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      release_(other.release_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(release_, other.release_);
  return *this;
}

}  // namespace tenon
