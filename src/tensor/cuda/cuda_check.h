// The one place that turns CUDA errors into Status.
// Thread safety: plain functions.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "base/status.h"

namespace tenon {

// Ok for cudaSuccess; kResourceExhausted for lack of memory; otherwise kInternal:
// "CUDA: <what>: <the runtime's words> (cudaErrorName)".
[[nodiscard]] Status cuda_status(cudaError_t error, std::string_view what);

}  // namespace tenon

#define TENON_RETURN_IF_CUDA_ERROR(call) TENON_RETURN_IF_ERROR(::tenon::cuda_status((call), #call))
