// A file mapped read-only into memory.
//
// Ownership:     the object owns the mapping; spans handed out live as long as it does.
// Thread safety: immutable after open(); safe to read from any thread.
// A file that another process truncates while it is mapped raises SIGBUS on access;
// `check_unchanged()` compares size and modification time and is called before weights are first
// used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"

namespace tenon {

class MappedFile {
 public:
  // Errors: kNotFound (no such file), kInvalidArgument (directory, FIFO), kDataLoss (empty file),
  // kInternal (mmap).
  static Result<std::shared_ptr<const MappedFile>> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }
  [[nodiscard]] size_t size() const { return size_; }

  [[nodiscard]] Status check_unchanged() const;
  // Tells the kernel that `part` of bytes() is no longer needed (its repacked copy is used
  // instead), so that it does not count as resident memory. Reading it again is still allowed, and
  // slow.
  void drop_pages(std::span<const std::byte> part) const;

 private:
  MappedFile() = default;
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  int64_t mtime_ns_ = 0;
};

}  // namespace tenon
