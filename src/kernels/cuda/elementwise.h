// Launchers of the kernels that are limited by memory or by their launch: one pass over the data,
// 16-byte accesses, sums in f32.
//
// Pointers are device memory, strides count elements and are multiples of 8, as are column counts
// and head sizes; data and rows are aligned to 16 bytes. Kernels start while their predecessor ends
// (chained_launch.cuh). Launch errors are the caller's to fetch (cudaGetLastError).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "tensor/dtype.h"

namespace tenon {

// Rows of one width.
struct DeviceRows {
  void* data = nullptr;
  DType dtype = DType::kBF16;
  int64_t stride = 0;
};

// residual (f32) += x, unless x.data is null; out = residual / sqrt(mean(residual^2) + eps) *
// weight.
struct RmsNormArgs {
  DeviceRows residual, x, out;
  const float* weight = nullptr;  // [cols]
  float eps = 0.0F;
  int64_t rows = 0, cols = 0;
};
inline constexpr int64_t kMaxNormColumns = 32768;
void launch_rms_norm(const RmsNormArgs& args, cudaStream_t stream);

// out[rows, cols] = silu(gate) * up with gate_up[rows, 2 * cols] = [gate | up].
struct SiluArgs {
  DeviceRows gate_up, out;
  int64_t rows = 0, cols = 0;
};
void launch_silu_and_mul(const SiluArgs& args, cudaStream_t stream);

// out[i] = x[ids[i]]; between 16-bit floats and f32 the values are converted. For gather_rows and
// for embedding.
struct GatherArgs {
  DeviceRows x, out;
  const int32_t* ids = nullptr;
  int64_t rows = 0, cols = 0;
};
void launch_gather_rows(const GatherArgs& args, cudaStream_t stream);

// out[row] = log(sum(exp(logits[row]))).
struct LogSumExpArgs {
  const float* logits = nullptr;
  int64_t stride = 0;
  int64_t rows = 0, cols = 0;
  float* out = nullptr;
};
void launch_log_sum_exp(const LogSumExpArgs& args, cudaStream_t stream);

// In place on x[rows, heads * head_dim]. Any alignment; fast where everything is a multiple of 8.
struct RopeArgs {
  DeviceRows x;
  const int32_t* positions = nullptr;
  const float* cos = nullptr;  // [positions, rotary_dim / 2]
  const float* sin = nullptr;
  int64_t rows = 0;
  int32_t heads = 0, head_dim = 0, rotary_dim = 0;
  bool interleaved = false;
};
void launch_rope(const RopeArgs& args, cudaStream_t stream);

// to[i] = the i-th value of the SplitMix64 sequence from `seed`, scaled to +-limit: the values the
// CPU makes of the same seed.
struct RandomArgs {
  void* to = nullptr;
  DType dtype = DType::kBF16;
  int64_t elements = 0;
  uint64_t seed = 0;
  float limit = 0.0F;
};
void launch_random_fill(const RandomArgs& args, cudaStream_t stream);

}  // namespace tenon
