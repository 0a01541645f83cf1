// Conversion of stored weight rows to panels (packed_format.h).
#pragma once

#include "kernels/cpu/packed_format.h"
#include "kernels/ops.h"

namespace tenon::cpu {

// exact: quantised types become kF32. f16 and bf16 stay: widening them is exact.
[[nodiscard]] PackedFormat packed_format(DType dtype, bool exact);

// Writes the panel of rows [first_row, first_row + panel_rows); rows past the end are 0.
void pack_panel(const WeightSource& source,
                PackedFormat format,
                int64_t first_row,
                int64_t panel_rows,
                std::byte* panel);

}  // namespace tenon::cpu
