#include "kernels/cuda/elementwise.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/chained_launch.cuh"
#include "kernels/cuda/half_vector.cuh"
#include "kernels/cuda/rotate.cuh"

namespace tenon {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;

unsigned blocks_for(int64_t items, int per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

// Calls fn(T{}) with the element type of `dtype`, f32 included.
template <typename Fn>
void with_type(DType dtype, Fn fn) {
  switch (dtype) {
    case DType::kBF16: fn(__nv_bfloat16{}); break;
    case DType::kF16: fn(__half{}); break;
    default: fn(float{}); break;
  }
}
template <typename Fn>
void with_half_type(DType dtype, Fn fn) {
  dtype == DType::kF16 ? fn(__half{}) : fn(__nv_bfloat16{});
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFU, value, offset);
  }
  return value;
}

struct NormKernelArgs {
  float* residual;
  const void* x;
  void* out;
  const float* weight;
  int64_t residual_stride, x_stride, out_stride;
  float eps;
  int cols;
};

// One block a row; a thread keeps its kChunks * 8 values in registers between the sum and the
// product.
template <typename X, typename Out, bool kAdd, int kChunks>
__global__ void __launch_bounds__(1024) rms_norm_kernel(const NormKernelArgs args) {
  __shared__ float partial[kWarp];
  const int64_t row = blockIdx.x;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int step = static_cast<int>(blockDim.x) * 8;
  const int first = static_cast<int>(threadIdx.x) * 8;
  float* residual = args.residual + row * args.residual_stride;

  float weight[8];  // the first chunk's; known before the predecessor ends
  if (first < args.cols) load8(args.weight + first, weight);
  let_successor_start();
  wait_for_predecessor();

  float values[kChunks][8];
  float squares = 0.0F;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int column = first + c * step;
    if (column < args.cols) {
      load8(residual + column, values[c]);
      if constexpr (kAdd) {
        float x[8];
        load8(static_cast<const X*>(args.x) + row * args.x_stride + column, x);
#pragma unroll
        for (int i = 0; i < 8; ++i) values[c][i] += x[i];
        store8(residual + column, values[c]);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) squares += values[c][i] * values[c][i];
    }
  }
  squares = warp_sum(squares);
  if (lane == 0) partial[warp] = squares;
  __syncthreads();
  float total = lane < static_cast<int>(blockDim.x) / kWarp ? partial[lane] : 0.0F;
  total = warp_sum(total);
  const float scale = rsqrtf(total / static_cast<float>(args.cols) + args.eps);
  Out* out = static_cast<Out*>(args.out) + row * args.out_stride;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int column = first + c * step;
    if (column < args.cols) {
      if (c > 0) load8(args.weight + column, weight);
#pragma unroll
      for (int i = 0; i < 8; ++i) values[c][i] *= scale * weight[i];
      store8(out + column, values[c]);
    }
  }
}

template <typename X, typename Out, bool kAdd>
void launch_norm(const NormKernelArgs& args, int64_t rows, cudaStream_t stream) {
  const int vectors = args.cols / 8;
  const int chunks = (vectors + 1023) / 1024;
  const int threads = ((vectors + chunks - 1) / chunks + kWarp - 1) / kWarp * kWarp;
  const LaunchShape shape{dim3(static_cast<unsigned>(rows)), dim3(static_cast<unsigned>(threads))};
  if (chunks == 1) {
    launch_chained(rms_norm_kernel<X, Out, kAdd, 1>, shape, stream, args);
  } else if (chunks == 2) {
    launch_chained(rms_norm_kernel<X, Out, kAdd, 2>, shape, stream, args);
  } else {
    launch_chained(rms_norm_kernel<X, Out, kAdd, 4>, shape, stream, args);
  }
}

// Kernels over rows take their columns from the block's x and its rows from y, which may be fewer
// than there are: no division.
constexpr int64_t kMaxGridRows = 65535;

struct RowGrid {
  LaunchShape shape;
  int vectors;

  RowGrid(int64_t rows, int64_t items_of_a_row) : vectors(static_cast<int>(items_of_a_row)) {
    const auto threads = static_cast<unsigned>(
        std::min<int64_t>(kThreads, (items_of_a_row + kWarp - 1) / kWarp * kWarp));
    shape.grid = dim3(blocks_for(items_of_a_row, static_cast<int>(threads)),
                      static_cast<unsigned>(std::min(rows, kMaxGridRows)));
    shape.block = dim3(threads);
  }
};

