// Conversion of stored weight rows to f32. Scalar and obvious: it is the definition of every
// format.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace tenon {

// dst[0, elements) = the values of `elements` stored elements. Requires: whole blocks; dtype is a
// float or quantised type.
void dequantise(DType dtype, const void* src, int64_t elements, float* dst);

}  // namespace tenon
