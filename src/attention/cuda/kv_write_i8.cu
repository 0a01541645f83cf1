// Writes to caches of kI8. A warp takes a head of a token: it rotates it if there is RoPE, finds
// its largest magnitude and stores what that leaves of the values. All arithmetic is IEEE f32 in
// the order of the reference backend, so that the bits are the same.
#include "attention/cuda/kv_cells.cuh"
#include "attention/cuda/kv_write_kernel.h"
#include "kernels/cuda/chained_launch.cuh"
#include "kernels/cuda/half_vector.cuh"
#include "kernels/cuda/rotate.cuh"

namespace tenon {
namespace {

constexpr int kWarps = 4;  // of a block
constexpr float kLargestCell = 127.0F;

// kWidth features at a time, from `from` on.
template <typename T, int kWidth>
__device__ __forceinline__ void load(const T* from, float (&out)[kWidth]) {
  if constexpr (kWidth == 8) {
    load8(from, out);
  } else {
    out[0] = to_float(*from);
  }
}

// Where a head's cell and its scale go.
struct CellPlace {
  int8_t* base;  // of the token and head; its features count from `first`
  int first;     // 0, or where V begins
  int swizzle;   // KvView::element()
  float* token_scale;
};

template <typename T, int kWidth>
__device__ __forceinline__ void store_head(const T* from,
                                           int dim,
                                           float scale,
                                           const CellPlace& place) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float values[kWidth];
  float largest = 0.0F;
  for (int i = lane * kWidth; i < dim; i += 32 * kWidth) {
    load<T, kWidth>(from + i, values);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      largest = fmaxf(largest, fabsf(__fdiv_rn(values[j], scale)));
    }
  }
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffU, largest, lanes));
  }
  const float factor = largest > 0.0F ? __fdiv_rn(kLargestCell, largest) : 0.0F;
  if (lane == 0) *place.token_scale = __fdiv_rn(largest, kLargestCell);
  for (int i = lane * kWidth; i < dim; i += 32 * kWidth) {
    load<T, kWidth>(from + i, values);
    uint32_t words[2] = {};
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const int cell = __float2int_rn(__fmul_rn(__fdiv_rn(values[j], scale), factor));
      words[j / 4] |= static_cast<uint32_t>(static_cast<uint8_t>(cell)) << j % 4 * 8;
    }
    int8_t* const to = place.base + ((place.first + i) ^ place.swizzle);
    if constexpr (kWidth == 8) {
      *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
    } else {
      *to = static_cast<int8_t>(words[0]);
    }
  }
}

// Rotates a head in place.
template <typename T, int kWidth>
__device__ __forceinline__ void rotate_head(const KvWriteArgs& args, int64_t token, T* features) {
  const int half = args.rotary_dim / 2;
  const int64_t table = static_cast<int64_t>(args.positions[token]) * half;
  const RotaryTables tables{args.cos + table, args.sin + table, half, args.interleaved};
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int first = lane * kWidth; first < half; first += 32 * kWidth) {
    rotate_pairs<T, kWidth>(features, first, tables, [&](int feature, const auto& values) {
      *reinterpret_cast<std::remove_cvref_t<decltype(values)>*>(features + feature) = values;
    });
  }
  __syncwarp();  // other lanes read what this one has written
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(32 * kWarps) kv_write_i8_kernel(const KvWriteArgs args) {
  const int64_t token = blockIdx.x;
  int head = static_cast<int>(blockIdx.y * kWarps + threadIdx.x / 32);
  let_successor_start();
  wait_for_predecessor();
  const int rotated_q_heads = args.rotary_dim > 0 ? args.q_heads : 0;
  if (head >= rotated_q_heads + 2 * args.kv_heads) return;
  if (head < rotated_q_heads) {
    T* const row = static_cast<T*>(args.q) + token * args.q_stride;
    rotate_head<T, kWidth>(args, token, row + head * args.head_dim_k);
    return;
  }
  head -= rotated_q_heads;
  const bool is_k = head < args.kv_heads;
  if (!is_k) head -= args.kv_heads;
  T* const k = static_cast<T*>(args.k) + token * args.k_stride + head * args.head_dim_k;
  if (is_k && args.rotary_dim > 0) rotate_head<T, kWidth>(args, token, k);

  const int64_t slot = args.slots[token];
  if (slot < 0) return;
  const auto block = static_cast<uint32_t>(slot) / static_cast<uint32_t>(args.block_size);
  const auto within = static_cast<uint32_t>(slot) - block * static_cast<uint32_t>(args.block_size);
  int8_t* const start = static_cast<int8_t*>(args.cache) + block * args.block_stride;
  CellPlace place;
  place.base = start + head * args.head_stride + within * args.token_stride;
  place.first = is_k ? 0 : static_cast<int>(args.v_offset);
  place.swizzle = static_cast<int>(within % 8) * args.swizzle_piece;
  place.token_scale = reinterpret_cast<float*>(start + args.token_scale_offset) +
                      (2 * head + (is_k ? 0 : 1)) * args.block_size + within;
  if (is_k) {
    store_head<T, kWidth>(k, args.head_dim_k, k_scale_of(args, head), place);
  } else {
    const T* const v =
        static_cast<const T*>(args.v) + token * args.v_stride + head * args.head_dim_v;
    store_head<T, kWidth>(v, args.head_dim_v, v_scale_of(args, head), place);
  }
}

template <typename T>
void launch(const KvWriteArgs& args, cudaStream_t stream) {
  const int heads = (args.rotary_dim > 0 ? args.q_heads : 0) + 2 * args.kv_heads;
  const LaunchShape shape{dim3(static_cast<unsigned>(args.tokens),
                               static_cast<unsigned>((heads + kWarps - 1) / kWarps)),
                          dim3(32 * kWarps)};
  if (kv_write_in_eights(args)) {
    launch_chained(kv_write_i8_kernel<T, 8>, shape, stream, args);
  } else {
    launch_chained(kv_write_i8_kernel<T, 1>, shape, stream, args);
  }
}

}  // namespace

void launch_kv_write_i8(const KvWriteArgs& args, cudaStream_t stream) {
  if (args.dtype == DType::kF16) {
    launch<__half>(args, stream);
  } else {
    launch<__nv_bfloat16>(args, stream);
  }
}

}  // namespace tenon
