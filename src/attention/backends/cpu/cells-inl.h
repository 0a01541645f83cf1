// KV cells as f32 vectors: load and store of every KV type, for the instruction set that
// foreach_target.h is at. Included by kernels.cc only.
#if defined(TENON_ATTENTION_CPU_CELLS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TENON_ATTENTION_CPU_CELLS_INL_H
#undef TENON_ATTENTION_CPU_CELLS_INL_H
#else
#define TENON_ATTENTION_CPU_CELLS_INL_H
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "attention/backends/cpu/kernels.h"
#include "tensor/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace tenon::cpu_attention {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kLanes = HWY_LANES(float);
static_assert(kDimPadding % kLanes == 0);
using F32 = hn::FixedTag<float, kLanes>;
using U32 = hn::FixedTag<uint32_t, kLanes>;
using I32 = hn::FixedTag<int32_t, kLanes>;
using U16 = hn::FixedTag<uint16_t, kLanes>;
using I16 = hn::FixedTag<int16_t, kLanes>;
using I8 = hn::FixedTag<int8_t, kLanes>;
using U8 = hn::FixedTag<uint8_t, kLanes>;
using F16 = hn::FixedTag<hwy::float16_t, kLanes>;
using V = hn::Vec<F32>;
constexpr int32_t pad(int32_t dim) {
  return (dim + kDimPadding - 1) / kDimPadding * kDimPadding;
}

template <DType kType>
struct Cell;

template <>
struct Cell<DType::kF32> {
  using Type = float;
  static HWY_INLINE V load(const float* src) { return hn::LoadU(F32(), src); }
  static HWY_INLINE void store(V value, float* dst) { hn::StoreU(value, F32(), dst); }
};

template <>
struct Cell<DType::kF16> {
  using Type = uint16_t;
  static HWY_INLINE V load(const uint16_t* src) {
    if constexpr (kLanes == 1) {
      return hn::Set(F32(), f16_to_f32(*src));
    } else {
      return hn::PromoteTo(F32(), hn::BitCast(F16(), hn::LoadU(U16(), src)));
    }
  }
  static HWY_INLINE void store(V value, uint16_t* dst) {
    if constexpr (kLanes == 1) {
      *dst = f32_to_f16(hn::GetLane(value));
    } else {
      hn::StoreU(hn::BitCast(U16(), hn::DemoteTo(F16(), value)), U16(), dst);
    }
  }
};

template <>
struct Cell<DType::kBF16> {
  using Type = uint16_t;
  static HWY_INLINE V load(const uint16_t* src) {
    return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), hn::LoadU(U16(), src))));
  }
  static HWY_INLINE void store(V value, uint16_t* dst) {
    // Round to nearest even by hand: the low half plus half an ulp carries into the high half.
    const U32 d;
    const auto bits = hn::BitCast(d, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(d, 0x7FFF)), odd));
    const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(d, 0x40));
    const auto chosen = hn::IfThenElse(hn::RebindMask(d, hn::IsNaN(value)), quiet, rounded);
    hn::StoreU(hn::DemoteTo(U16(), hn::BitCast(I32(), chosen)), U16(), dst);
  }
};

template <>
struct Cell<DType::kF8E4M3> {
  using Type = uint8_t;
  // Four exponent and three mantissa bits in the places of an f16's, which has a bias of 15 instead
  // of 7: the value divided by kF8Factor. Subnormals come out right, too.
  static HWY_INLINE V load(const uint8_t* src) {
    if constexpr (kLanes == 1) {
      return hn::Set(F32(), f8e4m3_to_f32(*src) / kF8Factor);
    } else {
      const I16 d;
      // The sign is extended to bits 15 and 14 of the shifted value; it belongs into the former.
      const auto wide = hn::PromoteTo(d, hn::BitCast(I8(), hn::LoadU(U8(), src)));
      const auto bits = hn::And(hn::ShiftLeft<7>(wide), hn::Set(d, static_cast<int16_t>(0xBFFF)));
      return hn::PromoteTo(F32(), hn::BitCast(F16(), bits));
    }
  }
  // As f32_to_f8e4m3().
  static HWY_INLINE void store(V value, uint8_t* dst) {
    const U32 d;
    const auto bits = hn::BitCast(d, value);
    const auto sign = hn::And(hn::ShiftRight<24>(bits), hn::Set(d, 0x80));
    const auto magnitude = hn::And(bits, hn::Set(d, 0x7FFFFFFF));
    const auto odd = hn::And(hn::ShiftRight<20>(magnitude), hn::Set(d, 1));
    const auto rounded = hn::ShiftRight<20>(
        hn::Sub(hn::Add(hn::Add(magnitude, hn::Set(d, 0x7FFFF)), odd), hn::Set(d, 120U << 23)));
    const V absolute = hn::BitCast(F32(), magnitude);
    const auto small =
        hn::And(hn::BitCast(d, hn::Add(absolute, hn::Set(F32(), 0x1p14F))), hn::Set(d, 0xF));
    const auto is_small = hn::RebindMask(d, hn::Lt(absolute, hn::Set(F32(), 0x1p-6F)));
    const auto is_large = hn::RebindMask(d, hn::Ge(absolute, hn::Set(F32(), kF8E4M3Max)));
    const auto finite =
        hn::IfThenElse(is_large, hn::Set(d, 0x7E), hn::IfThenElse(is_small, small, rounded));
    const auto chosen =
        hn::IfThenElse(hn::RebindMask(d, hn::IsNaN(value)), hn::Set(d, 0x7F), finite);
    hn::StoreU(hn::DemoteTo(U8(), hn::BitCast(I32(), hn::Or(sign, chosen))), U8(), dst);
  }
};

