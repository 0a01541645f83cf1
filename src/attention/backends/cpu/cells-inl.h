// KV cells as f32 vectors: load and store of f32, f16 and bf16, for the instruction set that
// foreach_target.h is at. Included by kernels.cc only.
#if defined(TENON_ATTENTION_CPU_CELLS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TENON_ATTENTION_CPU_CELLS_INL_H
#undef TENON_ATTENTION_CPU_CELLS_INL_H
#else
#define TENON_ATTENTION_CPU_CELLS_INL_H
#endif

#include <hwy/highway.h>

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

template <DType kType>
void store_cells_as(const float* src, float scale, int32_t count, void* dst) {
  using Type = typename Cell<kType>::Type;
  constexpr auto kStep = static_cast<int32_t>(kLanes);
  const V divisor = hn::Set(F32(), scale);
  const auto scaled = [&](const float* at) HWY_ATTR {
    const V value = hn::LoadU(F32(), at);
    return scale == 1.0F ? value : hn::Div(value, divisor);
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

void store_cells(const float* src, float scale, int32_t count, DType dtype, void* dst) {
  switch (dtype) {
    case DType::kF32: return store_cells_as<DType::kF32>(src, scale, count, dst);
    case DType::kF16: return store_cells_as<DType::kF16>(src, scale, count, dst);
    default: return store_cells_as<DType::kBF16>(src, scale, count, dst);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tenon::cpu_attention
HWY_AFTER_NAMESPACE();

#endif
