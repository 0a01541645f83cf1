// From a head size to the instantiation for its padded size; what the launches of the prefill
// kernel and of the prefix pass, which has its tiling, have in common.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "attention/backends/flash/prefill_config.h"

namespace tenon::flash {

// Whether the kernels can read pages of this kind at the head size.
[[nodiscard]] inline bool prefill_reads(const PrefillPages& pages, const PrefillShape& shape) {
  return !pages.swizzled || (shape.head_dim % 64 == 0 && shape.page_size % 8 == 0);
}

// launch.template operator()<padded size>(), or cudaErrorInvalidValue.
template <typename Launch>
cudaError_t with_padded_dim(int32_t head_dim, const Launch& launch) {
  switch (prefill_padded_dim(head_dim)) {
    case 64: return launch.template operator()<64>();
    case 96: return launch.template operator()<96>();
    case 128: return launch.template operator()<128>();
    case 192: return launch.template operator()<192>();
    case 256: return launch.template operator()<256>();
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace tenon::flash
