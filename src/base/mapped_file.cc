#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace tenon {
namespace {

int64_t mtime_ns(const struct stat& info) {
  return int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
}

}  // namespace

Result<std::shared_ptr<const MappedFile>> MappedFile::open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO without a writer must fail the type test below, not block for ever.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return make_status(errno == ENOENT ? StatusCode::kNotFound : StatusCode::kInvalidArgument,
                       "{}: cannot open: {}", path, std::strerror(errno));
  }
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    return invalid_argument("{}: not a regular file", path);
  }
  if (info.st_size == 0) {
    ::close(fd);
    return data_loss("{}: the file is empty", path);
  }
  void* data = ::mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
  const int map_errno = errno;
  ::close(fd);
  if (data == MAP_FAILED) {
    return internal_error("{}: cannot map {} bytes: {}", path, info.st_size,
                          std::strerror(map_errno));
  }
  auto file = std::shared_ptr<MappedFile>(new MappedFile());
  file->path_ = path;
  file->data_ = static_cast<const std::byte*>(data);
  file->size_ = static_cast<size_t>(info.st_size);
  file->mtime_ns_ = mtime_ns(info);
  return std::shared_ptr<const MappedFile>(std::move(file));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

Status MappedFile::check_unchanged() const {
  struct stat info {};
  if (::stat(path_.c_str(), &info) != 0) return ok_status();  // deleted files stay mapped and whole
  if (static_cast<size_t>(info.st_size) < size_) {
    return data_loss("{}: the file shrank from {} to {} bytes while it was in use", path_, size_,
                     info.st_size);
  }
  if (mtime_ns(info) != mtime_ns_) {
    return data_loss("{}: the file was changed while it was in use", path_);
  }
  return ok_status();
}

void MappedFile::drop_pages(std::span<const std::byte> part) const {
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  auto begin = reinterpret_cast<uintptr_t>(part.data());
  const uintptr_t end = (begin + part.size()) / page * page;  // whole pages inside `part` only
  begin = (begin + page - 1) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace tenon
