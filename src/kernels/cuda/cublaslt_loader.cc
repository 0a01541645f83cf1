#include "kernels/cuda/cublaslt_loader.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include "base/check.h"

namespace tenon {
namespace {

// The major version whose headers this build has; later minor ones are compatible.
constexpr const char* kLibrary = "libcublasLt.so.13";

void* library() {
  static void* const handle = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  return handle;
}

template <typename Function>
Function* symbol(const char* name) {
  TENON_CHECK(library() != nullptr);
  void* const found = dlsym(library(), name);
  TENON_CHECK(found != nullptr);
  return reinterpret_cast<Function*>(found);
}

}  // namespace

Status load_cublaslt() {
  if (library() != nullptr) return ok_status();
  const char* why = dlerror();
  return unsupported(
      "cuBLAS 13 is needed on a GPU ({}); install it or add its folder to LD_LIBRARY_PATH",
      why != nullptr ? why : kLibrary);
}

}  // namespace tenon

// NAME(parameters) -> the function of that name in the library.
#define TENON_FORWARD(result, name, parameters, arguments)                 \
  extern "C" result CUBLASWINAPI name parameters {                         \
    static auto* const function = tenon::symbol<result parameters>(#name); \
    return function arguments;                                             \
  }

TENON_FORWARD(cublasStatus_t, cublasLtCreate, (cublasLtHandle_t * handle), (handle))
TENON_FORWARD(cublasStatus_t, cublasLtDestroy, (cublasLtHandle_t handle), (handle))
TENON_FORWARD(const char*, cublasLtGetStatusString, (cublasStatus_t status), (status))
TENON_FORWARD(
    cublasStatus_t,
    cublasLtMatmulDescInit_internal,
    (cublasLtMatmulDesc_t desc, size_t size, cublasComputeType_t compute, cudaDataType_t scale),
    (desc, size, compute, scale))
TENON_FORWARD(cublasStatus_t,
              cublasLtMatmulDescSetAttribute,
              (cublasLtMatmulDesc_t desc,
               cublasLtMatmulDescAttributes_t attribute,
               const void* value,
               size_t size),
              (desc, attribute, value, size))
TENON_FORWARD(cublasStatus_t,
              cublasLtMatrixLayoutInit_internal,
              (cublasLtMatrixLayout_t layout,
               size_t size,
               cudaDataType type,
               uint64_t rows,
               uint64_t cols,
               int64_t ld),
              (layout, size, type, rows, cols, ld))
TENON_FORWARD(cublasStatus_t,
              cublasLtMatmulPreferenceInit_internal,
              (cublasLtMatmulPreference_t preference, size_t size),
              (preference, size))
TENON_FORWARD(cublasStatus_t,
              cublasLtMatmulPreferenceSetAttribute,
              (cublasLtMatmulPreference_t preference,
               cublasLtMatmulPreferenceAttributes_t attribute,
               const void* value,
               size_t size),
              (preference, attribute, value, size))
TENON_FORWARD(cublasStatus_t,
              cublasLtMatmulAlgoGetHeuristic,
              (cublasLtHandle_t handle,
               cublasLtMatmulDesc_t operation,
               cublasLtMatrixLayout_t a,
               cublasLtMatrixLayout_t b,
               cublasLtMatrixLayout_t c,
               cublasLtMatrixLayout_t d,
               cublasLtMatmulPreference_t preference,
               int count,
               cublasLtMatmulHeuristicResult_t results[],
               int* returned),
              (handle, operation, a, b, c, d, preference, count, results, returned))
TENON_FORWARD(cublasStatus_t,
              cublasLtMatmul,
              (cublasLtHandle_t handle,
               cublasLtMatmulDesc_t operation,
               const void* alpha,
               const void* a,
               cublasLtMatrixLayout_t a_layout,
               const void* b,
               cublasLtMatrixLayout_t b_layout,
               const void* beta,
               const void* c,
               cublasLtMatrixLayout_t c_layout,
               void* d,
               cublasLtMatrixLayout_t d_layout,
               const cublasLtMatmulAlgo_t* algorithm,
               void* workspace,
               size_t workspace_bytes,
               cudaStream_t stream),
              (handle,
               operation,
               alpha,
               a,
               a_layout,
               b,
               b_layout,
               beta,
               c,
               c_layout,
               d,
               d_layout,
               algorithm,
               workspace,
               workspace_bytes,
               stream))
TENON_FORWARD(cublasStatus_t,
              cublasLtMatmulDescCreate,
              (cublasLtMatmulDesc_t * desc, cublasComputeType_t compute, cudaDataType_t scale),
              (desc, compute, scale))
TENON_FORWARD(cublasStatus_t, cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t desc), (desc))
TENON_FORWARD(
    cublasStatus_t,
    cublasLtMatrixLayoutCreate,
    (cublasLtMatrixLayout_t * layout, cudaDataType type, uint64_t rows, uint64_t cols, int64_t ld),
    (layout, type, rows, cols, ld))
TENON_FORWARD(cublasStatus_t,
              cublasLtMatrixLayoutDestroy,
              (cublasLtMatrixLayout_t layout),
              (layout))
TENON_FORWARD(cublasStatus_t,
              cublasLtMatmulPreferenceCreate,
              (cublasLtMatmulPreference_t * preference),
              (preference))
TENON_FORWARD(cublasStatus_t,
              cublasLtMatmulPreferenceDestroy,
              (cublasLtMatmulPreference_t preference),
              (preference))
