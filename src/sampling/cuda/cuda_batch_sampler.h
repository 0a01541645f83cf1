// BatchSampler for logits in the memory of a CUDA device.
//
// Purpose:       the same tokens as RequestSampler draws from the same logits (draw.h), without the
//                host knowing them: penalty counts and last tokens stay on the device.
// Ownership:     borrows the device.
// Thread safety: the engine thread only.
#pragma once

#include <memory>

#include "base/status.h"
#include "sampling/batch_sampler.h"
#include "tensor/cuda/cuda_device.h"

namespace tenon {

// Takes all memory of the step loop now: most of it for penalty counts, two bytes a state and
// token. Errors: kResourceExhausted; kUnsupported for a vocabulary that the kernels cannot hold.
[[nodiscard]] Result<std::unique_ptr<BatchSampler>> make_cuda_batch_sampler(
    const BatchSamplerLimits& limits, CudaDevice* device);

}  // namespace tenon
