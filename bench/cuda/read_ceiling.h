// The rate at which one GPU can read its memory, for ratios within the same run.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace tenon::bench {

// Reads bytes of `data` (a multiple of 16) once; `sink` is written only if their sum is one value.
void launch_read(const void* data, size_t bytes, unsigned* sink, cudaStream_t stream);

}  // namespace tenon::bench
