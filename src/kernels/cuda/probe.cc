#include "kernels/cuda/probe.h"

#include <cublasLt.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

#include "kernels/cuda/cublaslt_loader.h"
#include "kernels/cuda/probe_kernels.h"
#include "tensor/cuda/cuda_check.h"

namespace tenon {
namespace {

constexpr size_t kReadBytes = size_t{8} << 30;
constexpr int64_t kSize = 8192;  // of the matrices
constexpr size_t kWorkspace = size_t{64} << 20;
constexpr double kSustainedSeconds = 1.0;

class Timer {
 public:
  explicit Timer(CudaDevice& device) : device_(device) {
    device_.note(cudaEventCreate(&start_), "probe");
    device_.note(cudaEventCreate(&stop_), "probe");
  }
  ~Timer() {
    (void)cudaEventDestroy(start_);
    (void)cudaEventDestroy(stop_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  // Seconds that `enqueue` takes on the device.
  double measure(const std::function<void()>& enqueue) {
    device_.note(cudaEventRecord(start_, device_.stream()), "probe");
    enqueue();
    device_.note(cudaEventRecord(stop_, device_.stream()), "probe");
    device_.note(cudaEventSynchronize(stop_), "probe");
    float milliseconds = 0;
    device_.note(cudaEventElapsedTime(&milliseconds, start_, stop_), "probe");
    return 1e-3 * milliseconds;
  }

 private:
  CudaDevice& device_;
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Result<double> read_rate(CudaDevice& device) {
  const size_t wanted = std::min(kReadBytes, static_cast<size_t>(device.available_bytes()) / 2);
  const size_t chunks = wanted / kReadChunk;
  TENON_ASSIGN_OR_RETURN(const Buffer data,
                         device.allocate(chunks * kReadChunk + sizeof(unsigned)));
  auto* sink = reinterpret_cast<unsigned*>(data.data() + chunks * kReadChunk);
  Timer timer(device);
  std::vector<double> seconds;
  for (const int blocks_per_sm : {2, 4}) {
    std::vector<double> samples;
    for (int i = 0; i < 9; ++i) {
      samples.push_back(timer.measure([&] {
        launch_read(data.data(), chunks, sink, device.num_sms() * blocks_per_sm, device.stream());
        device.note(cudaGetLastError(), "probe");
      }));
    }
    seconds.push_back(median(samples));
  }
  TENON_RETURN_IF_ERROR(device.synchronize());
  return static_cast<double>(chunks * kReadChunk) /
         *std::min_element(seconds.begin(), seconds.end());
}

Status lt_status(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return ok_status();
  return internal_error("cuBLASLt: {}: {}", what, cublasLtGetStatusString(status));
}

template <typename T>
using Handle = std::unique_ptr<std::remove_pointer_t<T>, cublasStatus_t (*)(T)>;

Result<double> product_rate(CudaDevice& device) {
  constexpr size_t kElements = static_cast<size_t>(kSize * kSize);
  TENON_ASSIGN_OR_RETURN(const Buffer a, device.allocate(kElements * 2));
  TENON_ASSIGN_OR_RETURN(const Buffer b, device.allocate(kElements * 2));
  TENON_ASSIGN_OR_RETURN(const Buffer c, device.allocate(kElements * 2));
  TENON_ASSIGN_OR_RETURN(const Buffer workspace, device.allocate(kWorkspace));
  // A product of zeros would run faster.
  launch_fill_bf16(a.data(), kElements, 1, device.stream());
  launch_fill_bf16(b.data(), kElements, 2, device.stream());
  device.note(cudaGetLastError(), "probe");

  cublasLtHandle_t lt_raw = nullptr;
  TENON_RETURN_IF_ERROR(load_cublaslt());
  TENON_RETURN_IF_ERROR(lt_status(cublasLtCreate(&lt_raw), "create"));
  const Handle<cublasLtHandle_t> lt(lt_raw, cublasLtDestroy);
  cublasLtMatmulDesc_t product_raw = nullptr;
  TENON_RETURN_IF_ERROR(lt_status(
      cublasLtMatmulDescCreate(&product_raw, CUBLAS_COMPUTE_32F, CUDA_R_32F), "descriptor"));
  const Handle<cublasLtMatmulDesc_t> product(product_raw, cublasLtMatmulDescDestroy);
  // C = A^T B, as linear layers do it: both operands are read along their rows.
  const cublasOperation_t transpose = CUBLAS_OP_T;
  TENON_RETURN_IF_ERROR(
      lt_status(cublasLtMatmulDescSetAttribute(product.get(), CUBLASLT_MATMUL_DESC_TRANSA,
                                               &transpose, sizeof(transpose)),
                "descriptor"));
  cublasLtMatrixLayout_t layout_raw = nullptr;
  TENON_RETURN_IF_ERROR(lt_status(
      cublasLtMatrixLayoutCreate(&layout_raw, CUDA_R_16BF, kSize, kSize, kSize), "layout"));
  const Handle<cublasLtMatrixLayout_t> layout(layout_raw, cublasLtMatrixLayoutDestroy);
  cublasLtMatmulPreference_t preference_raw = nullptr;
  TENON_RETURN_IF_ERROR(lt_status(cublasLtMatmulPreferenceCreate(&preference_raw), "preference"));
  const Handle<cublasLtMatmulPreference_t> preference(preference_raw,
                                                      cublasLtMatmulPreferenceDestroy);
  const size_t workspace_bytes = kWorkspace;
  TENON_RETURN_IF_ERROR(lt_status(cublasLtMatmulPreferenceSetAttribute(
                                      preference.get(), CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                      &workspace_bytes, sizeof(workspace_bytes)),
                                  "preference"));
  std::vector<cublasLtMatmulHeuristicResult_t> choices(16);
  int found = 0;
  TENON_RETURN_IF_ERROR(lt_status(
      cublasLtMatmulAlgoGetHeuristic(lt.get(), product.get(), layout.get(), layout.get(),
                                     layout.get(), layout.get(), preference.get(),
                                     static_cast<int>(choices.size()), choices.data(), &found),
      "algorithms"));
  const float one = 1;
  const float zero = 0;
  Status failure;
  const auto multiply = [&](const cublasLtMatmulAlgo_t& algorithm) {
    const Status status = lt_status(
        cublasLtMatmul(lt.get(), product.get(), &one, a.data(), layout.get(), b.data(),
                       layout.get(), &zero, c.data(), layout.get(), c.data(), layout.get(),
                       &algorithm, workspace.data(), kWorkspace, device.stream()),
        "product");
    if (!status.ok()) failure = status;
  };
  Timer timer(device);
  const cublasLtMatmulAlgo_t* best = nullptr;
  double best_seconds = 0;
  for (int i = 0; i < found; ++i) {
    multiply(choices[static_cast<size_t>(i)].algo);
    const double seconds = timer.measure([&] {
      for (int j = 0; j < 3; ++j) multiply(choices[static_cast<size_t>(i)].algo);
    });
    if (best == nullptr || seconds < best_seconds) {
      best = &choices[static_cast<size_t>(i)].algo;
      best_seconds = seconds;
    }
  }
  if (best == nullptr) return internal_error("cuBLASLt: no algorithm for {}^3", kSize);
  // The later half counts: by then power has found its level.
  std::vector<double> samples;
  constexpr int kAtOnce = 10;
  for (double total = 0; total < kSustainedSeconds;) {
    samples.push_back(timer.measure([&] {
      for (int i = 0; i < kAtOnce; ++i) multiply(*best);
    }));
    total += samples.back();
    TENON_RETURN_IF_ERROR(device.status());
    TENON_RETURN_IF_ERROR(failure);
  }
  samples.erase(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2));
  return 2.0 * kSize * kSize * kSize * kAtOnce / median(samples);
}

}  // namespace

Result<Ceilings> probe_cuda(CudaDevice& device) {
  Ceilings ceilings;
  TENON_ASSIGN_OR_RETURN(ceilings.read_bytes_per_second, read_rate(device));
  TENON_ASSIGN_OR_RETURN(ceilings.flops_per_second, product_rate(device));
  ceilings.flops_name = "cuBLASLt bf16 8192^3";
  return ceilings;
}

}  // namespace tenon
