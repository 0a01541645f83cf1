// Memory of this machine. Thread safe: reads files of the kernel.
#pragma once

#include <cstdint>

namespace tenon {

// Memory this process may still take: the kernel's estimate, less if a cgroup limits it.
[[nodiscard]] int64_t available_memory_bytes();

}  // namespace tenon