template <typename T>
__global__ void __launch_bounds__(kThreads) silu_and_mul_kernel(
    const T* gate_up, T* out, int64_t gate_stride, int64_t out_stride, int vectors, int64_t rows) {
  const int item = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  let_successor_start();
  wait_for_predecessor();
  if (item >= vectors) return;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const T* const gate_row = gate_up + row * gate_stride + item * 8;
    float gate[8];
    float up[8];
    load8(gate_row, gate);
    load8(gate_row + vectors * 8, up);
#pragma unroll
    for (int i = 0; i < 8; ++i) gate[i] = __fdividef(gate[i], 1.0F + __expf(-gate[i])) * up[i];
    store8(out + row * out_stride + item * 8, gate);
  }
}

template <typename In, typename Out>
__global__ void __launch_bounds__(kThreads) gather_rows_kernel(const In* x,
                                                               Out* out,
                                                               const int32_t* ids,
                                                               int64_t x_stride,
                                                               int64_t out_stride,
                                                               int vectors,
                                                               int64_t rows) {
  const int item = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  let_successor_start();
  wait_for_predecessor();
  if (item >= vectors) return;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    float values[8];
    load8(x + ids[row] * x_stride + item * 8, values);
    store8(out + row * out_stride + item * 8, values);
  }
}

// A running maximum and the sum of exp(value - maximum).
struct LogSum {
  float max = -INFINITY;
  float sum = 0.0F;

  __device__ void add(float other_max, float other_sum) {
    const float top = fmaxf(max, other_max);
    // Two of -inf or of +inf have no finite difference, and an empty part adds nothing.
    const float mine = max == top ? 1.0F : __expf(max - top);
    const float theirs = other_max == top ? 1.0F : __expf(other_max - top);
    sum = sum * mine + other_sum * theirs;
    max = top;
  }
};

__global__ void __launch_bounds__(1024) log_sum_exp_kernel(const LogSumExpArgs args) {
  __shared__ LogSum partial[kWarp];
  let_successor_start();
  wait_for_predecessor();
  const float* row = args.logits + static_cast<int64_t>(blockIdx.x) * args.stride;
  LogSum mine;
  const auto add_four = [&](const float4& four) {
    mine.add(fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w)), 0.0F);
    if (mine.max == -INFINITY) return;  // nothing but -inf so far: exp would see inf - inf
    mine.sum += __expf(four.x - mine.max) + __expf(four.y - mine.max) + __expf(four.z - mine.max) +
                __expf(four.w - mine.max);
  };
  const bool aligned = reinterpret_cast<uintptr_t>(row) % 16 == 0;
  const int64_t quads = aligned ? args.cols / 4 : 0;
  const auto* const fours = reinterpret_cast<const float4*>(row);
  int64_t i = threadIdx.x;
  for (; i + 3 * blockDim.x < quads; i += 4 * blockDim.x) {
    const float4 a = fours[i];
    const float4 b = fours[i + blockDim.x];
    const float4 c = fours[i + 2 * blockDim.x];
    const float4 d = fours[i + 3 * blockDim.x];
    add_four(a);
    add_four(b);
    add_four(c);
    add_four(d);
  }
  for (; i < quads; i += blockDim.x) add_four(fours[i]);
  for (i = quads * 4 + threadIdx.x; i < args.cols; i += blockDim.x) mine.add(row[i], 1.0F);
  const auto fold_warp = [&] {
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      const float max = __shfl_xor_sync(0xFFFFFFFFU, mine.max, offset);
      const float sum = __shfl_xor_sync(0xFFFFFFFFU, mine.sum, offset);
      mine.add(max, sum);
    }
  };
  fold_warp();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (lane == 0) partial[warp] = mine;
  __syncthreads();
  if (warp != 0) return;
  mine = partial[lane];
  fold_warp();
  // A row of -inf, or one that holds +inf, has no finite maximum to subtract.
  if (lane == 0) args.out[blockIdx.x] = isinf(mine.max) ? mine.max : mine.max + logf(mine.sum);
}

