// The FlashInfer backend: FlashInfer's kernels for Hopper, launched by plans of Tenon's own.
//
//   decode rows                 FA2 template with the heads of a group packed (tensor cores), or
//   the
//                               CUDA-core decode kernel
//   prefill rows                FA3 (wgmma, TMA) over this step's own K and V, which are contiguous
//   rows with earlier keys      FA3 over pages, or the FA2 template where rows are short
//
// In a step that has both, decode rows and prefill rows run side by side. BackendContext::split
// asks for the two simpler ways.
//
// FA3 over contiguous K and V loads whole tiles, whose tail belongs to the next row: masked with
// weight 0, but a NaN there would reach the row in front of it. Cells of the pages never do.
#pragma once

#include <memory>

#include "attention/backend.h"

namespace tenon {

[[nodiscard]] std::unique_ptr<AttentionBackend> make_flashinfer_attention(
    const BackendContext& context);

}  // namespace tenon
