// The CPU backend: blocked online softmax with SIMD chosen at run time, the query heads of a KV
// group together in one pass over K and V, long rows split over threads. One row's output has the
// same bits alone or in any batch, decoded or prefilled, on one thread or many (see kernels.h).
#pragma once

#include <memory>

#include "attention/backend.h"

namespace tenon {

[[nodiscard]] std::unique_ptr<AttentionBackend> make_cpu_attention(const BackendContext& context);

}  // namespace tenon
