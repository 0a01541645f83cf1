// Checks every Ops applies to weights before it touches their data.
#pragma once

#include <span>

#include "base/status.h"
#include "kernels/ops.h"

namespace tenon {

// kInvalidArgument: no parts, empty or unequal shapes, rows that are not whole blocks, no data.
// kUnsupported: a dtype that holds no weights.
[[nodiscard]] Status check_weight_parts(std::span<const WeightSource> parts);

// Start of row `row` of a stored matrix.
[[nodiscard]] inline const std::byte* weight_row(const WeightSource& source, int64_t row) {
  return static_cast<const std::byte*>(source.data) + dtype_bytes(source.dtype, source.cols) * row;
}

}  // namespace tenon
