// y[T, N] = x[T, K] * W[N, K]^T for a handful of tokens and large W: one block an SM streams its rows of
// W through a ring in shared memory, filled by bulk copies.
//
// What the ring buys over skinny_linear.h is the time between layers. A block takes less than half of
// an SM's shared memory, so the next layer's blocks start while this layer's (and the small kernels
// between them) still run, and fill their ring: memory stays busy across the dependency.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/skinny_linear.h"

namespace tenon {

// x has to fit into shared memory beside a ring, and each row of W has to be worth a few bulk copies.
[[nodiscard]] bool can_run_streamed_linear(const SkinnyLinearArgs& args);

// Requires: can_run_streamed_linear(args). Errors are the caller's to fetch (cudaGetLastError).
void launch_streamed_linear(const SkinnyLinearArgs& args, cudaStream_t stream);

}  // namespace tenon
