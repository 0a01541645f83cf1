// Fills a KernelTable from the templates; included by the one unit of each instruction set.
#pragma once

#include "kernels/cpu/elementwise_kernels.h"
#include "kernels/cpu/linear_kernels.h"
#include "kernels/cpu/probe_kernels.h"

namespace tenon::cpu {

template <typename V>
constexpr KernelTable make_kernel_table() {
  using Linear = LinearKernels<V>;
  using Elementwise = ElementwiseKernels<V>;
  using Probe = ProbeKernels<V>;
  return {
      .isa = V::kName,
      .quant_panel_rows = Linear::kQuantRows,
      .float_panel_rows = Linear::kFloatRows,
      .linear = {&Linear::template float_linear<PackedFormat::kF32>,
                 &Linear::template float_linear<PackedFormat::kF16>,
                 &Linear::template float_linear<PackedFormat::kBF16>,
                 &Linear::template quant_linear<PackedFormat::kQ4>,
                 &Linear::template quant_linear<PackedFormat::kQ4M>,
                 &Linear::template quant_linear<PackedFormat::kQ5>,
                 &Linear::template quant_linear<PackedFormat::kQ5M>,
                 &Linear::template quant_linear<PackedFormat::kQ6>,
                 &Linear::template quant_linear<PackedFormat::kQ8>},
      .pack_quantised = &Linear::pack_quantised,
      .pack_float = &Linear::pack_float,
      .rms_norm = &Elementwise::rms_norm,
      .add_rms_norm = &Elementwise::add_rms_norm,
      .rope = &Elementwise::rope,
      .silu_and_mul = &Elementwise::silu_and_mul,
      .log_sum_exp = &Elementwise::log_sum_exp,
      .fma_loop = &Probe::fma_loop,
      .dot_loop = &Probe::dot_loop,
      .read_bytes = &Probe::read_bytes,
  };
}

}  // namespace tenon::cpu
