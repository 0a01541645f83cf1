// How weights and activations lie in memory for the CPU kernels.
//
// A weight is cut into panels of `panel_rows` output rows, so that one vector register holds the
// same column of all rows of a panel and every dot product runs down its own lane.
//
// Quantised panel of R rows and G = cols / 32 groups of columns, value = d * (q - zero) + m:
// - G scales: d as f16[R] (Q6: f16[2][R], one for each 16 columns), then m as f16[R] in formats
//   with a minimum; padded to 64 bytes.
// - G quants: lines of 4R bytes, where bytes 4r..4r+3 belong to row r. "Chunk" c is columns
//   4c..4c+3 of the group, in the order 0, 2, 1, 3: its even bytes and its odd bytes, widened to
//   16 bits, are two neighbouring columns each. 4 bits: line j holds chunk j in its low and chunk
//   j + 4 in its high nibbles. 5 bits: one more line, whose bit c is the fifth bit of chunk c.
//   6 bits: two more lines of bit pairs, chunk c in line c / 4 at bit 2 (c % 4). 8 bits: line c is
//   chunk c, signed.
// Float panel: value[k][R].
#pragma once

#include <cstdint>

#include "kernels/block_decode.h"

namespace tenon::cpu {

enum class PackedFormat : uint8_t { kF32, kF16, kBF16, kQ4, kQ4M, kQ5, kQ5M, kQ6, kQ8 };
constexpr int kPackedFormatCount = 9;

struct PackedTraits {
  const char* name;
  bool quantised;
  int bits;          // of one quant, or of one float
  int zero;          // the q that stands for 0
  bool has_minimum;  // m is stored
  int scales;        // d values a row and group
};

constexpr PackedTraits kPackedTraits[kPackedFormatCount] = {
    {"f32", false, 32, 0, false, 0},  {"f16", false, 16, 0, false, 0},
    {"bf16", false, 16, 0, false, 0}, {"q4", true, 4, 8, false, 1},
    {"q4m", true, 4, 0, true, 1},     {"q5", true, 5, 16, false, 1},
    {"q5m", true, 5, 0, true, 1},     {"q6", true, 6, 32, false, 2},
    {"q8", true, 8, 0, false, 1},
};

constexpr const PackedTraits& packed_traits(PackedFormat format) {
  return kPackedTraits[static_cast<int>(format)];
}

// Bytes of the scales and quants of one group of a panel of `rows` rows.
constexpr int64_t group_scale_bytes(const PackedTraits& traits, int64_t rows) {
  return (traits.scales + (traits.has_minimum ? 1 : 0)) * rows * 2;
}
constexpr int64_t group_quant_bytes(const PackedTraits& traits, int64_t rows) {
  return rows * kGroupColumns * traits.bits / 8;
}
constexpr int64_t panel_scale_bytes(const PackedTraits& traits, int64_t rows, int64_t cols) {
  return (group_scale_bytes(traits, rows) * (cols / kGroupColumns) + 63) / 64 * 64;
}
constexpr int64_t panel_bytes(const PackedTraits& traits, int64_t rows, int64_t cols) {
  const int64_t bytes = traits.quantised
                            ? panel_scale_bytes(traits, rows, cols) +
                                  group_quant_bytes(traits, rows) * (cols / kGroupColumns)
                            : rows * cols * traits.bits / 8;
  return (bytes + 63) / 64 * 64;
}

// Largest |a| of quantised activations. 8 bits would not do: a small model's next token then
// differs from the one in float32 in 2 % of cases. Two planes of 7 bits (a = 128 * high + low, with
// |high| <= 127 and 0 <= low <= 127) hold this range for instruction sets without a 16-bit dot
// product, and dot products of a group with 8-bit weights stay below 2^27.
constexpr int kActivationMax = 127 * 128;

// 32 columns of one token, quantised: x = d * a. Tokens are laid out in tiles: a tile of M tokens
// starting at token t begins at record t * G and is ordered [group][token].
struct ActivationGroup {
  float d;
  float sum[3];  // d * (sum of a): all 32 columns, the first 16, the last 16
  int16_t a[kGroupColumns];
};
static_assert(sizeof(ActivationGroup) == 80);

}  // namespace tenon::cpu
