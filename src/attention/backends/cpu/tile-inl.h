// A tile of keys: which, where their cells lie, and loading them. Included by kernels.cc only.
#if defined(TENON_ATTENTION_CPU_TILE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TENON_ATTENTION_CPU_TILE_INL_H
#undef TENON_ATTENTION_CPU_TILE_INL_H
#else
#define TENON_ATTENTION_CPU_TILE_INL_H
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "attention/backends/cpu/cells-inl.h"
#include "attention/backends/cpu/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace tenon::cpu_attention {
namespace HWY_NAMESPACE {
namespace {

struct KeyRange {
  int32_t begin = 0;
  int32_t end = 0;
};

// Where the keys (or values) of a tile lie.
template <DType kType>
using CellRows = const typename Cell<kType>::Type* const*;

// K and V of the keys of the next tile, asked for while this one is worked on: pages lie anywhere,
// so the hardware does not foresee them. Spread over the arithmetic, because a burst would wait for
// free miss buffers.
class Prefetch {
 public:
  // Half of the steps are taken while scores are computed, half while values are weighed.
  static constexpr int32_t kSteps = 32;
  static constexpr int32_t kKeysAStep = 2 * kTileKeys / kSteps;

  // A KV head's keys [begin, end). Requires: no more than a tile of them.
  void set(const HeadTask& task, int32_t head, int32_t begin, int32_t end) {
    const KvView& kv = *task.kv;
    const int64_t element = dtype_bytes(kv.dtype, 1);
    const int64_t stride = kv.token_stride * element;
    const int64_t bytes = (kv.v_offset + kv.head_dim_v) * element;
    const auto* base = static_cast<const std::byte*>(kv.base);
    int64_t lines = 0;
    count_ = 0;
    const auto add = [&](const std::byte* cells, int64_t length) {
      const std::byte* first = cells - reinterpret_cast<uintptr_t>(cells) % kLineBytes;
      stretches_[count_++] = {first, cells + length};
      lines += (cells + length - first + kLineBytes - 1) / kLineBytes;
    };
    for (int32_t key = begin; key < end;) {
      const int32_t page = key / kv.block_size;
      const int32_t token = key - page * kv.block_size;
      const int32_t run = std::min(end - key, kv.block_size - token);
      const std::byte* cell = base + kv.k_offset(task.pages[page], head, token) * element;
      if (stride == bytes) {
        add(cell, run * stride);
      } else {
        for (int32_t i = 0; i < run; ++i) add(cell + i * stride, bytes);
      }
      key += run;
    }
    lines_a_step_ = (lines + kSteps - 1) / kSteps;
    next_ = 0;
    line_ = end_ = nullptr;
  }

  // Asks for the next part.
  HWY_INLINE void ask() {
    for (int64_t left = lines_a_step_; left > 0; --left) {
      if (line_ >= end_) {
        if (next_ == count_) {
          lines_a_step_ = 0;
          return;
        }
        line_ = stretches_[next_].begin;
        end_ = stretches_[next_++].end;
      }
      // Into the second level: what is on its way to the first takes up one of few miss buffers.
      __builtin_prefetch(line_, 0, 2);
      line_ += kLineBytes;
    }
  }

 private:
  static constexpr int64_t kLineBytes = 64;
  // Memory that holds nothing but these cells: one stretch a page, or one a key.
  struct Stretch {
    const std::byte* begin;
    const std::byte* end;
  };
  Stretch stretches_[kTileKeys];
  int32_t count_ = 0, next_ = 0;
  int64_t lines_a_step_ = 0;
  const std::byte* line_ = nullptr;
  const std::byte* end_ = nullptr;
};

// Loads K (content 0) or V (content v_offset) of keys `range` of a KV head into scratch rows key -
// tile_begin.
template <DType kType>
void load_tile_as(const HeadTask& task,
                  int32_t head,
                  int32_t tile_begin,
                  KeyRange range,
                  bool values,
                  float* tile) {
  using Type = typename Cell<kType>::Type;
  const KvView& kv = *task.kv;
  const int32_t dim = values ? kv.head_dim_v : kv.head_dim_k;
  const int64_t content = values ? kv.v_offset : 0;
  const auto* base = static_cast<const Type*>(kv.base);
  for (int32_t key = range.begin; key < range.end;) {
    const int32_t page = key / kv.block_size;
    const int32_t token = key - page * kv.block_size;
    const int32_t run = std::min(range.end - key, kv.block_size - token);
    const Type* src = base + kv.k_offset(task.pages[page], head, token) + content;
    float* dst = tile + int64_t{key - tile_begin} * pad(dim);
    for (int32_t i = 0; i < run; ++i) {
      load_cells<kType>(src + i * kv.token_stride, dim, dst + int64_t{i} * pad(dim));
    }
    key += run;
  }
}

// Calls use.template operator()<type>() for the cells' type.
template <typename Use>
HWY_INLINE void with_cell_type(DType dtype, const Use& use) {
  switch (dtype) {
    case DType::kF32: return use.template operator()<DType::kF32>();
    case DType::kF16: return use.template operator()<DType::kF16>();
    case DType::kF8E4M3: return use.template operator()<DType::kF8E4M3>();
    case DType::kI8: return use.template operator()<DType::kI8>();
    default: return use.template operator()<DType::kBF16>();
  }
}

void load_tile(const HeadTask& task,
               int32_t head,
               int32_t tile_begin,
               KeyRange range,
               bool values,
               float* tile) {
  with_cell_type(task.kv->dtype, [&]<DType kType>() {
    load_tile_as<kType>(task, head, tile_begin, range, values, tile);
  });
}

// The scales of the tokens `range` for K, then V, at key - tile_begin; zero for the rest of the
// tile.
void load_token_scales(
    const HeadTask& task, int32_t head, int32_t tile_begin, KeyRange range, float* scales) {
  const KvView& kv = *task.kv;
  std::fill_n(scales, 2 * kTileKeys, 0.0F);
  for (int32_t key = range.begin; key < range.end;) {
    const int32_t page = key / kv.block_size;
    const int32_t token = key - page * kv.block_size;
    const int32_t run = std::min(range.end - key, kv.block_size - token);
    const float* src = kv.token_scales(task.pages[page], head) + token;
    std::copy_n(src, run, scales + (key - tile_begin));
    std::copy_n(src + kv.block_size, run, scales + kTileKeys + (key - tile_begin));
    key += run;
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tenon::cpu_attention
HWY_AFTER_NAMESPACE();

#endif
