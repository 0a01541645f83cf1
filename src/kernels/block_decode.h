// Decoding of quantised blocks to integers, the one place that knows their bit layouts.
//
// A stored row is read as groups of 32 columns with value = d * (q - zero) + m, where d may differ
// between the two halves of a group. Used to dequantise and to repack.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace tenon {

constexpr int kGroupColumns = 32;

struct QuantGroup {
  uint8_t q[kGroupColumns];
  float d[2];  // columns [0, 16) and [16, 32)
  float m;     // 0 for formats without a minimum
};

// The q that stands for 0 in formats without a minimum; 0 in formats with one.
[[nodiscard]] int quant_zero(DType dtype);

// Decodes group `index` (columns [32 * index, 32 * index + 32)) of a stored row. Requires:
// quantised dtype.
void decode_group(DType dtype, const void* row, int64_t index, QuantGroup* group);

}  // namespace tenon
