// Linear layers over packed weights: packing at load, division of a multiplication over threads.
//
// Ownership:     borrows the pool and the kernels; owns scratch for packed activations, which only
// grows. Thread safety: one thread at a time.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/weight_arena.h"
#include "kernels/ops.h"

namespace tenon::cpu {

class PackedWeight;

class PackedLinear {
 public:
  PackedLinear(ThreadPool* pool, const KernelTable* kernels) : pool_(pool), kernels_(kernels) {}

  // Requires: parts that passed check_weight_parts(). Errors: kResourceExhausted.
  Result<std::unique_ptr<LinearWeight>> make_weight(std::span<const WeightSource> parts,
                                                    bool exact);

  // y[t, n] = sum over k of x[t, k] * W[n, k]; y's rows are y_stride floats apart.
  void multiply(const LinearWeight& weight, const FloatRows& x, float* y, int64_t y_stride);

 private:
  struct Call;  // one multiplication
  void pack(const Call& call);
  void run_share(
      const Call& call, int64_t share, int64_t shares, int64_t token_begin, int64_t token_end);

  ThreadPool* pool_;
  const KernelTable* kernels_;
  WeightArena arena_;
  Buffer scratch_;  // packed activations, quantised then float
};

}  // namespace tenon::cpu
