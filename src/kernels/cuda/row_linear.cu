#include "kernels/cuda/row_linear.h"

#include <algorithm>

#include "kernels/cuda/chained_launch.cuh"
#include "kernels/cuda/half_vector.cuh"
#include "kernels/cuda/mma_half.cuh"

namespace tenon {
namespace {

constexpr int kStepUnits = 32;  // 16-byte units of a row that a warp reads at a time

struct KernelArgs {
  const uint4* weight;
  const uint4* x;
  void* y;
  int64_t n;
  int64_t x_stride;  // in 16-byte units
  int64_t y_stride;
  int k_units;  // k in 16-byte units
  int tokens;
};

__device__ __forceinline__ uint4 load_weight(const uint4* from) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}

template <typename T, typename Out, int kTokens, int kPairs, int kDepth, int kWarps>
__global__ void __launch_bounds__(kWarps * 32) row_linear_kernel(const KernelArgs args) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t first_row = (static_cast<int64_t>(blockIdx.x) * kWarps + warp) * (2 * kPairs);
  const int steps = (args.k_units + kStepUnits - 1) / kStepUnits;

  // A row past the end reads the last one; its result is not stored.
  const uint4* rows[kPairs][2];
#pragma unroll
  for (int p = 0; p < kPairs; ++p) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      rows[p][h] = args.weight + min(first_row + 2 * p + h, args.n - 1) * args.k_units + lane;
    }
  }
  uint4 w[kDepth][kPairs][2];
  const auto fetch = [&](uint4(&to)[kPairs][2], int step) {
    const bool inside = step * kStepUnits + lane < args.k_units;
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        to[p][h] = inside ? load_weight(rows[p][h] + step * kStepUnits) : make_uint4(0, 0, 0, 0);
      }
    }
  };
#pragma unroll
  for (int d = 0; d < kDepth; ++d) {
    if (d < steps) fetch(w[d], d);
  }

  let_successor_start();
  wait_for_predecessor();

  float sum[kTokens][kPairs][4] = {};
  for (int base = 0; base < steps; base += kDepth) {
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const int step = base + d;
      if (step < steps) {
        const int unit = step * kStepUnits + lane;
#pragma unroll
        for (int token = 0; token < kTokens; ++token) {
          uint4 x = make_uint4(0, 0, 0, 0);
          if (token < args.tokens && unit < args.k_units) x = args.x[token * args.x_stride + unit];
#pragma unroll
          for (int p = 0; p < kPairs; ++p) {
            multiply_32_columns<T>(sum[token][p], w[d][p][0], w[d][p][1], x);
          }
        }
        if (step + kDepth < steps) fetch(w[d], step + kDepth);
      }
    }
  }

  // The diagonal: lane 4g + t has columns 2t and 2t + 1 of row g (and of row g of the second half).
  const int g = lane / 4;
  const bool on_diagonal = lane % 4 == g / 2;
#pragma unroll
  for (int token = 0; token < kTokens; ++token) {
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float mine = g % 2 == 0 ? sum[token][p][2 * h] : sum[token][p][2 * h + 1];
        float total = on_diagonal ? mine : 0.0F;
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) {
          total += __shfl_xor_sync(0xFFFFFFFFU, total, offset);
        }
        const int64_t row = first_row + 2 * p + h;
        if (lane == 0 && token < args.tokens && row < args.n) {
          static_cast<Out*>(args.y)[token * args.y_stride + row] = from_float<Out>(total);
        }
      }
    }
  }
}

template <typename T, typename Out, int kTokens, int kPairs, int kDepth, int kWarps>
void launch(const SkinnyLinearArgs& args, cudaStream_t stream) {
  KernelArgs kernel{};
  kernel.weight = static_cast<const uint4*>(args.weight);
  kernel.x = static_cast<const uint4*>(args.x);
  kernel.y = args.y;
  kernel.n = args.n;
  kernel.x_stride = args.x_stride / 8;
  kernel.y_stride = args.y_stride;
  kernel.k_units = static_cast<int>(args.k / 8);
  kernel.tokens = static_cast<int>(args.tokens);
  constexpr int kBlockRows = kWarps * 2 * kPairs;
  const auto blocks = static_cast<unsigned>((args.n + kBlockRows - 1) / kBlockRows);
  launch_chained(row_linear_kernel<T, Out, kTokens, kPairs, kDepth, kWarps>,
                 {dim3(blocks), dim3(kWarps * 32)}, stream, kernel);
}

template <typename T, typename Out, int kPairs, int kDepth, int kWarps>
void launch_tokens(const SkinnyLinearArgs& args, cudaStream_t stream) {
  if (args.tokens <= 1) {
    launch<T, Out, 1, kPairs, kDepth, kWarps>(args, stream);
  } else if (args.tokens <= 2) {
    launch<T, Out, 2, kPairs, kDepth, kWarps>(args, stream);
  } else if (args.tokens <= 4) {
    launch<T, Out, 4, kPairs, kDepth, kWarps>(args, stream);
  } else {
    launch<T, Out, 8, kPairs, kDepth, kWarps>(args, stream);
  }
}

template <typename T, typename Out>
bool launch_variant(const SkinnyLinearArgs& args, RowLinearVariant variant, cudaStream_t stream) {
  switch (variant.pairs * 1000 + variant.depth * 10 + variant.warps) {
    case 1044: launch_tokens<T, Out, 1, 4, 4>(args, stream); return true;
    case 2024: launch_tokens<T, Out, 2, 2, 4>(args, stream); return true;
    default: return false;
  }
}

}  // namespace

bool can_run_row_linear(const SkinnyLinearArgs& args) {
  const auto aligned = [](const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
  };
  return args.tokens >= 1 && args.tokens <= kMaxRowLinearTokens && args.k % 8 == 0 &&
         args.x_stride % 8 == 0 && aligned(args.weight) && aligned(args.x);
}

void launch_row_linear(const SkinnyLinearArgs& args, cudaStream_t stream) {
  launch_row_linear(args, RowLinearVariant{}, stream);
}

bool launch_row_linear(const SkinnyLinearArgs& args,
                       RowLinearVariant variant,
                       cudaStream_t stream) {
  const bool wide = args.out_dtype == DType::kF32;
  if (args.dtype == DType::kBF16) {
    return wide ? launch_variant<__nv_bfloat16, float>(args, variant, stream)
                : launch_variant<__nv_bfloat16, __nv_bfloat16>(args, variant, stream);
  }
  return wide ? launch_variant<__half, float>(args, variant, stream)
              : launch_variant<__half, __half>(args, variant, stream);
}

}  // namespace tenon
