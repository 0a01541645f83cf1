// cos and sin of every position for one model. Thread safe: a plain function.
#pragma once

#include "kernels/ops.h"
#include "models/config.h"

namespace tenon {

// For positions [0, max_position). Angles are rounded to f32 as the reference implementation does,
// since that is what models were trained with.
[[nodiscard]] RopeTable make_rope_table(const ModelConfig& config, int32_t max_position);

}  // namespace tenon
