#include "kernels/cpu/repack.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "kernels/dequantise.h"
#include "kernels/weight_source.h"

namespace tenon::cpu {
namespace {

constexpr int kChunks = kGroupColumns / 4;

// Where the words of one row and group go: line l of the group at lines[l * stride].
struct LineWriter {
  std::byte* row;
  int64_t stride;
  void put(int line, uint32_t word) const { std::memcpy(row + line * stride, &word, sizeof(word)); }
};

uint32_t swap_middle_bytes(uint32_t word) {
  return (word & 0xFF0000FFU) | ((word & 0x0000FF00U) << 8) | ((word & 0x00FF0000U) >> 8);
}

void put_quants(const QuantGroup& group, int bits, const LineWriter& lines) {
  uint32_t chunk[kChunks];
  std::memcpy(chunk, group.q, sizeof(chunk));
  for (uint32_t& c : chunk) c = swap_middle_bytes(c);
  if (bits == 8) {
    for (int c = 0; c < kChunks; ++c) lines.put(c, chunk[c] ^ 0x80808080U);  // q - 128
    return;
  }
  constexpr uint32_t kLow = 0x0F0F0F0FU;
  for (int j = 0; j < 4; ++j) lines.put(j, (chunk[j] & kLow) | ((chunk[j + 4] & kLow) << 4));
  if (bits == 5) {
    uint32_t high = 0;
    for (int c = 0; c < kChunks; ++c) high |= ((chunk[c] >> 4) & 0x01010101U) << c;
    lines.put(4, high);
  } else if (bits == 6) {
    for (int half = 0; half < 2; ++half) {
      uint32_t high = 0;
      for (int c = 0; c < 4; ++c) high |= ((chunk[4 * half + c] >> 4) & 0x03030303U) << (2 * c);
      lines.put(4 + half, high);
    }
  }
}

void pack_quant_row(const WeightSource& source,
                    PackedFormat format,
                    int64_t row,
                    int64_t lane,
                    int64_t panel_rows,
                    std::byte* panel) {
  const PackedTraits& traits = packed_traits(format);
  const std::byte* stored = weight_row(source, row);
  const int64_t scale_bytes = group_scale_bytes(traits, panel_rows);
  const int64_t quant_bytes = group_quant_bytes(traits, panel_rows);
  std::byte* quants = panel + panel_scale_bytes(traits, panel_rows, source.cols);
  for (int64_t g = 0; g < source.cols / kGroupColumns; ++g) {
    QuantGroup group;
    decode_group(source.dtype, stored, g, &group);
    put_quants(group, traits.bits, {quants + g * quant_bytes + 4 * lane, 4 * panel_rows});
    auto* scales = reinterpret_cast<uint16_t*>(panel + g * scale_bytes);
    for (int i = 0; i < traits.scales; ++i) scales[i * panel_rows + lane] = f32_to_f16(group.d[i]);
    if (traits.has_minimum) scales[traits.scales * panel_rows + lane] = f32_to_f16(group.m);
  }
}

template <typename T>
void transpose_rows(
    const std::byte* const* rows, int64_t count, int64_t cols, int64_t panel_rows, T* panel) {
  // Tiles of columns, so that the lines of the panel being written stay in the first cache level.
  constexpr int64_t kTile = 64;
  for (int64_t begin = 0; begin < cols; begin += kTile) {
    const int64_t end = std::min(cols, begin + kTile);
    for (int64_t lane = 0; lane < count; ++lane) {
      const std::byte* from = rows[lane];
      for (int64_t k = begin; k < end; ++k) {
        std::memcpy(panel + k * panel_rows + lane, from + k * static_cast<int64_t>(sizeof(T)),
                    sizeof(T));
      }
    }
  }
}

}  // namespace

PackedFormat packed_format(DType dtype, bool exact) {
  switch (dtype) {
    case DType::kF32: return PackedFormat::kF32;
    case DType::kF16: return PackedFormat::kF16;
    case DType::kBF16: return PackedFormat::kBF16;
    default: break;
  }
  TENON_CHECK(is_quantised(dtype));
  if (exact) return PackedFormat::kF32;
  switch (dtype) {
    case DType::kQ4_0: return PackedFormat::kQ4;
    case DType::kQ5_0: return PackedFormat::kQ5;
    case DType::kQ5_1:
    case DType::kQ5_K: return PackedFormat::kQ5M;
    case DType::kQ6_K: return PackedFormat::kQ6;
    case DType::kQ8_0: return PackedFormat::kQ8;
    default: return PackedFormat::kQ4M;  // Q4_1, Q4_K
  }
}

void pack_panel(const WeightSource& source,
                PackedFormat format,
                int64_t first_row,
                int64_t panel_rows,
                std::byte* panel) {
  const int64_t count = std::min(panel_rows, source.rows - first_row);
  if (packed_traits(format).quantised) {
    for (int64_t lane = 0; lane < count; ++lane) {
      pack_quant_row(source, format, first_row + lane, lane, panel_rows, panel);
    }
    return;
  }
  std::vector<const std::byte*> rows(static_cast<size_t>(count));
  for (int64_t lane = 0; lane < count; ++lane)
    rows[static_cast<size_t>(lane)] = weight_row(source, first_row + lane);
  if (format != PackedFormat::kF32) {
    transpose_rows(rows.data(), count, source.cols, panel_rows, reinterpret_cast<uint16_t*>(panel));
    return;
  }
  std::vector<float> values;
  if (source.dtype != DType::kF32) {
    values.resize(static_cast<size_t>(count * source.cols));
    for (int64_t lane = 0; lane < count; ++lane) {
      float* row = values.data() + lane * source.cols;
      dequantise(source.dtype, rows[static_cast<size_t>(lane)], source.cols, row);
      rows[static_cast<size_t>(lane)] = reinterpret_cast<const std::byte*>(row);
    }
  }
  transpose_rows(rows.data(), count, source.cols, panel_rows, reinterpret_cast<float*>(panel));
}

}  // namespace tenon::cpu
