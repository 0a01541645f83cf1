#include <algorithm>
#include <cmath>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "attention/backends/flash/cascade_merge.h"

namespace tenon::flash {
namespace {

constexpr int kWarps = 8;
constexpr int kAtOnce = 4;  // partial rows that are waited for together

template <typename T>
__device__ __forceinline__ void store_four(T* to, const float4& v) {
  union {
    T values[4];
    uint2 bits;
  } packed;
  packed.values[0] = static_cast<T>(v.x);
  packed.values[1] = static_cast<T>(v.y);
  packed.values[2] = static_cast<T>(v.z);
  packed.values[3] = static_cast<T>(v.w);
  *reinterpret_cast<uint2*>(to) = packed.bits;
}

// Partial results met so far: outputs of four columns of a row, relative to weight e^high.
struct Merged {
  float4 total = {0.0F, 0.0F, 0.0F, 0.0F};
  float high = -INFINITY;
  float sum = 0.0F;

  __device__ void add(const float4 (&parts)[kAtOnce], const float (&lse)[kAtOnce]) {
    float top = high;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) top = fmaxf(top, lse[i]);
    if (top == -INFINITY) return;
    const float old = __expf(high - top);
    high = top;
    total.x *= old, total.y *= old, total.z *= old, total.w *= old;
    sum *= old;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float w = __expf(lse[i] - top);
      total.x += parts[i].x * w, total.y += parts[i].y * w;
      total.z += parts[i].z * w, total.w += parts[i].w * w;
      sum += w;
    }
  }
};

// A warp a (token, query head); a lane has columns [4 lane, 4 lane + 4) of each 128.
template <typename T>
__global__ void __launch_bounds__(32 * kWarps)
    merge_kernel(const __grid_constant__ MergeParams params) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int work = *params.num_tokens * params.num_q_heads;
  const int group = params.num_q_heads / params.num_kv_heads;
  for (int at = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32); at < work;
       at += static_cast<int>(gridDim.x) * kWarps) {
    const int head = at % params.num_q_heads;
    const int kv_head = head / group;
    const MergeToken& token = params.tokens[at / params.num_q_heads];
    const int num_parts = token.num_parts;
    T* out = static_cast<T*>(params.out) + token.token * params.out_stride +
             int64_t{head} * params.head_dim;
    for (int column = 4 * lane; column < params.head_dim; column += 128) {
      Merged merged;
      float4 rows[kAtOnce];
      float lse[kAtOnce];
      rows[0] = *reinterpret_cast<const float4*>(params.suffix_out + int64_t{at} * params.head_dim +
                                                 column);
      lse[0] = params.suffix_lse[at];
      int filled = 1;
      for (int p = 0; p < num_parts; ++p) {
        const MergePart part = token.parts[p];
        const int first = part.first_row + kv_head * part.tile_rows + head % group;
        const int step = params.num_kv_heads * part.tile_rows;
        for (int piece = 0; piece < part.pieces;) {
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            if (i < filled) continue;
            const int row = first + min(piece + i - filled, part.pieces - 1) * step;
            rows[i] = *reinterpret_cast<const float4*>(params.prefix_out +
                                                       int64_t{row} * params.head_dim + column);
            lse[i] = piece + i - filled < part.pieces ? params.prefix_lse[row] : -INFINITY;
          }
          merged.add(rows, lse);
          piece += kAtOnce - filled;
          filled = 0;
        }
      }
      const float scale = merged.sum == 0.0F ? 0.0F : 1.0F / merged.sum;
      merged.total.x *= scale, merged.total.y *= scale;
      merged.total.z *= scale, merged.total.w *= scale;
      store_four(out + column, merged.total);
      if (lane == 0 && column == 0 && params.lse != nullptr) {
        params.lse[int64_t{token.token} * params.num_q_heads + head] =
            merged.sum == 0.0F ? -INFINITY : merged.high + logf(merged.sum);
      }
    }
  }
}

}  // namespace

cudaError_t launch_cascade_merge(const MergeParams& params, cudaStream_t stream) {
  if (params.max_tokens == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(
      (int64_t{params.max_tokens} * params.num_q_heads + kWarps - 1) / kWarps);
  if (params.bf16) {
    merge_kernel<__nv_bfloat16><<<blocks, 32 * kWarps, 0, stream>>>(params);
  } else {
    merge_kernel<__half><<<blocks, 32 * kWarps, 0, stream>>>(params);
  }
  return cudaGetLastError();
}

}  // namespace tenon::flash
