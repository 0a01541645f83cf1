// The input as a file, since the readers map files. It lives in memory (memfd), so a run touches no
// disk.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

namespace tenon::fuzz {

class InputFile {
 public:
  InputFile(const uint8_t* data, size_t size) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    if (fd_ < 0) std::abort();
    while (size > 0) {
      const ssize_t written = ::write(fd_, data, size);
      if (written <= 0) std::abort();
      data += written;
      size -= static_cast<size_t>(written);
    }
  }
  ~InputFile() { ::close(fd_); }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  [[nodiscard]] std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

// Reads every byte, so that a span beyond the mapping is noticed.
template <typename Span>
unsigned touch(const Span& bytes) {
  unsigned sum = 0;
  for (const auto byte : bytes) sum += static_cast<unsigned>(byte);
  return sum;
}

}  // namespace tenon::fuzz
