// Kernels of the probe, also for the ceilings of the micro benchmarks.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace tenon {

inline constexpr size_t kReadChunk = 65536;  // bytes

// Reads `chunks` chunks once; `sink` is practically never written.
void launch_read(const void* data, size_t chunks, unsigned* sink, int blocks, cudaStream_t stream);

// Numbers around 0, of deviation about 1, in bf16.
void launch_fill_bf16(void* values, size_t count, unsigned seed, cudaStream_t stream);

}  // namespace tenon
