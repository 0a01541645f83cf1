// Matrix kernels over a vector type V (vec_*.h). Every output is accumulated in one lane, over
// columns in ascending order, with the same operations whatever the tile: results do not depend on
// the batch.
#pragma once

#include <type_traits>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/unroll.h"

namespace tenon::cpu {

// Calls fn(integral_constant<M>, first token) for tiles of kTile tokens, then for ever smaller
// ones.
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
  static constexpr int kLineBytes = 4 * V::kLanes;
  // Columns of a float panel that are used for all tokens before the next ones: panel and
  // activations of a block stay in the first two cache levels.
  static constexpr int64_t kFloatColumnBlock = 512;
  // How far ahead of its use a weight is asked for: the bytes that arrive during one memory
  // latency.
  static constexpr int64_t kPrefetchBytes = 4096;

  static void store_row(float* to, F value, int64_t valid) {
    if (valid >= V::kLanes) {
      V::store(to, value);
    } else if (valid > 0) {
      V::store_partial(to, value, valid);
    }
  }

  static F load_row(const float* from, int64_t valid) {
    if (valid >= V::kLanes) return V::load(from);
    return valid > 0 ? V::load_partial(from, valid) : V::set1(0.0F);
  }

  // Chunk kChunk of a group as bytes.
  template <int kBits, int kChunk>
  static B load_chunk(const std::byte* lines) {
    if constexpr (kBits == 8) return V::load_bytes(lines + kChunk * kLineBytes);
    const B line = V::load_bytes(lines + kChunk % 4 * kLineBytes);
    const B low = V::bits(V::template shift<(kChunk < 4 ? 0 : -4)>(line), 0x0F);
    if constexpr (kBits == 5) {
      const B high = V::load_bytes(lines + 4 * kLineBytes);
      return V::either(low, V::bits(V::template shift<4 - kChunk>(high), 0x10));
    }
    if constexpr (kBits == 6) {
      const B high = V::load_bytes(lines + (4 + kChunk / 4) * kLineBytes);
      return V::either(low, V::bits(V::template shift<4 - 2 * (kChunk % 4)>(high), 0x30));
    }
    return low;
  }