template <typename T, int kPairs>
__global__ void __launch_bounds__(kThreads) rope_kernel(const RopeArgs args, int items) {
  const int item = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  let_successor_start();
  wait_for_predecessor();
  if (item >= items) return;
  const int half = args.rotary_dim / 2;
  const int per_head = half / kPairs;
  const int head_index = item / per_head;
  const int first = (item - head_index * per_head) * kPairs;
  for (int64_t row = blockIdx.y; row < args.rows; row += gridDim.y) {
    const int64_t table = static_cast<int64_t>(args.positions[row]) * half;
    T* head = static_cast<T*>(args.x.data) + row * args.x.stride +
              static_cast<int64_t>(head_index) * args.head_dim;
    const RotaryTables tables{args.cos + table, args.sin + table, half, args.interleaved};
    rotate_pairs<T, kPairs>(head, first, tables, [head](int feature, auto values) {
      *reinterpret_cast<decltype(values)*>(head + feature) = values;
    });
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    random_fill_kernel(T* to, int64_t elements, uint64_t seed, float limit) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  wait_for_predecessor();
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < elements;
       i += stride) {
    // SplitMix64 (Steele, Lea, Flood 2014) is a function of a counter, so any index can be had.
    uint64_t z = seed + static_cast<uint64_t>(i + 1) * 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    z ^= z >> 31;
    const auto signed_bits = static_cast<int32_t>(z >> 32);
    to[i] = from_float<T>(static_cast<float>(signed_bits) * 0x1p-31F * limit);
  }
}

}  // namespace

void launch_rms_norm(const RmsNormArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  NormKernelArgs kernel{};
  kernel.residual = static_cast<float*>(args.residual.data);
  kernel.x = args.x.data;
  kernel.out = args.out.data;
  kernel.weight = args.weight;
  kernel.residual_stride = args.residual.stride;
  kernel.x_stride = args.x.stride;
  kernel.out_stride = args.out.stride;
  kernel.eps = args.eps;
  kernel.cols = static_cast<int>(args.cols);
  with_type(args.out.dtype, [&](auto out) {
    using Out = decltype(out);
    if (args.x.data == nullptr) {
      launch_norm<float, Out, false>(kernel, args.rows, stream);
    } else {
      with_half_type(args.x.dtype, [&](auto x) {
        launch_norm<decltype(x), Out, true>(kernel, args.rows, stream);
      });
    }
  });
}

void launch_silu_and_mul(const SiluArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  const RowGrid grid(args.rows, args.cols / 8);
  with_half_type(args.out.dtype, [&](auto type) {
    using T = decltype(type);
    launch_chained(silu_and_mul_kernel<T>, grid.shape, stream,
                   static_cast<const T*>(args.gate_up.data), static_cast<T*>(args.out.data),
                   args.gate_up.stride, args.out.stride, grid.vectors, args.rows);
  });
}

void launch_gather_rows(const GatherArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  const RowGrid grid(args.rows, args.cols / 8);
  with_type(args.x.dtype, [&](auto in) {
    with_type(args.out.dtype, [&](auto out) {
      using In = decltype(in);
      using Out = decltype(out);
      launch_chained(gather_rows_kernel<In, Out>, grid.shape, stream,
                     static_cast<const In*>(args.x.data), static_cast<Out*>(args.out.data),
                     args.ids, args.x.stride, args.out.stride, grid.vectors, args.rows);
    });
  });
}

void launch_log_sum_exp(const LogSumExpArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  launch_chained(log_sum_exp_kernel, {dim3(static_cast<unsigned>(args.rows)), dim3(1024)}, stream,
                 args);
}

void launch_rope(const RopeArgs& args, cudaStream_t stream) {
  const int half = args.rotary_dim / 2;
  const bool wide = half % 8 == 0 && args.head_dim % 8 == 0 && args.x.stride % 8 == 0 &&
                    reinterpret_cast<uintptr_t>(args.x.data) % 16 == 0;
  const int items = args.heads * (wide ? half / 8 : half);
  if (args.rows == 0 || items == 0) return;
  const LaunchShape shape = RowGrid(args.rows, items).shape;
  with_half_type(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    if (wide) {
      launch_chained(rope_kernel<T, 8>, shape, stream, args, items);
    } else {
      launch_chained(rope_kernel<T, 1>, shape, stream, args, items);
    }
  });
}

void launch_random_fill(const RandomArgs& args, cudaStream_t stream) {
  if (args.elements == 0) return;
  const unsigned blocks = std::min(blocks_for(args.elements, kThreads), 132U * 16U);
  with_half_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    launch_chained(random_fill_kernel<T>, {dim3(blocks), dim3(kThreads)}, stream,
                   static_cast<T*>(args.to), args.elements, args.seed, args.limit);
  });
}

}  // namespace tenon
