// Loops that reach a machine's limits, over a vector type V (vec_*.h).
#pragma once

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/unroll.h"

namespace tenon::cpu {

template <typename V>
struct ProbeKernels {
  using F = typename V::F;

  static double fma_loop(int64_t iterations) {
    constexpr int kChains = 12;  // more than latency times throughput of any current core
    F sums[kChains];
    for (int c = 0; c < kChains; ++c) sums[c] = V::set1(static_cast<float>(c));
    const F factor = V::set1(0.999F);
    for (int64_t i = 0; i < iterations; ++i) {
      unrolled<kChains>([&](auto c) { sums[c] = V::fma(sums[c], factor, factor); });
    }
    for (int c = 0; c < kChains; ++c) keep(sums[c]);
    return static_cast<double>(iterations) * kChains * V::kLanes * 2;
  }

  static double dot_loop(int64_t iterations) {
    // The work of a quantised tile without its scales: one group of weights, 8 tokens.
    constexpr int kTokens = 8;
    alignas(64) uint8_t weights[kGroupColumns * V::kLanes];
    int16_t activations[kTokens][kGroupColumns];
    for (size_t i = 0; i < sizeof(weights); ++i) weights[i] = static_cast<uint8_t>(i % 16);
    for (int t = 0; t < kTokens; ++t) {
      for (int i = 0; i < kGroupColumns; ++i) activations[t][i] = static_cast<int16_t>(i - t);
    }
    typename V::B w[kGroupColumns / 4];
    for (int c = 0; c < kGroupColumns / 4; ++c) w[c] = V::load_bytes(weights + c * 4 * V::kLanes);
    typename V::I sum = V::zero_int();
    for (int64_t i = 0; i < iterations; ++i) {
      keep(activations);  // or one round would do for all
      typename V::I dots[kTokens];
      V::template dots<4, kGroupColumns / 4, kTokens>([&](auto c) { return w[c]; }, activations[0],
                                                      kGroupColumns, dots);
      unrolled<kTokens>([&](auto t) { sum = V::add(sum, dots[t]); });
    }
    keep(sum);
    return static_cast<double>(iterations) * kTokens * kGroupColumns * V::kLanes * 2;
  }

  static void read_bytes(std::span<const std::byte> bytes) {
    constexpr size_t kVector = sizeof(typename V::B);
    constexpr int kChains = static_cast<int>(64 / kVector);  // one cache line
    constexpr size_t kPrefetchBytes = 4096;
    typename V::B seen[kChains];
    for (int c = 0; c < kChains; ++c) seen[c] = V::load_bytes(bytes.data());
    for (size_t i = 0; i + 64 <= bytes.size(); i += 64) {
      __builtin_prefetch(bytes.data() + i + kPrefetchBytes);
      unrolled<kChains>([&](auto c) {
        seen[c] =
            V::either(seen[c], V::load_bytes(bytes.data() + i + static_cast<size_t>(c) * kVector));
      });
    }
    for (int c = 0; c < kChains; ++c) keep(seen[c]);
  }

 private:
  // The compiler must assume that `value` is used and changed.
  template <typename T>
  static void keep(T& value) {
    asm volatile("" : "+m"(value) : : "memory");
  }
};

}  // namespace tenon::cpu
