#include "kernels/cuda/streamed_linear.h"

#include <algorithm>

#include "kernels/cuda/chained_launch.cuh"
#include "kernels/cuda/half_vector.cuh"
#include "kernels/cuda/mma_half.cuh"

namespace tenon {
namespace {

constexpr int kTileRows = 16;
constexpr int kMaxTokens = 8;
constexpr int kConsumerWarps = 8;
constexpr int kConsumers = kConsumerWarps * 32;
constexpr int kThreads = kConsumers + 32;                   // and one warp that starts the copies
constexpr int kWarpColumns = 64;                            // a warp's share of a chunk
constexpr int kChunkColumns = kConsumerWarps * kWarpColumns;  // of one stage of the ring
// Rows 64 bytes out of step: the 8 rows that a warp reads together lie in different banks.
constexpr int kRowPadding = 64;
constexpr int kRowPitch = kChunkColumns * 2 + kRowPadding;
constexpr int kStageBytes = kTileRows * kRowPitch;
constexpr int kMaxStages = 12;
constexpr int kMinStages = 3;
constexpr int kBarrierBytes = 256;
constexpr int kPartialPitch = kTileRows + 4;  // a warp's lanes write to different banks
constexpr int kHalfOfAnSm = 113 * 1024;       // two blocks on an SM
constexpr int kWholeSm = 227 * 1024;

static_assert(2 * kMaxStages * 8 <= kBarrierBytes);

struct KernelArgs {
  const std::byte* weight;
  const uint4* x;
  void* y;
  int64_t n, row_bytes;
  int64_t x_stride;  // in 16-byte units
  int64_t y_stride;
  int k, tokens, tiles, chunks, stages;
};

// Shared memory of a block: barriers, partial sums (twice), x, the ring.
struct Layout {
  int partial, x, x_pitch, ring;

  __host__ __device__ Layout(int k, int tokens) {
    partial = kBarrierBytes;
    x = partial + 2 * kConsumerWarps * tokens * kPartialPitch * 4;
    x_pitch = k * 2 + kRowPadding;
    ring = (x + tokens * x_pitch + 127) / 128 * 128;
  }
  [[nodiscard]] __host__ __device__ int bytes(int stages) const {
    return ring + stages * kStageBytes;
  }
};

__device__ __forceinline__ void init_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ __forceinline__ void expect_bytes(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void wait_for(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void copy_to_shared(uint32_t to,
                                               const void* from,
                                               int bytes,
                                               uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ uint4 load_shared(uint32_t from) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(from));
  return value;
}
__device__ __forceinline__ void sync_consumers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kConsumers) : "memory");
}

// Where in the ring, and how often round it: the parity its barriers are waited for with.
struct RingPosition {
  int stage = 0;
  uint32_t parity = 0;

