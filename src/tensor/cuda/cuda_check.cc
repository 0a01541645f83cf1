#include "tensor/cuda/cuda_check.h"

namespace tenon {

Status cuda_status(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return ok_status();
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();  // this one is not sticky: the next call must not report it again
    return resource_exhausted("CUDA: {}: out of device memory", what);
  }
  return internal_error("CUDA: {}: {} ({})", what, cudaGetErrorString(error),
                        cudaGetErrorName(error));
}

}  // namespace tenon
