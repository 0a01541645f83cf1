// Ceilings of this machine at this moment, to be printed beside every measured rate: a number
// without them says little on a shared machine.
//
// Each probe runs for about `seconds` on all threads of the pool. Thread safety: as the pool.
#pragma once

#include "base/thread_pool.h"

namespace tenon::cpu {

// Bytes a second read from memory (a buffer far larger than the caches), all threads together.
[[nodiscard]] double read_bandwidth(ThreadPool& pool, double seconds = 0.1);
// f32 operations a second of independent fused multiply-adds (2 each) in registers.
[[nodiscard]] double fma_rate(ThreadPool& pool, double seconds = 0.05);
// Integer operations a second of the 4-bit dot products of the best kernels, weights in registers.
[[nodiscard]] double dot_rate(ThreadPool& pool, double seconds = 0.05);

}  // namespace tenon::cpu
