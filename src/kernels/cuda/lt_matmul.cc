#include "kernels/cuda/lt_matmul.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/cublaslt_loader.h"
#include "tensor/cuda/cuda_check.h"

namespace tenon {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // what the library asks for on Hopper
constexpr uint32_t kAlignment = 16;                   // rows are whole 16-byte vectors
// Where the library's guesses are measured: for a few dozen to a few hundred tokens its first guess
// can be some percent off; for thousands it rarely is, for small matrices it does not matter, and
// own kernels take most products of fewer tokens. Trying costs time at the start.
constexpr int64_t kLeastMeasured = 12;
constexpr int64_t kMostMeasured = 512;
constexpr int64_t kLeastMeasuredWeights = int64_t{4} << 20;
constexpr int kCandidates = 8;
constexpr int kRepeats = 5;
// Only a clear gain decides against the first guess, so that starts agree on the choice.
constexpr double kClearGain = 0.96;

Status lt_status(cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return ok_status();
  return internal_error("cuBLASLt: {}: {}", what, cublasLtGetStatusString(status));
}

cudaDataType_t cuda_type(DType dtype) {
  switch (dtype) {
    case DType::kBF16: return CUDA_R_16BF;
    case DType::kF16: return CUDA_R_16F;
    default: TENON_CHECK(dtype == DType::kF32); return CUDA_R_32F;
  }
}

// The library's descriptions of one product, in its column-major terms: y^T[N, T] = W * x^T with
// W^T[K, N] transposed. They are plain structs: nothing is allocated.
struct Descriptions {
  cublasLtMatmulDescOpaque_t operation{};
  cublasLtMatrixLayoutOpaque_t weight{}, x{}, y{};

  Descriptions(const LtShape& shape, int64_t tokens, int64_t x_stride, int64_t y_stride) {
    const cudaDataType_t in = cuda_type(shape.dtype);
    const auto n = static_cast<uint64_t>(shape.n);
    const auto k = static_cast<uint64_t>(shape.k);
    const auto t = static_cast<uint64_t>(tokens);
    status = cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const cublasOperation_t transposed = CUBLAS_OP_T;
    keep(cublasLtMatmulDescSetAttribute(&operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                        sizeof(transposed)));
    keep(cublasLtMatrixLayoutInit(&weight, in, k, n, shape.k));
    keep(cublasLtMatrixLayoutInit(&x, in, k, t, x_stride));
    keep(cublasLtMatrixLayoutInit(&y, cuda_type(shape.out_dtype), n, t, y_stride));
  }
  void keep(cublasStatus_t next) {
    if (status == CUBLAS_STATUS_SUCCESS) status = next;
  }
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
};

// Ends of the ranges of T that share an algorithm: steps of at most 1.5.
std::vector<int64_t> token_buckets(int64_t max_tokens) {
  std::vector<int64_t> ends;
  for (int64_t power = 1; power < max_tokens; power *= 2) {
    ends.push_back(power);
    if (power >= 2 && power + power / 2 < max_tokens) ends.push_back(power + power / 2);
  }
  ends.push_back(max_tokens);
  return ends;
}

}  // namespace

Result<std::unique_ptr<LtMatmul>> LtMatmul::create(CudaDevice* device) {
  TENON_RETURN_IF_ERROR(load_cublaslt());
  std::unique_ptr<LtMatmul> made(new LtMatmul(device));
  TENON_RETURN_IF_ERROR(lt_status(cublasLtCreate(&made->handle_), "create"));
  TENON_ASSIGN_OR_RETURN(made->workspace_, device->allocate(kWorkspaceBytes));
  return made;
}

LtMatmul::~LtMatmul() {
  if (handle_ != nullptr) (void)cublasLtDestroy(handle_);
}

LtMatmul::Entry* LtMatmul::find(const LtShape& shape) {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.shape == shape; });
  return found == entries_.end() ? nullptr : &*found;
}

std::vector<cublasLtMatmulHeuristicResult_t> LtMatmul::candidates(const LtShape& shape,
                                                                  int64_t tokens,
                                                                  int count) const {
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(count));
  Descriptions what(shape, tokens, shape.k, shape.n);
  cublasLtMatmulPreferenceOpaque_t preference{};
  what.keep(cublasLtMatmulPreferenceInit(&preference));
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    what.keep(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value)));
  };
  const uint64_t workspace = workspace_.size();
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, kAlignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, kAlignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, kAlignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, kAlignment);
  int returned = 0;
  if (what.status == CUBLAS_STATUS_SUCCESS) {
    what.keep(cublasLtMatmulAlgoGetHeuristic(handle_, &what.operation, &what.weight, &what.x,
                                             &what.y, &what.y, &preference, count, found.data(),
                                             &returned));
  }
  found.resize(what.status == CUBLAS_STATUS_SUCCESS ? static_cast<size_t>(returned) : 0);
  std::erase_if(found, [](const cublasLtMatmulHeuristicResult_t& result) {
    return result.state != CUBLAS_STATUS_SUCCESS;
  });
  return found;
}

