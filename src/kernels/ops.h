// The operator table: everything a model computes outside attention, for one device.
//
// Purpose:       models are written against Ops and never ask which device or instruction set runs.
// Ownership:     an Ops owns its scratch memory and borrows the thread pool. A LinearWeight owns
// its
//                (repacked) weights, or keeps the mapped file alive that holds them.
// Thread safety: one thread at a time (the engine's); work is spread over the pool inside each
// call. Memory:        tensors and spans are memory of device(); on a GPU calls enqueue and return.
// Shapes:        T tokens, K input features, N output features.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "kernels/rope.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

namespace tenon {

// A weight matrix as stored in a file: `rows` output features of `cols` input features, row-major,
// each row a whole number of blocks of `dtype`.
struct WeightSource {
  std::string name;
  DType dtype = DType::kF32;
  const void* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  std::shared_ptr<const MappedFile>
      file;  // keeps `data` alive; may be null for memory that outlives Ops
  // Instead of data: uniform in +-limit, a function of seed and index alone (dummy weights).
  struct Random {
    uint64_t seed = 0;
    float limit = 0;
  };
  std::optional<Random> random{};
};

// Opaque, device-specific form of one weight matrix [N, K]. Made by Ops::make_linear.
class LinearWeight {
 public:
  virtual ~LinearWeight() = default;
  [[nodiscard]] int64_t rows() const { return rows_; }    // N
  [[nodiscard]] int64_t cols() const { return cols_; }    // K
  [[nodiscard]] int64_t bytes() const { return bytes_; }  // memory held, file pages included
  [[nodiscard]] const std::string& format() const { return format_; }  // "q4x16", "f32", for logs

 protected:
  int64_t rows_ = 0, cols_ = 0, bytes_ = 0;
  std::string format_;
};

// Opaque, device-specific form of an embedding table [V, K]. Made by Ops::make_embedding.
class EmbeddingTable {
 public:
  virtual ~EmbeddingTable() = default;
  [[nodiscard]] int64_t rows() const { return rows_; }    // V
  [[nodiscard]] int64_t cols() const { return cols_; }    // K
  [[nodiscard]] int64_t bytes() const { return bytes_; }  // beyond what a tied LinearWeight holds

 protected:
  int64_t rows_ = 0, cols_ = 0, bytes_ = 0;
};

// What linear() will be asked for.
struct LinearUse {
  const LinearWeight* weight = nullptr;
  DType out_dtype = DType::kF32;
  int32_t max_tokens = 0;
};

class Ops {
 public:
  virtual ~Ops() = default;
  [[nodiscard]] virtual Device& device() const = 0;
  [[nodiscard]] virtual std::string_view isa() const = 0;  // "portable", "avx2", "sm_90a"
  // Of every activation but the residual stream and logits, which are f32 everywhere.
  [[nodiscard]] virtual DType activation_dtype() const { return DType::kF32; }
  // True if make_linear() and make_embedding() fill sources that have `random` and no data.
  [[nodiscard]] virtual bool makes_random_weights() const { return false; }

  // Takes all work memory for these uses of linear() and chooses algorithms for them, so that no
  // later call allocates. Call once, after the last make_linear().
  virtual Status prepare(std::span<const LinearUse> uses) { return ok_status(); }

  // Stacks `parts` (same cols) into one weight: fused q/k/v or gate/up projections. Parts may have
  // different dtypes. exact: dequantise to f32. Repacking runs on the pool; the file pages of a
  // repacked part are dropped from memory. Errors: kUnsupported (dtype), kInvalidArgument (shapes).
  virtual Result<std::unique_ptr<LinearWeight>> make_linear(std::span<const WeightSource> parts,
                                                            bool exact) = 0;

  // y[T, N] = x[T, K] * W^T. x: activation dtype, y: activation dtype or f32; rows may be strided.
  virtual void linear(const LinearWeight& weight, const TensorView& x, const TensorView& y) = 0;

  // A table for embedding(). tied: the LM head if it was made of the same source; its memory is
  // then shared where the device can, and it must outlive the table.
  virtual Result<std::unique_ptr<EmbeddingTable>> make_embedding(const WeightSource& source,
                                                                 const LinearWeight* tied) = 0;

  // out[T, K] (f32) = rows `ids` of `table`. Requires: ids in range.
  virtual void embedding(const EmbeddingTable& table,
                         std::span<const int32_t> ids,
                         const TensorView& out) = 0;

  // out = x / sqrt(mean(x^2) + eps) * weight, per row (arXiv:1910.07467). x: f32; out: activation
  // dtype. out may be x if both are f32.
  virtual void rms_norm(const TensorView& x,
                        std::span<const float> weight,
                        float eps,
                        const TensorView& out) = 0;
  // residual (f32) += x; out = rms_norm(residual).
  virtual void add_rms_norm(const TensorView& residual,
                            const TensorView& x,
                            std::span<const float> weight,
                            float eps,
                            const TensorView& out) = 0;

  // Rotates the first rotary_dim features of each head of x[T, heads * head_dim] in place, by the
  // position of its row (RoFormer, arXiv:2104.09864). Requires: positions within the table.
  virtual void rope(const TensorView& x,
                    std::span<const int32_t> positions,
                    int32_t head_dim,
                    const RopeView& table) = 0;

  // out[T, F] = silu(g) * u with gate_up[T, 2F] = [g | u].
  virtual void silu_and_mul(const TensorView& gate_up, const TensorView& out) = 0;

  // out[i] = x[rows[i]].
  virtual void gather_rows(const TensorView& x,
                           std::span<const int32_t> rows,
                           const TensorView& out) = 0;

  // Writes log(sum(exp(logits[t]))) per row of logits[T, V] to out[T].
  virtual void log_sum_exp(const TensorView& logits, std::span<float> out) = 0;
};

// isa: "auto", "portable", "avx2", "avx512". kInvalidArgument for an unknown name, kUnsupported
// when this CPU lacks it (the message lists what it has).
[[nodiscard]] Result<std::unique_ptr<Ops>> make_cpu_ops(ThreadPool* pool,
                                                        std::string_view isa,
                                                        Device* device = nullptr);

// The operators of `device`, for `dtype` activations (kF16 or kBF16 on a GPU; kF32 on the CPU).
// Defined beside the list of backends (src/backends.cc).
struct OpsOptions {
  Device* device = nullptr;    // borrowed
  ThreadPool* pool = nullptr;  // borrowed
  std::string_view cpu_isa = "auto";
  DType activation_dtype = DType::kF32;
};
[[nodiscard]] Result<std::unique_ptr<Ops>> make_ops(const OpsOptions& options);

// The scalar oracle: double accumulation, weights always dequantised, no threads.
[[nodiscard]] std::unique_ptr<Ops> make_reference_ops();

}  // namespace tenon
