// y[T, N] = x[T, K] * W[N, K]^T by cuBLASLt, with an algorithm found beforehand for every shape of
// weight and range of T.
//
// Ownership:     owns the library handle and its workspace; borrows the device.
// Thread safety: the engine thread only.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "tensor/cuda/cuda_device.h"
#include "tensor/tensor.h"

namespace tenon {

// What a matrix product is chosen for.
struct LtShape {
  int64_t n = 0, k = 0;
  DType dtype = DType::kBF16;      // of W and x: bf16 or f16
  DType out_dtype = DType::kBF16;  // dtype, or f32
  bool operator==(const LtShape&) const = default;
};

class LtMatmul {
 public:
  // Errors: kInternal (the library), kResourceExhausted (its workspace).
  static Result<std::unique_ptr<LtMatmul>> create(CudaDevice* device);
  ~LtMatmul();
  LtMatmul(const LtMatmul&) = delete;
  LtMatmul& operator=(const LtMatmul&) = delete;

  // Chooses algorithms of `shape` for up to max_tokens tokens and loads their kernels: where it
  // pays (some tokens, large matrices) by measuring the library's best guesses on `weights`
  // (matrices of that shape) in turn, else its first guess. Does nothing for a shape that has been
  // prepared for as many tokens. Errors: kUnsupported when the library has no algorithm,
  // kResourceExhausted.
  Status prepare(const LtShape& shape, std::span<const void* const> weights, int64_t max_tokens);

  // Enqueues the product. Requires: a prepared shape and number of tokens; rows aligned to 16 bytes
  // if they were so in prepare() (x and y dense).
  void run(const LtShape& shape, const void* weight, const TensorView& x, const TensorView& y);

  // For measurements: the `count` best algorithms by the library's own estimate.
  std::vector<cublasLtMatmulHeuristicResult_t> candidates(const LtShape& shape,
                                                          int64_t tokens,
                                                          int count) const;
  void run_with(const LtShape& shape,
                const cublasLtMatmulAlgo_t& algorithm,
                const void* weight,
                const TensorView& x,
                const TensorView& y);

 private:
  struct Choice {
    int64_t max_tokens = 0;
    cublasLtMatmulAlgo_t algorithm{};
  };
  struct Entry {
    LtShape shape;
    std::vector<Choice> choices;  // by rising max_tokens
  };
  explicit LtMatmul(CudaDevice* device) : device_(device) {}
  Entry* find(const LtShape& shape);
  // Of `candidates` the one to take for `tokens` tokens.
  Result<cublasLtMatmulAlgo_t> fastest(const LtShape& shape,
                                       std::span<const cublasLtMatmulHeuristicResult_t> candidates,
                                       std::span<const void* const> weights,
                                       const TensorView& x,
                                       const TensorView& y);

  CudaDevice* device_;
  cublasLtHandle_t handle_ = nullptr;
  Buffer workspace_;
  std::vector<Entry> entries_;
};

}  // namespace tenon
