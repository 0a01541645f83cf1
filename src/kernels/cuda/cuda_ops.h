// The operator table of a Hopper GPU: cuBLASLt and own kernels, all enqueued on the device's
// stream.
//
// Ownership:     borrows device and pool; weights and tables own their device memory.
// Thread safety: the engine thread only.
#pragma once

#include <memory>

#include "base/status.h"
#include "base/thread_pool.h"
#include "kernels/ops.h"
#include "tensor/cuda/cuda_device.h"

namespace tenon {

// Errors: kUnsupported (an activation dtype other than bf16 and f16), kInternal (cuBLASLt).
[[nodiscard]] Result<std::unique_ptr<Ops>> make_cuda_ops(CudaDevice* device,
                                                         ThreadPool* pool,
                                                         DType activation_dtype);

}  // namespace tenon