  // One panel, M tokens. fetch: also bring the stream of weights into the cache.
  template <PackedFormat kFormat, int M>
  static void quant_tile(
      const std::byte* panel, const ActivationGroup* x, int64_t cols, bool fetch, F (&result)[M]) {
    constexpr PackedTraits kTraits = packed_traits(kFormat);
    constexpr int64_t kScaleBytes = group_scale_bytes(kTraits, kQuantRows);
    constexpr int64_t kQuantBytes = group_quant_bytes(kTraits, kQuantRows);
    constexpr int64_t kGroupBytes = kScaleBytes + kQuantBytes;
    constexpr int kSpan = kGroupColumns / kTraits.scales;  // columns of a group that share a scale
    const std::byte* lines = panel + panel_scale_bytes(kTraits, kQuantRows, cols);
    F sums[M];  // not `result`: what a reference names is kept in memory
    unrolled<M>([&](auto t) { sums[t] = V::set1(0.0F); });
    for (int64_t g = 0; g < cols / kGroupColumns; ++g) {
      if (fetch) {
        // The panels of a weight follow each other. Their scales and quants are asked for in one
        // sweep, which goes on across panel borders and pages where the hardware's prefetchers
        // start anew.
        for (int64_t i = 0; i < kGroupBytes; i += 64) {
          __builtin_prefetch(panel + g * kGroupBytes + kPrefetchBytes + i);
        }
      }
      const ActivationGroup* group = x + g * M;
      // Inlined by force, as dots(): a call would move all sums through memory.
      unrolled<kTraits.scales>([&](auto s) __attribute__((always_inline)) {
        const std::byte* scales = panel + g * kScaleBytes + s * 2 * kQuantRows;
        const F d = V::load_f16(scales);
        const F m = kTraits.has_minimum ? V::load_f16(scales + 2 * kQuantRows)
                                        : V::mul(d, V::set1(-kTraits.zero));
        I dots[M];
        V::template dots<kTraits.bits, kSpan / 4, M>(
            [&](auto c) {
              return load_chunk<kTraits.bits, s * kSpan / 4 + c>(lines + g * kQuantBytes);
            },
            group->a + s * kSpan, sizeof(ActivationGroup) / sizeof(int16_t), dots);
        unrolled<M>([&](auto t) {
          sums[t] = V::fma(V::mul(V::to_float(dots[t]), d), V::set1(group[t].d), sums[t]);
          if constexpr (kTraits.has_minimum || kTraits.zero != 0) {
            sums[t] = V::fma(m, V::set1(group[t].sum[kTraits.scales == 1 ? 0 : s + 1]), sums[t]);
          }
        });
      });
    }
    unrolled<M>([&](auto t) { result[t] = sums[t]; });
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
        quant_tile<kFormat, M>(panel, x + token * groups, task.cols, token == 0, sums);
        unrolled<M>([&](auto t) { store_row(y + (token + t) * task.y_stride, sums[t], valid); });
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
  static void float_tile(const std::byte* panel,
                         const float* x,
                         int64_t begin,
                         int64_t end,
                         bool fetch,
                         F (&sums)[M][V::kFloatVectors]) {
    constexpr int64_t kColumnBytes = kFloatRows * packed_traits(kFormat).bits / 8;
    for (int64_t k = begin; k < end; ++k) {
      if (fetch) {
        for (int64_t i = 0; i < kColumnBytes; i += 64) {
          __builtin_prefetch(panel + k * kColumnBytes + kPrefetchBytes + i);
        }
      }
      F values[M];
      unrolled<M>([&](auto t) { values[t] = V::set1(x[k * M + t]); });
      unrolled<V::kFloatVectors>([&](auto v) {
        const F w = load_weight<kFormat>(panel, k * kFloatRows + v * V::kLanes);
        unrolled<M>([&](auto t) { sums[t][v] = V::fma(values[t], w, sums[t][v]); });
      });
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
        const int64_t end =
            begin + kFloatColumnBlock < task.cols ? begin + kFloatColumnBlock : task.cols;
        for_each_tile<V::kFloatTile>(0, task.tokens, [&](auto tile, int64_t token) {
          constexpr int M = decltype(tile)::value;
          F sums[M][V::kFloatVectors];
          unrolled<M>([&](auto t) {
            unrolled<V::kFloatVectors>([&](auto v) {
              const float* from = y + (token + t) * task.y_stride + v * V::kLanes;
              sums[t][v] = begin == 0 ? V::set1(0.0F) : load_row(from, valid - v * V::kLanes);
            });
          });
          float_tile<kFormat, M>(panel, x + token * task.cols, begin, end, token == 0, sums);
          unrolled<M>([&](auto t) {
            unrolled<V::kFloatVectors>([&](auto v) {
              store_row(y + (token + t) * task.y_stride + v * V::kLanes, sums[t][v],
                        valid - v * V::kLanes);
            });
          });
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
    const float inverse = usable ? kActivationMax / limit : 0.0F;
    out->d = !finite ? __builtin_nanf("") : usable ? limit / kActivationMax : 0.0F;
    int32_t half_sums[2] = {0, 0};
    for (int v = 0; v < kVectors; ++v) {
      const F scaled = V::mul(values[v], V::set1(inverse));
      const I q = usable ? V::round_to_int(scaled) : V::zero_int();
      V::store_int16(out->a + v * V::kLanes, q);
      half_sums[v * V::kLanes / 16] += V::reduce_add(q);
    }
    out->sum[0] = out->d * static_cast<float>(half_sums[0] + half_sums[1]);
    out->sum[1] = out->d * static_cast<float>(half_sums[0]);
    out->sum[2] = out->d * static_cast<float>(half_sums[1]);
  }

  static void pack_quantised(const FloatRows& x, const ColumnRange& columns, ActivationGroup* out) {
    const int64_t groups = x.cols / kGroupColumns;
    for_each_tile<V::kQuantTile>(0, x.rows, [&](auto tile, int64_t token) {
      constexpr int M = decltype(tile)::value;
      for (int t = 0; t < M; ++t) {
        const float* from = x.data + (token + t) * x.stride;
        ActivationGroup* to = out + token * groups + t;
        for (int64_t k = columns.begin; k < columns.end; k += kGroupColumns) {
          pack_group(from + k, to + k / kGroupColumns * M);
        }
      }
    });
  }

  static void pack_float(const FloatRows& x, const ColumnRange& columns, float* out) {
    for_each_tile<V::kFloatTile>(0, x.rows, [&](auto tile, int64_t token) {
      constexpr int M = decltype(tile)::value;
      const float* from = x.data + token * x.stride;
      float* to = out + token * x.cols;
      for (int64_t k = columns.begin; k < columns.end; ++k) {
        for (int t = 0; t < M; ++t) to[k * M + t] = from[t * x.stride + k];
      }
    });
  }
};

}  // namespace tenon::cpu
