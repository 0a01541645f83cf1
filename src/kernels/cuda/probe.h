// Ceilings of a GPU: bandwidth of reading, rate of a large matrix product.
// Thread safety: the engine thread only.
#pragma once

#include "base/status.h"
#include "kernels/ceilings.h"
#include "tensor/cuda/cuda_device.h"

namespace tenon {

// Reads 8 GB (or half of what is free) again and again; multiplies bf16 matrices of random numbers
// of 8192 x 8192 with the fastest algorithm that cuBLASLt proposes, for about a second.
[[nodiscard]] Result<Ceilings> probe_cuda(CudaDevice& device);

}  // namespace tenon
