#include "kernels/block_decode.h"

#include <cstring>

#include "base/check.h"

namespace tenon {
namespace {

constexpr int kSuperGroups = 8;  // groups in a 256-column super-block of the K formats

float read_f16(const uint8_t* bytes) {
  uint16_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return f16_to_f32(bits);
}

void set_scale(QuantGroup* group, float d, float m) {
  group->d[0] = d;
  group->d[1] = d;
  group->m = m;
}

// Columns i and i + 16 share a byte.
void decode_nibbles(const uint8_t* packed, QuantGroup* group) {
  for (int i = 0; i < 16; ++i) {
    group->q[i] = packed[i] & 0x0F;
    group->q[i + 16] = packed[i] >> 4;
  }
}

// Q5_0, Q5_1: bit i of a little-endian 32-bit word is the fifth bit of column i.
void add_fifth_bits(const uint8_t* bits, QuantGroup* group) {
  uint32_t word;
  std::memcpy(&word, bits, sizeof(word));
  for (int i = 0; i < kGroupColumns; ++i) {
    group->q[i] = static_cast<uint8_t>(group->q[i] | (((word >> i) & 1U) << 4));
  }
}

// Q4_K, Q5_K: eight 6-bit scales and eight 6-bit minima in 12 bytes.
void k_scale(const uint8_t* packed, int64_t group, int* scale, int* minimum) {
  if (group < 4) {
    *scale = packed[group] & 63;
    *minimum = packed[group + 4] & 63;
  } else {
    *scale = (packed[group + 4] & 0x0F) | ((packed[group - 4] >> 6) << 4);
    *minimum = (packed[group + 4] >> 4) | ((packed[group] >> 6) << 4);
  }
}

// Q4_K, Q5_K: groups 2j and 2j + 1 are the low and high nibbles of the same 32 bytes.
void decode_k_nibbles(const uint8_t* packed, int64_t group, QuantGroup* out) {
  const uint8_t* bytes = packed + group / 2 * kGroupColumns;
  const int shift = group % 2 == 0 ? 0 : 4;
  for (int i = 0; i < kGroupColumns; ++i) out->q[i] = (bytes[i] >> shift) & 0x0F;
}

void set_k_scale(const uint8_t* block, int64_t group, QuantGroup* out) {
  int scale;
  int minimum;
  k_scale(block + 4, group, &scale, &minimum);
  set_scale(out, read_f16(block) * static_cast<float>(scale),
            -(read_f16(block + 2) * static_cast<float>(minimum)));
}

void decode_q6_k(const uint8_t* block, int64_t group, QuantGroup* out) {
  // 128 columns share 64 bytes of low nibbles and 32 bytes of high bit pairs.
  const int64_t half = group / 4;
  const int64_t quarter = group % 4;
  const uint8_t* low = block + half * 64 + quarter % 2 * kGroupColumns;
  const uint8_t* high = block + 128 + half * 32;
  const int low_shift = quarter < 2 ? 0 : 4;
  const int high_shift = static_cast<int>(quarter) * 2;
  for (int i = 0; i < kGroupColumns; ++i) {
    out->q[i] =
        static_cast<uint8_t>(((low[i] >> low_shift) & 0x0F) | (((high[i] >> high_shift) & 3) << 4));
  }
  const auto* scales = reinterpret_cast<const int8_t*>(block + 192) + group * 2;
  const float d = read_f16(block + 208);
  out->d[0] = d * static_cast<float>(scales[0]);
  out->d[1] = d * static_cast<float>(scales[1]);
  out->m = 0.0F;
}

}  // namespace

int quant_zero(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0: return 8;
    case DType::kQ5_0: return 16;
    case DType::kQ6_K: return 32;
    case DType::kQ8_0: return 128;
    default: return 0;
  }
}

void decode_group(DType dtype, const void* row, int64_t index, QuantGroup* group) {
  const DTypeTraits& traits = dtype_traits(dtype);
  const int64_t groups_per_block = traits.block_elements / kGroupColumns;
  const int64_t inner = groups_per_block == kSuperGroups ? index % kSuperGroups : 0;
  const uint8_t* block =
      static_cast<const uint8_t*>(row) + index / groups_per_block * traits.block_bytes;
  switch (dtype) {
    case DType::kQ4_0:
      decode_nibbles(block + 2, group);
      set_scale(group, read_f16(block), 0.0F);
      return;
    case DType::kQ4_1:
      decode_nibbles(block + 4, group);
      set_scale(group, read_f16(block), read_f16(block + 2));
      return;
    case DType::kQ5_0:
      decode_nibbles(block + 6, group);
      add_fifth_bits(block + 2, group);
      set_scale(group, read_f16(block), 0.0F);
      return;
    case DType::kQ5_1:
      decode_nibbles(block + 8, group);
      add_fifth_bits(block + 4, group);
      set_scale(group, read_f16(block), read_f16(block + 2));
      return;
    case DType::kQ8_0:
      for (int i = 0; i < kGroupColumns; ++i) group->q[i] = block[2 + i] ^ 0x80;  // int8 + 128
      set_scale(group, read_f16(block), 0.0F);
      return;
    case DType::kQ4_K:
      decode_k_nibbles(block + 16, inner, group);
      set_k_scale(block, inner, group);
      return;
    case DType::kQ5_K:
      decode_k_nibbles(block + 48, inner, group);
      for (int i = 0; i < kGroupColumns; ++i) {
        const int fifth = (block[16 + i] >> inner) & 1;
        group->q[i] = static_cast<uint8_t>(group->q[i] | (fifth << 4));
      }
      set_k_scale(block, inner, group);
      return;
    case DType::kQ6_K: decode_q6_k(block, inner, group); return;
    default: TENON_CHECK(is_quantised(dtype));
  }
}

}  // namespace tenon
