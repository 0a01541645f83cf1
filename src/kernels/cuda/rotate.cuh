// The rotation of RoPE on registers, shared by the plain kernel and the one that also writes the KV
// cache.
#pragma once

#include <cstdint>

#include "kernels/cuda/half_vector.cuh"

namespace tenon {

// Which features one thread rotates: pairs [first, first + kPairs) of a head.
struct RotaryTables {
  const float* cos;  // of the token's position
  const float* sin;
  int half;  // rotary_dim / 2
  bool interleaved;
};

// Reads kPairs pairs of `head` from pair `first` on, rotates them in f32 and hands each half's
// rounded values to `store(feature, values)`. kPairs is 8 (16-byte accesses; half % 8 == 0) or 1.
template <typename T, int kPairs, typename Store>
__device__ __forceinline__ void rotate_pairs(const T* head,
                                             int first,
                                             const RotaryTables& tables,
                                             Store store) {
  if constexpr (kPairs == 1) {
    const int at_a = tables.interleaved ? 2 * first : first;
    const int at_b = tables.interleaved ? 2 * first + 1 : first + tables.half;
    const float a = to_float(head[at_a]);
    const float b = to_float(head[at_b]);
    const float cos = tables.cos[first];
    const float sin = tables.sin[first];
    store(at_a, from_float<T>(a * cos - b * sin));
    store(at_b, from_float<T>(b * cos + a * sin));
  } else {
    static_assert(kPairs == 8);
    float cos[8];
    float sin[8];
    float low[8];
    float high[8];
    load8(tables.cos + first, cos);
    load8(tables.sin + first, sin);
    const int at_low = tables.interleaved ? 2 * first : first;
    const int at_high = tables.interleaved ? 2 * first + 8 : first + tables.half;
    load8(head + at_low, low);
    load8(head + at_high, high);
    if (tables.interleaved) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float a = low[2 * i];
        const float b = low[2 * i + 1];
        low[2 * i] = a * cos[i] - b * sin[i];
        low[2 * i + 1] = b * cos[i] + a * sin[i];
        const float c = high[2 * i];
        const float d = high[2 * i + 1];
        high[2 * i] = c * cos[i + 4] - d * sin[i + 4];
        high[2 * i + 1] = d * cos[i + 4] + c * sin[i + 4];
      }
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float a = low[i];
        const float b = high[i];
        low[i] = a * cos[i] - b * sin[i];
        high[i] = b * cos[i] + a * sin[i];
      }
    }
    store(at_low, pack8<T>(low));
    store(at_high, pack8<T>(high));
  }
}

}  // namespace tenon
