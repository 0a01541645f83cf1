// The oracle: one loop a row, head and key, double accumulation, no tricks and no threads. Every
// other backend is held against it.
#pragma once

#include <memory>

#include "attention/backend.h"

namespace tenon {

[[nodiscard]] std::unique_ptr<AttentionBackend> make_reference_attention(
    const BackendContext& context);

}  // namespace tenon
