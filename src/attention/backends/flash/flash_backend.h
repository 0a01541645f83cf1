// The `flash` backend: Tenon's own attention kernels for Hopper over a paged cache.
//
// Two kernels share a step. Rows with few query tokens are streamed by the decode kernel
// (decode.h), in packed tiles of 8, 16 or 64 query rows; rows with many go to the prefill kernel
// (prefill.h), which reads the keys of rows without earlier context from the step's activations.
// When a step has both, they run side by side on disjoint multiprocessors.
// docs/design/flash_backend.md tells why.
#pragma once

#include <memory>

#include "attention/backend.h"

namespace tenon {

std::unique_ptr<AttentionBackend> make_flash_attention(const BackendContext& context);

}  // namespace tenon
