#include "attention/cuda/kv_cells.cuh"
#include "attention/cuda/kv_write_kernel.h"
#include "kernels/cuda/chained_launch.cuh"
#include "kernels/cuda/half_vector.cuh"
#include "kernels/cuda/rotate.cuh"

namespace tenon {
namespace {

constexpr int kThreads = 256;

// What one thread stores at a time: kWidth features.
template <typename T, int kWidth>
struct Features;
template <typename T>
struct Features<T, 8> {
  using Type = uint4;
};
template <typename T>
struct Features<T, 1> {
  using Type = T;
};

template <typename T, typename Cell>
__device__ __forceinline__ void store_scaled(Cell* to, const uint4& values, float scale) {
  float unpacked[8];
  unpack8<T>(values, unpacked);
  if (scale != 1.0F) {
#pragma unroll
    for (int i = 0; i < 8; ++i) unpacked[i] = __fdiv_rn(unpacked[i], scale);
  }
  store8(to, unpacked);
}
template <typename T, typename Cell>
__device__ __forceinline__ void store_scaled(Cell* to, const T& value, float scale) {
  *to = from_float<Cell>(__fdiv_rn(to_float(value), scale));
}

// The work on a token, in items of one thread each, kWidth features or pairs of features wide:
// rotations of q, rotations of k, what RoPE leaves of k, and v.
struct Items {
  int q_pairs, k_pairs, k_rest, v;  // of one token, all heads
  [[nodiscard]] __host__ __device__ int total() const { return q_pairs + k_pairs + k_rest + v; }
};

template <typename T, typename Cell, int kWidth>
__global__ void __launch_bounds__(kThreads)
    kv_write_kernel(const KvWriteArgs args, const Items items) {
  using Values = typename Features<T, kWidth>::Type;
  int item = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  const int64_t token = blockIdx.x;
  let_successor_start();
  wait_for_predecessor();
  if (item >= items.total()) return;

  const int64_t slot = args.slots[token];
  const auto block = static_cast<uint32_t>(slot) / static_cast<uint32_t>(args.block_size);
  const auto within = static_cast<uint32_t>(slot) - block * static_cast<uint32_t>(args.block_size);
  Cell* const cells =
      static_cast<Cell*>(args.cache) + block * args.block_stride + within * args.token_stride;
  // KvView::element(); eight features stay together.
  const int swizzle = static_cast<int>(within % 8) * args.swizzle_piece;

  if (item < items.q_pairs + items.k_pairs) {
    const int half = args.rotary_dim / 2;
    const int per_head = half / kWidth;
    const bool is_k = item >= items.q_pairs;
    if (is_k) item -= items.q_pairs;
    const int head = item / per_head;
    const int first = (item - head * per_head) * kWidth;
    T* const row = is_k ? static_cast<T*>(args.k) + token * args.k_stride
                        : static_cast<T*>(args.q) + token * args.q_stride;
    T* const features = row + head * args.head_dim_k;
    const int64_t table = static_cast<int64_t>(args.positions[token]) * half;
    const RotaryTables tables{args.cos + table, args.sin + table, half, args.interleaved};
    Cell* const cell = is_k && slot >= 0 ? cells + head * args.head_stride : nullptr;
    const float scale = is_k ? k_scale_of(args, head) : 1.0F;
    rotate_pairs<T, kWidth>(features, first, tables, [&](int feature, const Values& values) {
      *reinterpret_cast<Values*>(features + feature) = values;
      if (cell != nullptr) store_scaled<T>(cell + (feature ^ swizzle), values, scale);
    });
    return;
  }
  if (slot < 0) return;
  item -= items.q_pairs + items.k_pairs;
  if (item < items.k_rest) {
    const int per_head = (args.head_dim_k - args.rotary_dim) / kWidth;
    const int head = item / per_head;
    const int feature = args.rotary_dim + (item - head * per_head) * kWidth;
    const T* const from =
        static_cast<const T*>(args.k) + token * args.k_stride + head * args.head_dim_k + feature;
    store_scaled<T>(cells + head * args.head_stride + (feature ^ swizzle),
                    *reinterpret_cast<const Values*>(from), k_scale_of(args, head));
    return;
  }
  item -= items.k_rest;
  const int per_head = args.head_dim_v / kWidth;
  const int head = item / per_head;
  const int feature = (item - head * per_head) * kWidth;
  const T* const from =
      static_cast<const T*>(args.v) + token * args.v_stride + head * args.head_dim_v + feature;
  store_scaled<T>(cells + head * args.head_stride + ((args.v_offset + feature) ^ swizzle),
                  *reinterpret_cast<const Values*>(from), v_scale_of(args, head));
}

template <typename T, typename Cell, int kWidth>
void launch(const KvWriteArgs& args, cudaStream_t stream) {
  Items items{};
  items.q_pairs = args.q_heads * (args.rotary_dim / 2 / kWidth);
  items.k_pairs = args.kv_heads * (args.rotary_dim / 2 / kWidth);
  items.k_rest = args.kv_heads * ((args.head_dim_k - args.rotary_dim) / kWidth);
  items.v = args.kv_heads * (args.head_dim_v / kWidth);
  // The blocks of a token are of one size: 448 items are two of 224, not 256 and 192.
  const auto parts = static_cast<unsigned>((items.total() + kThreads - 1) / kThreads);
  const unsigned threads = (static_cast<unsigned>(items.total()) + parts - 1) / parts;
  const LaunchShape shape{dim3(static_cast<unsigned>(args.tokens), parts),
                          dim3((threads + 31) / 32 * 32)};
  launch_chained(kv_write_kernel<T, Cell, kWidth>, shape, stream, args, items);
}

template <typename T, typename Cell>
void launch_width(const KvWriteArgs& args, cudaStream_t stream) {
  if (kv_write_in_eights(args)) {
    launch<T, Cell, 8>(args, stream);
  } else {
    launch<T, Cell, 1>(args, stream);
  }
}

template <typename T>
void launch_cache(const KvWriteArgs& args, cudaStream_t stream) {
  if (args.cache_dtype == DType::kF16) {
    launch_width<T, __half>(args, stream);
  } else if (args.cache_dtype == DType::kF8E4M3) {
    launch_width<T, __nv_fp8_e4m3>(args, stream);
  } else {
    launch_width<T, __nv_bfloat16>(args, stream);
  }
}

}  // namespace

bool kv_write_in_eights(const KvWriteArgs& args) {
  int64_t bits = args.q_stride | args.k_stride | args.v_stride | args.block_stride |
                 args.head_stride | args.token_stride | args.v_offset | args.head_dim_k |
                 args.head_dim_v | (args.rotary_dim / 2);
  for (const void* pointer : {static_cast<const void*>(args.q), static_cast<const void*>(args.k),
                              args.v, static_cast<const void*>(args.cache)}) {
    bits |= reinterpret_cast<intptr_t>(pointer) / 2;  // 16 bytes are 8 elements, or more
  }
  return bits % 8 == 0;
}

void launch_kv_write(const KvWriteArgs& args, cudaStream_t stream) {
  if (args.tokens == 0) return;
  if (args.cache_dtype == DType::kI8) return launch_kv_write_i8(args, stream);
  if (args.dtype == DType::kF16) {
    launch_cache<__half>(args, stream);
  } else {
    launch_cache<__nv_bfloat16>(args, stream);
  }
}

}  // namespace tenon
