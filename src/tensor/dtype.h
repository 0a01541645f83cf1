// Element types. Quantised types are stored in blocks along the innermost dimension, with GGUF's
// layout (github.com/ggml-org/ggml, docs/gguf.md and ggml-common.h give the formats).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tenon {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kI32,
  kI8,
  kU8,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kF8E4M3,  // 4 exponent, 3 mantissa bits, no infinity, largest 448 (OCP OFP8)
};

struct DTypeTraits {
  std::string_view name;   // "F32", "Q4_1", ... (GGUF's spelling)
  int32_t block_elements;  // 1 for plain types
  int32_t block_bytes;
};

[[nodiscard]] const DTypeTraits& dtype_traits(DType dtype);
[[nodiscard]] inline bool is_quantised(DType dtype) {
  return dtype_traits(dtype).block_elements > 1;
}
// Bytes of `elements` elements. Requires: a whole number of blocks.
[[nodiscard]] int64_t dtype_bytes(DType dtype, int64_t elements);

// IEEE half and bfloat16 conversions, round to nearest even, NaN kept.
[[nodiscard]] float f16_to_f32(uint16_t bits);
[[nodiscard]] uint16_t f32_to_f16(float value);
[[nodiscard]] float bf16_to_f32(uint16_t bits);
[[nodiscard]] uint16_t f32_to_bf16(float value);

// OCP 8-bit Floating Point Specification (OFP8) 1.0, E4M3: bias 7, S.1111.111 is NaN. Round to
// nearest even; what is larger than 448, infinity too, becomes 448 (saturating mode).
inline constexpr float kF8E4M3Max = 448.0F;
[[nodiscard]] float f8e4m3_to_f32(uint8_t bits);
[[nodiscard]] uint8_t f32_to_f8e4m3(float value);

}  // namespace tenon