Status LtMatmul::prepare(const LtShape& shape,
                         std::span<const void* const> weights,
                         int64_t max_tokens) {
  TENON_CHECK_GT(max_tokens, 0);
  TENON_CHECK(!weights.empty());
  Entry* entry = find(shape);
  if (entry != nullptr && entry->choices.back().max_tokens >= max_tokens) return ok_status();
  TENON_ASSIGN_OR_RETURN(
      const Buffer x,
      device_->allocate(static_cast<size_t>(dtype_bytes(shape.dtype, max_tokens * shape.k))));
  TENON_ASSIGN_OR_RETURN(
      const Buffer y,
      device_->allocate(static_cast<size_t>(dtype_bytes(shape.out_dtype, max_tokens * shape.n))));
  // Small numbers instead of zeros, on which products run faster than on anything else.
  constexpr int kSmall = 0x3C;
  TENON_RETURN_IF_CUDA_ERROR(cudaMemsetAsync(x.data(), kSmall, x.size(), device_->stream()));
  Entry fresh{shape, {}};
  for (const int64_t tokens : token_buckets(max_tokens)) {
    const bool measured = tokens >= kLeastMeasured && tokens <= kMostMeasured &&
                          shape.n * shape.k >= kLeastMeasuredWeights;
    const auto found = candidates(shape, tokens, measured ? kCandidates : 1);
    if (found.empty()) {
      return unsupported("cuBLASLt has no algorithm for {} x {} x {} ({} to {})", tokens, shape.n,
                         shape.k, dtype_traits(shape.dtype).name,
                         dtype_traits(shape.out_dtype).name);
    }
    TENON_ASSIGN_OR_RETURN(
        const cublasLtMatmulAlgo_t algorithm,
        fastest(shape, found, weights, TensorView::dense(x.data(), shape.dtype, {tokens, shape.k}),
                TensorView::dense(y.data(), shape.out_dtype, {tokens, shape.n})));
    fresh.choices.push_back({tokens, algorithm});
  }
  TENON_RETURN_IF_ERROR(device_->synchronize());  // x and y go
  if (entry != nullptr) {
    *entry = std::move(fresh);
  } else {
    entries_.push_back(std::move(fresh));
  }
  return ok_status();
}

Result<cublasLtMatmulAlgo_t> LtMatmul::fastest(
    const LtShape& shape,
    std::span<const cublasLtMatmulHeuristicResult_t> candidates,
    std::span<const void* const> weights,
    const TensorView& x,
    const TensorView& y) {
  size_t next = 0;
  const auto run_once = [&](const cublasLtMatmulAlgo_t& algorithm) {
    run_with(shape, algorithm, weights[next], x, y);
    next = (next + 1) % weights.size();
  };
  run_once(candidates[0].algo);  // kernels are loaded when they first run
  if (candidates.size() == 1) return candidates[0].algo;
  size_t best = 0;
  double best_seconds = 0;
  const auto timer = device_->make_timer();
  for (size_t i = 0; i < candidates.size(); ++i) {
    run_once(candidates[i].algo);
    timer->start();
    for (int repeat = 0; repeat < kRepeats; ++repeat) run_once(candidates[i].algo);
    timer->stop();
    TENON_RETURN_IF_ERROR(device_->synchronize());
    const double seconds = timer->seconds();
    // The rest of the order is the library's.
    if (i == 0 || seconds < (best == 0 ? kClearGain : 1.0) * best_seconds) {
      best = i;
      best_seconds = seconds;
    }
  }
  return candidates[best].algo;
}

void LtMatmul::run(const LtShape& shape,
                   const void* weight,
                   const TensorView& x,
                   const TensorView& y) {
  const Entry* entry = find(shape);
  TENON_CHECK(entry != nullptr);
  const auto choice = std::lower_bound(
      entry->choices.begin(), entry->choices.end(), x.rows(),
      [](const Choice& candidate, int64_t tokens) { return candidate.max_tokens < tokens; });
  TENON_CHECK(choice != entry->choices.end());
  run_with(shape, choice->algorithm, weight, x, y);
}

void LtMatmul::run_with(const LtShape& shape,
                        const cublasLtMatmulAlgo_t& algorithm,
                        const void* weight,
                        const TensorView& x,
                        const TensorView& y) {
  Descriptions what(shape, x.rows(), x.stride[0], y.stride[0]);
  const float one = 1.0F;
  const float zero = 0.0F;
  if (what.status == CUBLAS_STATUS_SUCCESS) {
    what.keep(cublasLtMatmul(handle_, &what.operation, &one, weight, &what.weight, x.data, &what.x,
                             &zero, y.data, &what.y, y.data, &what.y, &algorithm, workspace_.data(),
                             workspace_.size(), device_->stream()));
  }
  if (what.status != CUBLAS_STATUS_SUCCESS) {
    const cudaError_t launch = cudaGetLastError();
    device_->note(launch != cudaSuccess ? launch : cudaErrorUnknown, "a matrix product");
  }
}

}  // namespace tenon
