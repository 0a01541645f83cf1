// Matrix kernels over a vector type V (vec_*.h). Every output is accumulated in one lane, over columns in
// ascending order, with the same operations whatever the tile: results do not depend on the batch.
#pragma once

#include <type_traits>

#include "kernels/cpu/kernel_table.h"

namespace tenon::cpu {

// Calls fn(integral_constant<M>, first token) for tiles of kTile tokens, then for ever smaller ones.
template <int kTile, typename Fn>
inline void for_each_tile(int64_t begin, int64_t end, const Fn& fn) {
  for (; end - begin >= kTile; begin += kTile) fn(std::integral_constant<int, kTile>(), begin);
  if constexpr (kTile > 1) {
    if (begin < end) for_each_tile<kTile / 2>(begin, end, fn);
  }
}

template <typename V>
struct LinearKernels {
  using F = typename V::F;
  using I = typename V::I;
  using B = typename V::B;

  static constexpr int kQuantRows = V::kLanes;
  static constexpr int kFloatRows = V::kLanes * V::kFloatVectors;
  static constexpr int kChunks = kGroupColumns / 4;
  static constexpr int kLineBytes = 4 * V::kLanes;
  // Columns of a float panel that are used for all tokens before the next ones: panel and activations of
  // a block stay in the first two cache levels.
  static constexpr int64_t kFloatColumnBlock = 512;

  static void store_row(float* to, F value, int64_t valid) {
    if (valid >= V::kLanes) {
      V::store(to, value);
    } else if (valid > 0) {
      V::store_partial(to, value, valid);
    }
  }

  // The 8 chunks of a group as bytes.
  template <int kBits>
  static void unpack(const std::byte* lines, B* w) {
    if constexpr (kBits == 8) {
      for (int c = 0; c < kChunks; ++c) w[c] = V::load_bytes(lines + c * kLineBytes);
      return;
    }
    for (int j = 0; j < 4; ++j) {
      const B line = V::load_bytes(lines + j * kLineBytes);
      w[j] = V::bits(line, 0x0F);
      w[j + 4] = V::bits(V::template shift<-4>(line), 0x0F);
    }
    if constexpr (kBits == 5) {
      const B high = V::load_bytes(lines + 4 * kLineBytes);
      add_high<4, 0x10>(high, w[0]);
      add_high<3, 0x10>(high, w[1]);
      add_high<2, 0x10>(high, w[2]);
      add_high<1, 0x10>(high, w[3]);
      add_high<0, 0x10>(high, w[4]);
      add_high<-1, 0x10>(high, w[5]);
      add_high<-2, 0x10>(high, w[6]);
      add_high<-3, 0x10>(high, w[7]);
    }
    if constexpr (kBits == 6) {
      for (int half = 0; half < 2; ++half) {
        const B high = V::load_bytes(lines + (4 + half) * kLineBytes);
        add_high<4, 0x30>(high, w[4 * half]);
        add_high<2, 0x30>(high, w[4 * half + 1]);
        add_high<0, 0x30>(high, w[4 * half + 2]);
        add_high<-2, 0x30>(high, w[4 * half + 3]);
      }
    }
  }
  template <int kShift, uint8_t kMask>
  static void add_high(B high, B& w) {
    w = V::either(w, V::bits(V::template shift<kShift>(high), kMask));
  }