template <>
struct Cell<DType::kI8> {
  using Type = int8_t;
  static HWY_INLINE V load(const int8_t* src) {
    return hn::ConvertTo(F32(), hn::PromoteTo(I32(), hn::LoadU(I8(), src)));
  }
  static HWY_INLINE void store(V value, int8_t* dst) {
    hn::StoreU(hn::DemoteTo(I8(), hn::NearestInt(value)), I8(), dst);
  }
};

// dst[0, pad(dim)) := src[0, dim) as f32, zero in the padding. Reads nothing beyond src[dim).
template <DType kType>
HWY_INLINE void load_cells(const typename Cell<kType>::Type* HWY_RESTRICT src,
                           int32_t dim,
                           float* HWY_RESTRICT dst) {
  constexpr auto kStep = static_cast<int32_t>(kLanes);
  int32_t i = 0;
  for (; i + kStep <= dim; i += kStep) hn::StoreU(Cell<kType>::load(src + i), F32(), dst + i);
  if (i < dim) {
    typename Cell<kType>::Type tail[kLanes] = {};
    std::memcpy(tail, src + i, static_cast<size_t>(dim - i) * sizeof(tail[0]));
    hn::StoreU(Cell<kType>::load(tail), F32(), dst + i);
    i += kStep;
  }
  for (; i < pad(dim); i += kStep) hn::StoreU(hn::Zero(F32()), F32(), dst + i);
}

// Stores src[i] / scale * factor.
template <DType kType>
void store_cells_as(const float* src, float scale, float factor, int32_t count, void* dst) {
  using Type = typename Cell<kType>::Type;
  constexpr auto kStep = static_cast<int32_t>(kLanes);
  const V divisor = hn::Set(F32(), scale);
  const V multiplier = hn::Set(F32(), factor);
  const auto scaled = [&](const float* at) HWY_ATTR {
    V value = hn::LoadU(F32(), at);
    if (scale != 1.0F) value = hn::Div(value, divisor);
    return kType == DType::kI8 ? hn::Mul(value, multiplier) : value;
  };
  auto* out = static_cast<Type*>(dst);
  int32_t i = 0;
  for (; i + kStep <= count; i += kStep) Cell<kType>::store(scaled(src + i), out + i);
  if (i < count) {
    float in_tail[kLanes] = {};
    Type out_tail[kLanes];
    std::memcpy(in_tail, src + i, static_cast<size_t>(count - i) * sizeof(float));
    Cell<kType>::store(scaled(in_tail), out_tail);
    std::memcpy(out + i, out_tail, static_cast<size_t>(count - i) * sizeof(Type));
  }
}

void store_integers(const float* src, float scale, int32_t count, void* dst, float* token_scale) {
  float largest = 0;
  for (int32_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(src[i] / scale));
  *token_scale = largest / 127.0F;
  store_cells_as<DType::kI8>(src, scale, largest > 0 ? 127.0F / largest : 0.0F, count, dst);
}

void store_cells(
    const float* src, float scale, int32_t count, DType dtype, void* dst, float* token_scale) {
  switch (dtype) {
    case DType::kF32: return store_cells_as<DType::kF32>(src, scale, 1, count, dst);
    case DType::kF16: return store_cells_as<DType::kF16>(src, scale, 1, count, dst);
    case DType::kF8E4M3: return store_cells_as<DType::kF8E4M3>(src, scale, 1, count, dst);
    case DType::kI8: return store_integers(src, scale, count, dst, token_scale);
    default: return store_cells_as<DType::kBF16>(src, scale, 1, count, dst);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tenon::cpu_attention
HWY_AFTER_NAMESPACE();

#endif
