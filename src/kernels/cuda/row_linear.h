// y[T, N] = x[T, K] * W[N, K]^T for up to eight tokens, where the time is that of reading W once:
// each warp reads whole rows of W, 512 bytes in a row at a time, many loads ahead, and needs nobody
// else.
//
// The sums run on the tensor cores although a lane holds 8 columns of the same row as its
// neighbours: in mma.m16n8k16 the four lanes of row g hold what is taken for row g of A and column
// g of B. Here row g is segment g (32 columns) of a row of W, column g the same segment of x, so
// that the diagonal of the product is the sums over the segments; the rest of it is not looked at.
// A and B are loaded as they lie in memory and nothing is unpacked.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/skinny_linear.h"

namespace tenon {

inline constexpr int64_t kMaxRowLinearTokens = 8;

[[nodiscard]] bool can_run_row_linear(const SkinnyLinearArgs& args);

// Pairs of rows a warp takes, and how many steps of 256 columns it reads ahead.
struct RowLinearVariant {
  int pairs = 2;
  int depth = 2;
  int warps = 4;
};

// Requires: can_run_row_linear(args). Errors are the caller's to fetch (cudaGetLastError).
void launch_row_linear(const SkinnyLinearArgs& args, cudaStream_t stream);
// The same with a given variant, for measurements. False when there is no such kernel.
bool launch_row_linear(const SkinnyLinearArgs& args, RowLinearVariant variant, cudaStream_t stream);

}  // namespace tenon
