// Row-wise kernels over a vector type V (vec_*.h).
#pragma once

#include <cmath>

#include "kernels/cpu/kernel_table.h"

namespace tenon::cpu {

template <typename V>
struct ElementwiseKernels {
  using F = typename V::F;

  // Calls fn(index, load, store) for whole vectors, then once for the rest with partial accesses.
  template <typename Fn>
  static void for_each_vector(int64_t count, const Fn& fn) {
    int64_t i = 0;
    for (; i + V::kLanes <= count; i += V::kLanes) fn(i, WholeAccess());
    if (i < count) fn(i, PartialAccess{count - i});
  }
  struct WholeAccess {
    F load(const float* from) const { return V::load(from); }
    void store(float* to, F value) const { V::store(to, value); }
  };
  struct PartialAccess {
    int64_t count;
    F load(const float* from) const { return V::load_partial(from, count); }
    void store(float* to, F value) const { V::store_partial(to, value, count); }
  };

  // e^x to about 2 ulp. Saturates outside [-87.3, 88.3]; NaN stays NaN.
  static F exp(F x) {
    x = V::min(V::set1(88.3F), V::max(V::set1(-87.3F), x));
    const F shift = V::set1(0x1.8p23F);
    const F shifted = V::fma(x, V::set1(0x1.715476p+0F), shift);  // log2(e)
    const F n = V::sub(shifted, shift);
    F r = V::fma(n, V::set1(-0x1.62e400p-1F), x);  // ln 2 in two parts, the first exact times n
    r = V::fma(n, V::set1(-0x1.7f7d1cp-20F), r);
    // Taylor on |r| <= ln(2) / 2; the first term left out is below 6e-9.
    F p = V::set1(1.0F / 5040.0F);
    p = V::fma(p, r, V::set1(1.0F / 720.0F));
    p = V::fma(p, r, V::set1(1.0F / 120.0F));
    p = V::fma(p, r, V::set1(1.0F / 24.0F));
    p = V::fma(p, r, V::set1(1.0F / 6.0F));
    p = V::fma(p, r, V::set1(0.5F));
    p = V::fma(p, r, V::set1(1.0F));
    p = V::fma(p, r, V::set1(1.0F));
    return V::mul(p, V::pow2_of_shifted(shifted));
  }

  static void scale_row(const float* x, std::span<const float> weight, float scale, float* out) {
    const F factor = V::set1(scale);
    for_each_vector(static_cast<int64_t>(weight.size()), [&](int64_t i, auto access) {
      access.store(out + i,
                   V::mul(V::mul(access.load(x + i), factor), access.load(weight.data() + i)));
    });
  }
  static float inverse_rms(F squares, size_t count, float eps) {
    return 1.0F / __builtin_sqrtf(V::reduce_add(squares) / static_cast<float>(count) + eps);
  }

  static void rms_norm(const float* x, std::span<const float> weight, float eps, float* out) {
    F squares = V::set1(0.0F);
    for_each_vector(static_cast<int64_t>(weight.size()), [&](int64_t i, auto access) {
      const F value = access.load(x + i);
      squares = V::fma(value, value, squares);
    });
    scale_row(x, weight, inverse_rms(squares, weight.size(), eps), out);
  }

  static void add_rms_norm(
      float* residual, const float* x, std::span<const float> weight, float eps, float* out) {
    F squares = V::set1(0.0F);
    for_each_vector(static_cast<int64_t>(weight.size()), [&](int64_t i, auto access) {
      const F value = V::add(access.load(residual + i), access.load(x + i));
      access.store(residual + i, value);
      squares = V::fma(value, value, squares);
    });
    scale_row(residual, weight, inverse_rms(squares, weight.size(), eps), out);
  }

  static void rope(const RopeTask& task) {
    const int64_t half = task.rotary_dim / 2;
    if (!task.interleaved) {
      for (int64_t h = 0; h < task.heads; ++h) {
        float* low = task.x + h * task.head_dim;
        float* high = low + half;
        for_each_vector(half, [&](int64_t i, auto access) {
          const F a = access.load(low + i);
          const F b = access.load(high + i);
          const F cos = access.load(task.cos + i);
          const F sin = access.load(task.sin + i);
          access.store(low + i, V::sub(V::mul(a, cos), V::mul(b, sin)));
          access.store(high + i, V::fma(a, sin, V::mul(b, cos)));
        });
      }
      return;
    }
    // (a, b) -> (a, b) * cos + (b, a) * (-sin, sin), with each factor once a feature.
    float cos[kMaxRotaryDim];
    float sin[kMaxRotaryDim];
    for (int64_t i = 0; i < half; ++i) {
      cos[2 * i] = cos[2 * i + 1] = task.cos[i];
      sin[2 * i] = -task.sin[i];
      sin[2 * i + 1] = task.sin[i];
    }
    for (int64_t h = 0; h < task.heads; ++h) {
      float* head = task.x + h * task.head_dim;
      for_each_vector(task.rotary_dim, [&](int64_t i, auto access) {
        const F value = access.load(head + i);
        const F swapped = V::swap_pairs(value);
        access.store(head + i,
                     V::fma(swapped, access.load(sin + i), V::mul(value, access.load(cos + i))));
      });
    }
  }

  static void silu_and_mul(const float* gate, const float* up, std::span<float> out) {
    const F one = V::set1(1.0F);
    for_each_vector(static_cast<int64_t>(out.size()), [&](int64_t i, auto access) {
      const F g = access.load(gate + i);
      const F sigmoid_inverse = V::add(one, exp(V::sub(V::set1(0.0F), g)));
      access.store(out.data() + i, V::mul(V::div(g, sigmoid_inverse), access.load(up + i)));
    });
  }

  static float log_sum_exp(std::span<const float> x) {
    const auto count = static_cast<int64_t>(x.size());
    F largest = V::set1(-__builtin_inff());
    int64_t i = 0;
    for (; i + V::kLanes <= count; i += V::kLanes) largest = V::max(V::load(x.data() + i), largest);
    float max = V::reduce_max(largest);
    for (; i < count; ++i) max = x[static_cast<size_t>(i)] > max ? x[static_cast<size_t>(i)] : max;
    // A row of -inf, or one that holds +inf, has no finite maximum to subtract.
    if (!(max < __builtin_inff() && max > -__builtin_inff())) return max;
    const F offset = V::set1(max);
    // f32 sums of short runs: a vocabulary of terms in one lane would lose digits.
    constexpr int64_t kRun = 256 * V::kLanes;
    double sum = 0.0;
    for (i = 0; i < count;) {
      F sums = V::set1(0.0F);
      const int64_t end = i + kRun < count ? i + kRun : count;
      for (; i + V::kLanes <= end; i += V::kLanes) {
        sums = V::add(sums, exp(V::sub(V::load(x.data() + i), offset)));
      }
      sum += V::reduce_add(sums);
      if (i < end) {
        float rest[V::kLanes];
        V::store(rest, exp(V::sub(V::load_partial(x.data() + i, end - i), offset)));
        for (int64_t j = 0; i < end; ++i, ++j) sum += rest[j];
      }
    }
    return static_cast<float>(max + __builtin_log(sum));
  }
};

}  // namespace tenon::cpu