  __device__ void advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Lanes as in skinny_linear.cu: g = lane / 4 is a row of W and a token of x, t = lane % 4 a share of 8
// in 32 columns.
template <typename T, typename Out>
__global__ void __launch_bounds__(kThreads) streamed_linear_kernel(const KernelArgs args) {
  extern __shared__ __align__(128) std::byte shared[];
  const Layout layout(args.k, args.tokens);
  const auto base = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const auto filled = [&](int stage) { return base + static_cast<uint32_t>(stage) * 16; };
  const auto emptied = [&](int stage) { return base + static_cast<uint32_t>(stage) * 16 + 8; };
  const auto stage_at = [&](int stage) {
    return base + static_cast<uint32_t>(layout.ring + stage * kStageBytes);
  };
  const auto columns_of = [&](int chunk) { return min(kChunkColumns, args.k - chunk * kChunkColumns); };

  if (warp == kConsumerWarps) {
    // The ring is filled at once, before the predecessor is done: W depends on nobody.
    if (lane == 0) {
      for (int i = 0; i < args.stages; ++i) {
        init_barrier(filled(i), 1);
        init_barrier(emptied(i), kConsumerWarps);
      }
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
    RingPosition at;
    bool shared_with_consumers = false;
    int ahead = args.stages;
    for (int tile = static_cast<int>(blockIdx.x); tile < args.tiles;
         tile += static_cast<int>(gridDim.x)) {
      const int64_t row = min(static_cast<int64_t>(tile) * kTileRows + lane, args.n - 1);
      const std::byte* const from = args.weight + row * args.row_bytes;
      for (int chunk = 0; chunk < args.chunks; ++chunk) {
        if (ahead > 0) {
          --ahead;
        } else {
          if (!shared_with_consumers) {
            __syncthreads();
            shared_with_consumers = true;
          }
          wait_for(emptied(at.stage), at.parity ^ 1);
        }
        const int bytes = columns_of(chunk) * 2;
        if (lane == 0) expect_bytes(filled(at.stage), kTileRows * bytes);
        __syncwarp();
        if (lane < kTileRows) {
          copy_to_shared(stage_at(at.stage) + static_cast<uint32_t>(lane * kRowPitch),
                         from + chunk * kChunkColumns * 2, bytes, filled(at.stage));
        }
        at.advance(args.stages);
      }
    }
    if (!shared_with_consumers) __syncthreads();
    let_successor_start();
    return;
  }

  let_successor_start();
  wait_for_predecessor();
  for (int token = 0; token < args.tokens; ++token) {
    for (int i = static_cast<int>(threadIdx.x); i < args.k / 8; i += kConsumers) {
      *reinterpret_cast<uint4*>(shared + layout.x + token * layout.x_pitch + i * 16) =
          args.x[token * args.x_stride + i];
    }
  }
  __syncthreads();

  const int g = lane / 4;
  const int t = lane % 4;
  const bool has_token = g < args.tokens;
  const uint32_t x_at =
      base + static_cast<uint32_t>(layout.x + g * layout.x_pitch + warp * kWarpColumns * 2 + t * 16);
  const auto w_at = static_cast<uint32_t>(g * kRowPitch + warp * kWarpColumns * 2 + t * 16);
  auto* const partial = reinterpret_cast<float*>(shared + layout.partial);
  const int partial_floats = args.tokens * kPartialPitch;  // of one warp

  RingPosition at;
  int count = 0;
  for (int tile = static_cast<int>(blockIdx.x); tile < args.tiles;
       tile += static_cast<int>(gridDim.x), ++count) {
    float even[4] = {};
    float odd[4] = {};
    for (int chunk = 0; chunk < args.chunks; ++chunk) {
      const bool has_columns = warp * kWarpColumns < columns_of(chunk);
      uint4 in[2] = {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
      if (has_columns && has_token) {
        const uint32_t from = x_at + static_cast<uint32_t>(chunk * kChunkColumns * 2);
        in[0] = load_shared(from);
        in[1] = load_shared(from + 64);
      }
      wait_for(filled(at.stage), at.parity);
      if (has_columns) {
        const uint32_t from = stage_at(at.stage) + w_at;
        const uint4 low[2] = {load_shared(from), load_shared(from + 64)};
        const uint4 high[2] = {load_shared(from + 8 * kRowPitch),
                               load_shared(from + 8 * kRowPitch + 64)};
        multiply_32_columns<T>(even, low[0], high[0], in[0]);
        multiply_32_columns<T>(odd, low[1], high[1], in[1]);
      }
      __syncwarp();
      if (lane == 0) arrive(emptied(at.stage));
      at.advance(args.stages);
    }
    // One warp adds up the shares of all while the others go on; the next tile's sums go to the other
    // buffer, and nobody comes back to this one before that warp has met the others again.
    float* const sums = partial + count % 2 * kConsumerWarps * partial_floats;
    float* const mine = sums + warp * partial_floats + 2 * t * kPartialPitch + g;
    if (2 * t < args.tokens) {
      mine[0] = even[0] + odd[0];
      mine[8] = even[2] + odd[2];
    }
    if (2 * t + 1 < args.tokens) {
      mine[kPartialPitch] = even[1] + odd[1];
      mine[kPartialPitch + 8] = even[3] + odd[3];
    }
    sync_consumers();
    if (warp == count % kConsumerWarps) {
      for (int i = lane; i < args.tokens * kTileRows; i += 32) {
        const int token = i / kTileRows;
        const int64_t row = static_cast<int64_t>(tile) * kTileRows + i % kTileRows;
        if (row >= args.n) continue;
        float total = 0.0F;
#pragma unroll
        for (int part = 0; part < kConsumerWarps; ++part) {
          total += sums[part * partial_floats + token * kPartialPitch + i % kTileRows];
        }
        static_cast<Out*>(args.y)[token * args.y_stride + row] = from_float<Out>(total);
      }
    }
  }
}

// Stages that leave room for a second block on the SM, or at least for a ring at all; 0: none.
int stages_for(const Layout& layout, int64_t wanted) {
  for (const int limit : {kHalfOfAnSm, kWholeSm}) {
    const int stages = (limit - layout.bytes(0)) / kStageBytes;
    const int useful = static_cast<int>(std::min<int64_t>({stages, kMaxStages, wanted}));
    if (stages >= kMinStages) return std::max(useful, 1);
  }
  return 0;
}

template <typename T, typename Out>
void launch(const SkinnyLinearArgs& args, cudaStream_t stream) {
  static const cudaError_t configured =
      cudaFuncSetAttribute(streamed_linear_kernel<T, Out>,
                           cudaFuncAttributeMaxDynamicSharedMemorySize, kWholeSm);
  static_cast<void>(configured);  // on failure the launch fails, and says so
  KernelArgs kernel{};
  kernel.weight = static_cast<const std::byte*>(args.weight);
  kernel.x = static_cast<const uint4*>(args.x);
  kernel.y = args.y;
  kernel.n = args.n;
  kernel.row_bytes = args.k * 2;
  kernel.x_stride = args.x_stride / 8;
  kernel.y_stride = args.y_stride;
  kernel.k = static_cast<int>(args.k);
  kernel.tokens = static_cast<int>(args.tokens);
  kernel.tiles = static_cast<int>((args.n + kTileRows - 1) / kTileRows);
  kernel.chunks = (kernel.k + kChunkColumns - 1) / kChunkColumns;
  const int blocks = std::min(kernel.tiles, args.num_sms);
  const Layout layout(kernel.k, kernel.tokens);
  const int64_t work = int64_t{(kernel.tiles + blocks - 1) / blocks} * kernel.chunks;
  kernel.stages = stages_for(layout, work);
  launch_chained(streamed_linear_kernel<T, Out>,
                 {dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                  static_cast<size_t>(layout.bytes(kernel.stages))},
                 stream, kernel);
}

}  // namespace

bool can_run_streamed_linear(const SkinnyLinearArgs& args) {
  return args.tokens <= kMaxTokens && args.k >= kChunkColumns / 2 && args.k <= (1 << 20) &&
         can_run_skinny_linear(args) &&
         stages_for(Layout(static_cast<int>(args.k), static_cast<int>(args.tokens)), kMaxStages) > 0;
}

void launch_streamed_linear(const SkinnyLinearArgs& args, cudaStream_t stream) {
  const bool wide = args.out_dtype == DType::kF32;
  if (args.dtype == DType::kBF16) {
    wide ? launch<__nv_bfloat16, float>(args, stream)
         : launch<__nv_bfloat16, __nv_bfloat16>(args, stream);
  } else {
    wide ? launch<__half, float>(args, stream) : launch<__half, __half>(args, stream);
  }
}

}  // namespace tenon
