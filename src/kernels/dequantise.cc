#include "kernels/dequantise.h"

#include <cstring>

#include "base/check.h"
#include "kernels/block_decode.h"

namespace tenon {
namespace {

template <typename Convert>
void convert_halves(const void* src, int64_t elements, float* dst, Convert convert) {
  const auto* bytes = static_cast<const uint8_t*>(src);
  for (int64_t i = 0; i < elements; ++i) {
    uint16_t bits;
    std::memcpy(&bits, bytes + 2 * i, sizeof(bits));
    dst[i] = convert(bits);
  }
}

}  // namespace

void dequantise(DType dtype, const void* src, int64_t elements, float* dst) {
  switch (dtype) {
    case DType::kF32: std::memcpy(dst, src, static_cast<size_t>(elements) * sizeof(float)); return;
    case DType::kF16: convert_halves(src, elements, dst, f16_to_f32); return;
    case DType::kBF16: convert_halves(src, elements, dst, bf16_to_f32); return;
    default: break;
  }
  TENON_CHECK(is_quantised(dtype));
  TENON_CHECK_EQ(elements % dtype_traits(dtype).block_elements, 0);
  const int zero = quant_zero(dtype);
  for (int64_t index = 0; index < elements / kGroupColumns; ++index) {
    QuantGroup group;
    decode_group(dtype, src, index, &group);
    float* out = dst + index * kGroupColumns;
    for (int i = 0; i < kGroupColumns; ++i) {
      out[i] = group.d[i / 16] * static_cast<float>(group.q[i] - zero) + group.m;
    }
  }
}

}  // namespace tenon
