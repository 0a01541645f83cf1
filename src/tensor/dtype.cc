#include "tensor/dtype.h"

#include <array>
#include <bit>

#include "base/check.h"

namespace tenon {
namespace {

constexpr std::array<DTypeTraits, 15> kTraits = {{
    {"F32", 1, 4},
    {"F16", 1, 2},
    {"BF16", 1, 2},
    {"I32", 1, 4},
    {"I8", 1, 1},
    {"U8", 1, 1},
    {"Q4_0", 32, 18},
    {"Q4_1", 32, 20},
    {"Q5_0", 32, 22},
    {"Q5_1", 32, 24},
    {"Q8_0", 32, 34},
    {"Q4_K", 256, 144},
    {"Q5_K", 256, 176},
    {"Q6_K", 256, 210},
    {"F8_E4M3", 1, 1},
}};

}  // namespace

const DTypeTraits& dtype_traits(DType dtype) {
  return kTraits[static_cast<size_t>(dtype)];
}

int64_t dtype_bytes(DType dtype, int64_t elements) {
  const DTypeTraits& traits = dtype_traits(dtype);
  TENON_CHECK_EQ(elements % traits.block_elements, 0);
  return elements / traits.block_elements * traits.block_bytes;
}

float f16_to_f32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1FU;
  uint32_t mantissa = bits & 0x3FFU;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  if (mantissa == 0) return std::bit_cast<float>(sign);
  uint32_t shift = 0;  // subnormal: normalise
  while ((mantissa & 0x400U) == 0) {
    mantissa <<= 1;
    ++shift;
  }
  return std::bit_cast<float>(sign | ((113 - shift) << 23) | ((mantissa & 0x3FFU) << 13));
}

uint16_t f32_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return sign | 0x7E00U;   // NaN
  if (magnitude >= 0x477FF000U) return sign | 0x7C00U;  // rounds to 65536 or more: infinity
  if (magnitude < 0x38800000U) {                        // below 2^-14: subnormal half
    if (magnitude < 0x33000000U) return sign;  // below 2^-25: zero (2^-25 itself ties to even)
    const uint32_t exponent = magnitude >> 23;
    const uint32_t mantissa = (magnitude & 0x7FFFFFU) | 0x800000U;
    const uint32_t shift = 126 - exponent;  // 14..24
    const uint32_t half = 1U << (shift - 1);
    const uint32_t rest = mantissa & ((1U << shift) - 1);
    uint32_t result = mantissa >> shift;
    if (rest > half || (rest == half && (result & 1U) != 0)) ++result;
    return static_cast<uint16_t>(sign | result);
  }
  uint32_t rounded = magnitude + 0xFFFU + ((magnitude >> 13) & 1U);
  rounded -= 112U << 23;
  return static_cast<uint16_t>(sign | (rounded >> 13));
}

float bf16_to_f32(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<uint16_t>((bits >> 16) | 0x40U);
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

float f8e4m3_to_f32(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80U) << 24;
  const uint32_t exponent = (bits >> 3) & 0xFU;
  const uint32_t mantissa = bits & 0x7U;
  if (exponent == 0xF && mantissa == 0x7) return std::bit_cast<float>(sign | 0x7FC00000U);
  if (exponent == 0) {  // zero and subnormals: multiples of 2^-9
    const float value = static_cast<float>(mantissa) * 0x1p-9F;
    return sign == 0 ? value : -value;
  }
  return std::bit_cast<float>(sign | ((exponent + 120) << 23) | (mantissa << 20));
}

uint8_t f32_to_f8e4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80U);
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return sign | 0x7FU;   // NaN
  if (magnitude >= 0x43E00000U) return sign | 0x7EU;  // 448 and more
  if (magnitude < 0x3C800000U) {                      // below 2^-6: multiples of 2^-9
    // Adding 2^14 leaves 2^-9 as the last bit of the mantissa, rounded to nearest even.
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14F;
    return sign | static_cast<uint8_t>(std::bit_cast<uint32_t>(shifted) & 0xFU);
  }
  // Values up to 464 would round to 448, which was taken above.
  const uint32_t rounded = magnitude + 0x7FFFFU + ((magnitude >> 20) & 1U) - (120U << 23);
  return sign | static_cast<uint8_t>(rounded >> 20);
}

}  // namespace tenon
