// The kernels of one instruction set behind function pointers. Each table is filled by the one unit
// that is compiled for that instruction set; nothing else may contain its instructions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kernels/cpu/packed_format.h"

namespace tenon::cpu {

// y[tokens, panels * panel rows] = activations * panels^T.
struct LinearTask {
  const std::byte* panels = nullptr;  // panel 0 of the matrix
  int64_t panel_bytes = 0;
  int64_t panel_begin = 0, panel_end = 0;  // panels to compute
  int64_t rows = 0;                        // of the matrix; the last panel may be partly empty
  int64_t cols = 0;
  const void* activations = nullptr;  // from pack_quantised or pack_float, `tokens` tokens
  int64_t tokens = 0;
  float* y = nullptr;  // row 0 of the matrix, token 0
  int64_t y_stride = 0;
};

// Heads of one token; cos and sin are the table's rows of its position.
struct RopeTask {
  float* x = nullptr;
  int64_t heads = 0, head_dim = 0, rotary_dim = 0;
  bool interleaved = false;
  const float* cos = nullptr;
  const float* sin = nullptr;
};

// A matrix of activations: rows of `cols` floats, `stride` floats apart.
struct FloatRows {
  const float* data = nullptr;
  int64_t stride = 0;
  int64_t rows = 0;
  int64_t cols = 0;
};

// The columns a call shall pack: whole groups for quantised activations.
struct ColumnRange {
  int64_t begin = 0;
  int64_t end = 0;
};

struct KernelTable {
  const char* isa;
  int quant_panel_rows;
  int float_panel_rows;

  // In order of PackedFormat. A row's result does not depend on the other rows of the task.
  void (*linear[kPackedFormatCount])(const LinearTask& task);
  // Both need the same `tokens` as the LinearTask that reads the result. A row that holds NaN,
  // infinity or nothing above 1e-30 in some group gets d = NaN, NaN and 0 there.
  void (*pack_quantised)(const FloatRows& x, const ColumnRange& columns, ActivationGroup* out);
  void (*pack_float)(const FloatRows& x, const ColumnRange& columns, float* out);

  void (*rms_norm)(const float* x, std::span<const float> weight, float eps, float* out);
  void (*add_rms_norm)(
      float* residual, const float* x, std::span<const float> weight, float eps, float* out);
  void (*rope)(const RopeTask& task);
  void (*silu_and_mul)(const float* gate, const float* up, std::span<float> out);
  float (*log_sum_exp)(std::span<const float> x);

  // For cpu/probe.h: loops of independent operations that return how many (a multiply-add is two)
  // were done, and one that only loads.
  double (*fma_loop)(int64_t iterations);
  double (*dot_loop)(int64_t iterations);
  void (*read_bytes)(std::span<const std::byte> bytes);
};

// Tokens of a task that is cut by tokens must start at multiples of this: every ISA's tile divides
// it.
constexpr int64_t kTokenAlignment = 24;
constexpr int64_t kMaxRotaryDim = 1024;

// Null when this build has no kernels for the instruction set (other architectures).
[[nodiscard]] const KernelTable* portable_kernels();
[[nodiscard]] const KernelTable* avx2_kernels();
[[nodiscard]] const KernelTable* avx512_kernels();

// The tables this CPU can run, slowest first.
[[nodiscard]] std::span<const KernelTable* const> available_kernels();
// Null when `isa` is not among them. "auto" is the last one.
[[nodiscard]] const KernelTable* find_kernels(std::string_view isa);

}  // namespace tenon::cpu
