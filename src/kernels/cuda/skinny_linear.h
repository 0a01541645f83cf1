// y[T, N] = x[T, K] * W[N, K]^T for few tokens, where the time is that of reading W once.
//
// Each block takes 16 or 32 rows of W and its warps share the columns; the products run on the
// tensor cores (mma.sync m16n8k16, W on the 16-side, tokens on the 8-side), so arithmetic never
// shows. Since a sum over k may take k in any order, each lane takes 8 consecutive k of its row as
// its share of two instructions: W and x are read with plain 16-byte loads and nothing is
// rearranged. Sums in f32, in an order that depends on the shape of W alone.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "tensor/dtype.h"

namespace tenon {

struct SkinnyLinearArgs {
  const void* weight = nullptr;  // [n, k] dense, 16-byte aligned
  const void* x = nullptr;       // [tokens, k], rows x_stride elements apart
  void* y = nullptr;             // [tokens, n], rows y_stride elements apart
  int64_t n = 0, k = 0;
  int64_t x_stride = 0, y_stride = 0;
  int64_t tokens = 0;
  DType dtype = DType::kBF16;      // of weight and x: bf16 or f16
  DType out_dtype = DType::kBF16;  // dtype, or f32
};

inline constexpr int64_t kMaxSkinnyTokens = 32;
inline constexpr int64_t kSkinnyColumnMultiple = 64;

// Whether the kernels can serve the call at all.
[[nodiscard]] bool can_run_skinny_linear(const SkinnyLinearArgs& args);

// The kernel's shape: tiles of 16 rows a block takes, its warps, and the loads each warp keeps in
// flight (steps of 64 columns).
struct SkinnyVariant {
  int row_tiles = 1;
  int warps = 8;
  int depth = 4;
};
[[nodiscard]] SkinnyVariant choose_skinny_variant(const SkinnyLinearArgs& args);

// Requires: can_run_skinny_linear(args). Errors are the caller's to fetch (cudaGetLastError).
void launch_skinny_linear(const SkinnyLinearArgs& args, cudaStream_t stream);
// The same with a given variant, for measurements. False when there is no such kernel.
bool launch_skinny_linear(const SkinnyLinearArgs& args, SkinnyVariant variant, cudaStream_t stream);

}  // namespace tenon
