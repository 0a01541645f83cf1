// Times the elementwise kernels on a GPU for the 8B shape: microseconds and the share of the read
// ceiling that the bytes they must move reach. Few tokens show their latency, many their bandwidth.
#include <cstdio>
#include <numeric>
#include <vector>

#include "attention/cuda/kv_write_kernel.h"
#include "bench/cuda/graph_timer.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/probe_kernels.h"
#include "tensor/cuda/cuda_device.h"

namespace tenon::bench {
namespace {

constexpr int64_t kHidden = 4096;
constexpr int64_t kInner = 14336;
constexpr int64_t kQHeads = 32, kKvHeads = 8, kHeadDim = 128;
constexpr int64_t kQkv = (kQHeads + 2 * kKvHeads) * kHeadDim;
constexpr int64_t kMaxTokens = 8192;
constexpr int kCalls = 20;

Buffer take(CudaDevice* device, int64_t bytes) {
  auto buffer = device->allocate(static_cast<size_t>(bytes));
  TENON_CHECK(buffer.ok());
  return std::move(buffer).value();
}

void run(CudaDevice* device) {
  GraphTimer timer(device);
  const Buffer pool = take(device, int64_t{4} << 30);
  launch_random_fill({pool.data(), DType::kBF16, static_cast<int64_t>(pool.size()) / 2, 1, 1.0F},
                     device->stream());
  const double read_us = timer.microseconds(3, [&](int) {
    launch_read(pool.data(), pool.size() / kReadChunk, pool.as<unsigned>(), 4 * device->num_sms(),
                device->stream());
  });
  const double rate = static_cast<double>(pool.size()) / read_us;  // bytes per microsecond
  std::printf("read ceiling %.3f TB/s\n", rate * 1e-6);

  // Each call works on other memory, as far as 2 GiB of it go round.
  const auto at = [&](int call, int64_t bytes_of_a_call) {
    const int64_t slots = (int64_t{2} << 30) / bytes_of_a_call;
    return pool.data() + (call % slots) * bytes_of_a_call;
  };
  std::byte* const second_half = pool.data() + (int64_t{2} << 30);
  const Buffer table = take(device, kMaxTokens * kHeadDim * 4);
  const Buffer weight = take(device, kHidden * 4);
  std::vector<int64_t> slots(kMaxTokens);
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int64_t>(i * 7 % kMaxTokens);
  std::vector<int32_t> host_positions(kMaxTokens);
  std::iota(host_positions.begin(), host_positions.end(), 0);
  const auto positions = to_device<int32_t>(*device, host_positions);
  const auto gpu_slots = to_device<int64_t>(*device, slots);
  TENON_CHECK(positions.ok() && gpu_slots.ok());
  const auto row = [&](const char* name, int64_t tokens, int64_t bytes, auto call) {
    const double us = timer.microseconds(kCalls, call);
    std::printf("%-14s T=%-5ld %9.2f us  %5.1f %%\n", name, static_cast<long>(tokens), us,
                100.0 * static_cast<double>(bytes) / rate / us);
  };
  for (const int64_t tokens : {1, 64, 256, 2048, 8192}) {
    const int64_t norm_bytes = tokens * kHidden * (4 + 4 + 2 + 2);
    row("add_rms_norm", tokens, norm_bytes, [&](int i) {
      RmsNormArgs args;
      args.residual = {at(i, tokens * kHidden * 4), DType::kF32, kHidden};
      args.x = {second_half, DType::kBF16, kHidden};
      args.out = {second_half + tokens * kHidden * 2, DType::kBF16, kHidden};
      args.weight = weight.as<float>();
      args.eps = 1e-5F;
      args.rows = tokens;
      args.cols = kHidden;
      launch_rms_norm(args, device->stream());
    });
    row("silu_and_mul", tokens, tokens * kInner * 6, [&](int i) {
      launch_silu_and_mul({{at(i, tokens * kInner * 4), DType::kBF16, 2 * kInner},
                           {second_half, DType::kBF16, kInner},
                           tokens,
                           kInner},
                          device->stream());
    });
    row("rope+write_kv", tokens, tokens * 2 * (2 * (kQHeads + kKvHeads) + 3 * kKvHeads) * kHeadDim,
        [&](int i) {
          KvWriteArgs args;
          std::byte* const qkv = at(i, tokens * kQkv * 2);
          args.q = qkv;
          args.k = qkv + kQHeads * kHeadDim * 2;
          args.v = qkv + (kQHeads + kKvHeads) * kHeadDim * 2;
          args.q_stride = args.k_stride = args.v_stride = kQkv;
          args.slots = gpu_slots->as<int64_t>();
          args.positions = positions->as<int32_t>();
          args.cos = args.sin = table.as<float>();
          args.cache = second_half;
          args.block_stride = 16 * kKvHeads * 2 * kHeadDim;
          args.token_stride = kKvHeads * 2 * kHeadDim;
          args.head_stride = 2 * kHeadDim;
          args.v_offset = kHeadDim;
          args.tokens = static_cast<int32_t>(tokens);
          args.q_heads = kQHeads;
          args.kv_heads = kKvHeads;
          args.head_dim_k = args.head_dim_v = args.rotary_dim = kHeadDim;
          args.block_size = 16;
          launch_kv_write(args, device->stream());
        });
    row("gather f32", tokens, tokens * kHidden * 8, [&](int i) {
      launch_gather_rows({{at(i, tokens * kHidden * 4), DType::kF32, kHidden},
                          {second_half, DType::kF32, kHidden},
                          positions->as<int32_t>(),
                          tokens,
                          kHidden},
                         device->stream());
    });
    if (tokens <= 256) {
      row("log_sum_exp", tokens, tokens * 128256 * 4, [&](int i) {
        launch_log_sum_exp({reinterpret_cast<float*>(at(i, tokens * 128256 * 4)), 128256, tokens,
                            128256, reinterpret_cast<float*>(second_half)},
                           device->stream());
      });
    }
  }
  TENON_CHECK(device->synchronize().ok());
}

}  // namespace
}  // namespace tenon::bench

int main() {
  auto device = tenon::CudaDevice::create();
  if (!device.ok()) {
    std::fprintf(stderr, "%s\n", device.status().message().c_str());
    return 1;
  }
  tenon::bench::run(device->get());
  return 0;
}