  // One panel, M tokens.
  template <PackedFormat kFormat, int M>
  static void quant_tile(const std::byte* panel, const ActivationGroup* x, int64_t cols, F* sums) {
    constexpr PackedTraits kTraits = packed_traits(kFormat);
    constexpr int kMax = (1 << kTraits.bits) - 1;
    constexpr int64_t kScaleBytes = group_scale_bytes(kTraits, kQuantRows);
    constexpr int64_t kQuantBytes = group_quant_bytes(kTraits, kQuantRows);
    // A vector type that reads 8-bit quants as signed has subtracted the zero already.
    constexpr int kZero = kMax == 255 && V::kSignedBytes ? 0 : kTraits.zero;
    const std::byte* lines = panel + panel_scale_bytes(kTraits, kQuantRows, cols);
    for (int t = 0; t < M; ++t) sums[t] = V::set1(0.0F);
    for (int64_t g = 0; g < cols / kGroupColumns; ++g) {
      B w[kChunks];
      unpack<kTraits.bits>(lines + g * kQuantBytes, w);
      const std::byte* scales = panel + g * kScaleBytes;
      const F d = V::load_f16(scales);
      if constexpr (kTraits.scales == 2) {
        const F d2 = V::load_f16(scales + 2 * kQuantRows);
        const F m = V::mul(d, V::set1(-kZero));
        const F m2 = V::mul(d2, V::set1(-kZero));
        for (int t = 0; t < M; ++t) {
          const ActivationGroup& group = x[g * M + t];
          const F dot = V::to_float(V::template dot<kMax, kChunks / 2>(w, group.a));
          const F dot2 = V::to_float(V::template dot<kMax, kChunks / 2>(w + kChunks / 2, group.a + 16));
          const F scale = V::set1(group.d);
          sums[t] = V::fma(V::mul(dot, d), scale, sums[t]);
          sums[t] = V::fma(V::mul(dot2, d2), scale, sums[t]);
          sums[t] = V::fma(m, V::set1(group.sum[1]), sums[t]);
          sums[t] = V::fma(m2, V::set1(group.sum[2]), sums[t]);
        }
      } else {
        F m;
        if constexpr (kTraits.has_minimum) {
          m = V::load_f16(scales + 2 * kQuantRows);
        } else {
          m = V::mul(d, V::set1(-kZero));
        }
        for (int t = 0; t < M; ++t) {
          const ActivationGroup& group = x[g * M + t];
          const F dot = V::to_float(V::template dot<kMax, kChunks>(w, group.a));
          sums[t] = V::fma(V::mul(dot, d), V::set1(group.d), sums[t]);
          if constexpr (kTraits.has_minimum || kZero != 0) {
            sums[t] = V::fma(m, V::set1(group.sum[0]), sums[t]);
          }
        }
      }
    }
  }

  template <PackedFormat kFormat>
  static void quant_linear(const LinearTask& task) {
    const auto* x = static_cast<const ActivationGroup*>(task.activations);
    const int64_t groups = task.cols / kGroupColumns;
    for (int64_t p = task.panel_begin; p < task.panel_end; ++p) {
      const std::byte* panel = task.panels + p * task.panel_bytes;
      const int64_t valid = task.rows - p * kQuantRows;
      float* y = task.y + p * kQuantRows;
      for_each_tile<V::kQuantTile>(0, task.tokens, [&](auto tile, int64_t token) {
        constexpr int M = decltype(tile)::value;
        F sums[M];
        quant_tile<kFormat, M>(panel, x + token * groups, task.cols, sums);
        for (int t = 0; t < M; ++t) store_row(y + (token + t) * task.y_stride, sums[t], valid);
      });
    }
  }

  template <PackedFormat kFormat>
  static F load_weight(const std::byte* panel, int64_t index) {
    if constexpr (kFormat == PackedFormat::kF32) {
      return V::load(reinterpret_cast<const float*>(panel) + index);
    } else if constexpr (kFormat == PackedFormat::kF16) {
      return V::load_f16(panel + 2 * index);
    } else {
      return V::load_bf16(panel + 2 * index);
    }
  }

  // Adds columns [begin, end) to `sums`; x is [column][token].
  template <PackedFormat kFormat, int M>
  static void float_tile(const std::byte* panel, const float* x, int64_t begin, int64_t end,
                         F (&sums)[M][V::kFloatVectors]) {
    for (int64_t k = begin; k < end; ++k) {
      F values[M];
      for (int t = 0; t < M; ++t) values[t] = V::set1(x[k * M + t]);
      for (int v = 0; v < V::kFloatVectors; ++v) {
        const F w = load_weight<kFormat>(panel, k * kFloatRows + v * V::kLanes);
        for (int t = 0; t < M; ++t) sums[t][v] = V::fma(values[t], w, sums[t][v]);
      }
    }
  }

