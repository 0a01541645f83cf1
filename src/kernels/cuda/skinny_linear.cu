#include "kernels/cuda/skinny_linear.h"

#include "kernels/cuda/chained_launch.cuh"
#include "kernels/cuda/half_vector.cuh"
#include "kernels/cuda/mma_half.cuh"

namespace tenon {
namespace {

constexpr int kTileRows = 16;     // rows of W in one mma
constexpr int kTileTokens = 8;    // tokens in one mma
constexpr int kStepColumns = 64;  // columns of one step: two 16-byte loads a lane and row

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

// Read once, by this block alone: past L1, and the rest of the row's sector group into L2.
__device__ __forceinline__ uint4 load_weight(const uint4* from) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}

// Lane (g = lane / 4, t = lane % 4) holds rows g and g + 8 of a tile of W and token g of a tile of
// x, and of each 32 columns the 8 from 8t on: elements 0..3 are its share of one mma, 4..7 of the
// next.
template <typename T, typename Out, int kTokenTiles, int kRowTiles, int kWarps, int kDepth>
__global__ void __launch_bounds__(kWarps * 32) skinny_linear_kernel(const KernelArgs args) {
  constexpr int kBlockRows = kRowTiles * kTileRows;
  constexpr int kPitch = kBlockRows + 4;  // lanes of a warp write to 32 different banks
  constexpr int kStepUnits = kStepColumns / 8;
  __shared__ float partial[kWarps][kTokenTiles * kTileTokens][kPitch];

  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kBlockRows;
  const int steps = args.k_units / kStepUnits;

  const uint4* rows[kRowTiles][2];
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      // A row past the end reads the last one; its results are not stored.
      const int64_t row = min(first_row + m * kTileRows + h * 8 + g, args.n - 1);
      rows[m][h] = args.weight + row * args.k_units + t;
    }
  }

  uint4 w[kDepth][kRowTiles][2][2];
  const auto fetch = [&](uint4(&to)[kRowTiles][2][2], int step) {
    if (step >= steps) return;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        to[m][h][0] = load_weight(rows[m][h] + step * kStepUnits);
        to[m][h][1] = load_weight(rows[m][h] + step * kStepUnits + 4);
      }
    }
  };
#pragma unroll
  for (int d = 0; d < kDepth; ++d) fetch(w[d], warp + d * kWarps);

  let_successor_start();
  wait_for_predecessor();

  float sum[kRowTiles][kTokenTiles][4] = {};
  const uint4* x = args.x + t;
  for (int base = warp; base < steps; base += kDepth * kWarps) {
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const int step = base + d * kWarps;
      if (step < steps) {
        uint4 in[kTokenTiles][2];
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n) {
          const int token = n * kTileTokens + g;
          in[n][0] = make_uint4(0, 0, 0, 0);
          in[n][1] = make_uint4(0, 0, 0, 0);
          if (token < args.tokens) {
            in[n][0] = x[token * args.x_stride + step * kStepUnits];
            in[n][1] = x[token * args.x_stride + step * kStepUnits + 4];
          }
        }
#pragma unroll
        for (int c = 0; c < 2; ++c) {
#pragma unroll
          for (int m = 0; m < kRowTiles; ++m) {
            const uint4 low = w[d][m][0][c];
            const uint4 high = w[d][m][1][c];
#pragma unroll
            for (int n = 0; n < kTokenTiles; ++n) {
              multiply_32_columns<T>(sum[m][n], low, high, in[n][c]);
            }
          }
        }
        fetch(w[d], step + kDepth * kWarps);
      }
    }
  }

#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      const int token = n * kTileTokens + 2 * t;
      const int row = m * kTileRows + g;
      partial[warp][token][row] = sum[m][n][0];
      partial[warp][token + 1][row] = sum[m][n][1];
      partial[warp][token][row + 8] = sum[m][n][2];
      partial[warp][token + 1][row + 8] = sum[m][n][3];
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < args.tokens * kBlockRows; i += kWarps * 32) {
    const int token = i / kBlockRows;
    const int row = i % kBlockRows;
    if (first_row + row >= args.n) continue;
    float total = 0.0F;
#pragma unroll
    for (int part = 0; part < kWarps; ++part) total += partial[part][token][row];
    static_cast<Out*>(args.y)[token * args.y_stride + first_row + row] = from_float<Out>(total);
  }
}

template <typename T, typename Out, int kTokenTiles, int kRowTiles, int kWarps, int kDepth>
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
  constexpr int kBlockRows = kRowTiles * kTileRows;
  const auto blocks = static_cast<unsigned>((args.n + kBlockRows - 1) / kBlockRows);
  launch_chained(skinny_linear_kernel<T, Out, kTokenTiles, kRowTiles, kWarps, kDepth>,
                 {dim3(blocks), dim3(kWarps * 32)}, stream, kernel);
}

template <typename T, typename Out, int kRowTiles, int kWarps, int kDepth>
void launch_tokens(const SkinnyLinearArgs& args, cudaStream_t stream) {
  if (args.tokens <= 8) {
    launch<T, Out, 1, kRowTiles, kWarps, kDepth>(args, stream);
  } else if (args.tokens <= 16) {
    launch<T, Out, 2, kRowTiles, kWarps, kDepth>(args, stream);
  } else {
    launch<T, Out, 4, kRowTiles, kWarps, kDepth>(args, stream);
  }
}

template <typename T, typename Out>
bool launch_variant(const SkinnyLinearArgs& args, SkinnyVariant variant, cudaStream_t stream) {
  const int key = variant.row_tiles * 1000 + variant.warps * 10 + variant.depth;
  switch (key) {
    case 1084: launch_tokens<T, Out, 1, 8, 4>(args, stream); return true;
    case 2082: launch_tokens<T, Out, 2, 8, 2>(args, stream); return true;
    case 2042: launch_tokens<T, Out, 2, 4, 2>(args, stream); return true;
    default: return false;
  }
}

}  // namespace

bool can_run_skinny_linear(const SkinnyLinearArgs& args) {
  const auto aligned = [](const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
  };
  return args.tokens >= 1 && args.tokens <= kMaxSkinnyTokens &&
         args.k % kSkinnyColumnMultiple == 0 && args.x_stride % 8 == 0 && aligned(args.weight) &&
         aligned(args.x);
}

SkinnyVariant choose_skinny_variant(const SkinnyLinearArgs& args) {
  // Very large weights have blocks enough to fill the machine with tiles of 32 rows.
  constexpr int64_t kVeryLarge = int64_t{100} << 20;  // elements
  if (args.n * args.k >= kVeryLarge && args.k < 8192) return {2, 4, 2};
  return args.tokens <= 16 ? SkinnyVariant{1, 8, 4} : SkinnyVariant{2, 8, 2};
}

void launch_skinny_linear(const SkinnyLinearArgs& args, cudaStream_t stream) {
  launch_skinny_linear(args, choose_skinny_variant(args), stream);
}

bool launch_skinny_linear(const SkinnyLinearArgs& args,
                          SkinnyVariant variant,
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
