// What the control groups of this process (a container's limits) leave it. Version 2 and 1.
// Thread safe: plain functions that read files of the kernel.
#pragma once

#include <cstdint>

namespace tenon {

// Bytes that may still be taken; the largest int64_t without a limit. Page cache counts as free:
// the kernel drops it before it refuses memory.
[[nodiscard]] int64_t cgroup_memory_left();
// Processors' worth of time, rounded up; 0 without a quota.
[[nodiscard]] int cgroup_cpus();

}  // namespace tenon