  template <PackedFormat kFormat>
  static void float_linear(const LinearTask& task) {
    const auto* x = static_cast<const float*>(task.activations);
    for (int64_t p = task.panel_begin; p < task.panel_end; ++p) {
      const std::byte* panel = task.panels + p * task.panel_bytes;
      const int64_t valid = task.rows - p * kFloatRows;
      float* y = task.y + p * kFloatRows;
      for (int64_t begin = 0; begin < task.cols; begin += kFloatColumnBlock) {
        const int64_t end = begin + kFloatColumnBlock < task.cols ? begin + kFloatColumnBlock : task.cols;
        for_each_tile<V::kFloatTile>(0, task.tokens, [&](auto tile, int64_t token) {
          constexpr int M = decltype(tile)::value;
          F sums[M][V::kFloatVectors];
          for (int t = 0; t < M; ++t) {
            for (int v = 0; v < V::kFloatVectors; ++v) {
              const float* from = y + (token + t) * task.y_stride + v * V::kLanes;
              const int64_t left = valid - v * V::kLanes;
              sums[t][v] = begin == 0 || left <= 0 ? V::set1(0.0F)
                           : left >= V::kLanes     ? V::load(from)
                                                   : V::load_partial(from, left);
            }
          }
          float_tile<kFormat, M>(panel, x + token * task.cols, begin, end, sums);
          for (int t = 0; t < M; ++t) {
            for (int v = 0; v < V::kFloatVectors; ++v) {
              store_row(y + (token + t) * task.y_stride + v * V::kLanes, sums[t][v], valid - v * V::kLanes);
            }
          }
        });
      }
    }
  }

  static void pack_group(const float* x, ActivationGroup* out) {
    constexpr int kVectors = kGroupColumns / V::kLanes;
    F values[kVectors];
    I largest = V::zero_int();
    for (int v = 0; v < kVectors; ++v) {
      values[v] = V::load(x + v * V::kLanes);
      largest = V::max_abs_bits(largest, values[v]);
    }
    const int32_t bits = V::reduce_max(largest);
    float limit;
    __builtin_memcpy(&limit, &bits, sizeof(limit));
    const bool finite = bits < 0x7F800000;
    // Below 1e-30 the inverse scale would overflow; such a group counts as 0.
    const bool usable = finite && limit > 1e-30F;
    const float inverse = usable ? 127.0F / limit : 0.0F;
    out->d = !finite ? __builtin_nanf("") : usable ? limit / 127.0F : 0.0F;
    int32_t half_sums[2] = {0, 0};
    for (int v = 0; v < kVectors; ++v) {
      const F scaled = V::mul(values[v], V::set1(inverse));
      const I q = usable ? V::round_to_int(scaled) : V::zero_int();
      V::store_int8(out->a + v * V::kLanes, q);
      half_sums[v * V::kLanes / 16] += V::reduce_add(q);
    }
    out->sum[0] = out->d * static_cast<float>(half_sums[0] + half_sums[1]);
    out->sum[1] = out->d * static_cast<float>(half_sums[0]);
    out->sum[2] = out->d * static_cast<float>(half_sums[1]);
  }

  static void pack_quantised(const FloatRows& x, ActivationGroup* out) {
    const int64_t groups = x.cols / kGroupColumns;
    for_each_tile<V::kQuantTile>(0, x.rows, [&](auto tile, int64_t token) {
      constexpr int M = decltype(tile)::value;
      for (int t = 0; t < M; ++t) {
        const float* from = x.data + (token + t) * x.stride;
        ActivationGroup* to = out + token * groups + t;
        for (int64_t g = 0; g < groups; ++g) pack_group(from + g * kGroupColumns, to + g * M);
      }
    });
  }

  static void pack_float(const FloatRows& x, float* out) {
    for_each_tile<V::kFloatTile>(0, x.rows, [&](auto tile, int64_t token) {
      constexpr int M = decltype(tile)::value;
      const float* from = x.data + token * x.stride;
      float* to = out + token * x.cols;
      for (int64_t k = 0; k < x.cols; ++k) {
        for (int t = 0; t < M; ++t) to[k * M + t] = from[t * x.stride + k];
      }
    });
  }
};

}  // namespace tenon::cpu
