// The prefill kernel. One block a multiprocessor stays for the whole launch and takes tiles of the
// work list by an atomic counter. Its last warpgroup loads: bulk tensor copies (or, for pages too
// small for them, 16-byte gathers) into a ring of K and V stages. The others compute, 64 query rows
// each: S = Q K^T and O += P V with wgmma, the softmax between them in registers, base 2 with the
// scale folded in. A warpgroup computes the softmax of block n while the tensor cores do P V of the
// block before (overlap within the warpgroup) and the other warpgroups' products (turns, taken with
// named barriers). Blocks of keys run from the last visible one to the first, so that the few that
// need a mask come first.
//
// Query rows of a tile are (token, head of the group) pairs when the group size is a power of two:
// the heads that share a KV head also share its loads.
#pragma once

#include <math_constants.h>

#include <cstdint>

#include "attention/backends/flash/decode_rules.cuh"
#include "attention/backends/flash/prefill_loader.cuh"
#include "attention/backends/flash/prefill_shared.cuh"

namespace tenon::flash {

// ---- the computing warpgroups ----

template <class Traits>
struct PrefillConsumer {
  using Shared = PrefillShared<Traits>;
  static constexpr int kScores = Traits::kKeys / 2;  // of a thread: 64 x keys over 128 threads
  static constexpr int kOutputs = Traits::kDim / 2;
  using ScoreMma = ptx::Wgmma<Traits::kKeys, Traits::kBf16>;
  using OutputMma = ptx::Wgmma<Traits::kDim, Traits::kBf16>;

  const PrefillKernelParams& params;
  const Shared& shared;
  int warpgroup;
  int thread;  // of the warpgroup
  RingPosition<2> item_slot;
  RingPosition<Traits::kQStages> q_slot;
  RingPosition<Traits::kStages> k_slot, v_slot;

  // Of the item at hand. Each thread has two rows of the tile, 8 apart.
  float o[kOutputs];
  float s[kScores];         // scores, then probabilities, of the block at hand
  uint32_t p[kScores / 2];  // probabilities of the block before, as the product's operand
  float row_max[2];         // of the scores, unscaled, or a little less
  float row_sum[2];         // this thread's share
  float correction[2];      // of o, from the last softmax(); 1 unless grown
  bool grown[2];
  int limit[2];  // keys visible
  // With extras, else not used.
  float factor;     // from products to scores in units of log2 e
  float slope[2];   // ALiBi's, in units of log2 e a token
  int position[2];  // of the query
  int mask_from;    // blocks from this one on and blocks that begin before the key below are masked
  int mask_before;

  __device__ PrefillConsumer(const PrefillKernelParams& p_, const Shared& s_, int wg, int t)
      : params(p_), shared(s_), warpgroup(wg), thread(t) {}

  __device__ bool first_lane() const { return thread % 32 == 0; }
  __device__ int tile_row(int i) const {
    return warpgroup * 64 + (thread / 32) * 16 + (thread % 32) / 4 + 8 * i;
  }

  __device__ __forceinline__ void run() {
    if constexpr (Traits::kTurns) {
      if (warpgroup == 0) ptx::named_arrive(turn(0), 256);
    }
    // The first scores of an item are computed while the results of the one before are stored.
    // Behind the last item they are computed from whatever lies there, and not used.
    bool more = begin_item();
    issue_scores();
    ptx::wgmma_wait<0>();
    ptx::pin(s);
    while (more) {
      const PrefillItem item = shared.items[item_slot.index];
      __syncwarp();
      if (first_lane()) ptx::barrier_arrive(shared.item_empty(item_slot.index));
      item_slot.advance();
      compute(item);
      more = begin_item();
      issue_scores();
      ptx::wgmma_wait<1>();
      ptx::pin(o);
      release_v();
      if constexpr (Traits::kPrefix) {
        store_partial(item);
      } else {
        store(item);
      }
      ptx::wgmma_wait<0>();
      ptx::pin(s);
    }
  }

  // Waits for the next item and what its first scores need; false: there is none.
  __device__ __forceinline__ bool begin_item() const {
    ptx::barrier_wait(shared.item_full(item_slot.index), item_slot.parity);
    if (shared.items[item_slot.index].num_blocks == 0) return false;
    ptx::barrier_wait(shared.q_full(q_slot.index), q_slot.parity);
    ptx::barrier_wait(shared.k_full(k_slot.index), k_slot.parity);
    return true;
  }

  static __device__ int turn(int wg) { return 1 + wg; }  // barrier 0 is __syncthreads()
  __device__ void turn_begin() const {
    if constexpr (Traits::kTurns) ptx::named_sync(turn(warpgroup), 256);
  }
  __device__ void turn_end() const {
    if constexpr (Traits::kTurns) {
      ptx::named_arrive(turn(warpgroup + 1 == Traits::kConsumers ? 0 : warpgroup + 1), 256);
    }
  }

  __device__ __forceinline__ void issue_scores() {
    const uint64_t a =
        ptx::k_major_operand(shared.q_stage(q_slot.index) + warpgroup * 64 * 128, 1024);
    const uint64_t b = ptx::k_major_operand(shared.k_stage(k_slot.index), Traits::kKvGroupBytes);
    ptx::pin(s);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < Traits::kDim / 16; ++step) {
      const int slice = step / 4;
      ScoreMma::ss(s, a + ((slice * Traits::kQSliceBytes + (step % 4) * 32) >> 4),
                   b + ((slice * Traits::kKvSliceBytes + (step % 4) * 32) >> 4), step != 0);
    }
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ void issue_outputs() {
    const uint64_t b = ptx::mn_major_operand(shared.v_stage(v_slot.index), Traits::kKvGroupBytes,
                                             Traits::kKvSliceBytes);
    ptx::pin(o);
    ptx::pin(p);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < Traits::kKeys / 16; ++step) {
      OutputMma::rs(o, &p[step * 4], b + ((step * 2 * Traits::kKvGroupBytes) >> 4), true);
    }
    ptx::wgmma_commit();
  }
  __device__ void release_k() {
    if (first_lane()) ptx::barrier_arrive(shared.k_empty(k_slot.index));
    k_slot.advance();
  }
  __device__ void release_v() {
    if (first_lane()) ptx::barrier_arrive(shared.v_empty(v_slot.index));
    v_slot.advance();
  }

  // Scores of block n to probabilities; new maxima, sums and the factors for what was summed
  // before.
  template <bool kMask>
  __device__ __forceinline__ void softmax(int n) {
    const float scale_log2 = Traits::kExtras ? 1.0F : params.scale_log2;
    if constexpr (Traits::kExtras) {
      follow_rules(n);
    } else if constexpr (kMask) {
      const int first = n * Traits::kKeys + 2 * (thread % 4);
#pragma unroll
      for (int j = 0; j < kScores / 4; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (first + 8 * j + (e & 1) >= limit[e >> 1]) s[4 * j + e] = -CUDART_INF_F;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float best = row_max[i];
#pragma unroll
      for (int j = 0; j < kScores / 4; ++j) {
        best = fmaxf(best, fmaxf(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]));
      }
      best = fmaxf(best, __shfl_xor_sync(0xffffffffU, best, 1));
      best = fmaxf(best, __shfl_xor_sync(0xffffffffU, best, 2));
      // A maximum that grows by little stays: probabilities up to 2^8 do no harm, and what was
      // summed before needs no correction.
      const float old = row_max[i];
      grown[i] = (best - old) * scale_log2 > 8.0F;
      row_max[i] = grown[i] ? best : old;
      // A row without a visible key so far has maximum -inf; 0 keeps the exponents defined.
      const float offset = kMask && row_max[i] == -CUDART_INF_F ? 0.0F : row_max[i] * scale_log2;
      correction[i] = grown[i] ? ptx::exp2_approx(old * scale_log2 - offset) : 1.0F;
      float sum = row_sum[i] * correction[i];
#pragma unroll
      for (int j = 0; j < kScores / 4; ++j) {
#pragma unroll
        for (int e = 2 * i; e < 2 * i + 2; ++e) {
          s[4 * j + e] = ptx::exp2_approx(s[4 * j + e] * scale_log2 - offset);
          if constexpr (!Traits::kTokenScales) sum += s[4 * j + e];
        }
        if constexpr (Traits::kTokenScales) {
          // What was raised to meet V's integers, without it.
          const float2 inverse = key_scales(2, j);
          sum += s[4 * j + 2 * i] * inverse.x + s[4 * j + 2 * i + 1] * inverse.y;
        }
      }
      row_sum[i] = sum;
    }
  }
  // Products to scores in units of log2 e; -inf where a row does not see a key.
  __device__ __forceinline__ void follow_rules(int n) {
    const Extras& extras = params.extras;
    const int first = n * Traits::kKeys + 2 * (thread % 4);
#pragma unroll
    for (int j = 0; j < kScores; ++j) s[j] *= factor;
    if constexpr (Traits::kTokenScales) {
#pragma unroll
      for (int j = 0; j < kScores / 4; ++j) {
        const float2 scale = key_scales(0, j);
        s[4 * j] *= scale.x, s[4 * j + 1] *= scale.y;
        s[4 * j + 2] *= scale.x, s[4 * j + 3] *= scale.y;
      }
    }
    if (extras.soft_cap > 0.0F) {
#pragma unroll
      for (int j = 0; j < kScores; ++j) s[j] = capped(s[j], extras);
    }
    if (extras.alibi != nullptr) {
      const float start[2] = {slope[0] * static_cast<float>(first - position[0]),
                              slope[1] * static_cast<float>(first - position[1])};
#pragma unroll
      for (int j = 0; j < kScores / 4; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          s[4 * j + e] += start[e >> 1] + slope[e >> 1] * static_cast<float>(8 * j + (e & 1));
        }
      }
    }
    if (n >= mask_from || n * Traits::kKeys < mask_before) {
#pragma unroll
      for (int j = 0; j < kScores / 4; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int key = first + 8 * j + (e & 1);
          const bool seen = key < limit[e >> 1] && position[e >> 1] - key < extras.window;
          if (!seen) s[4 * j + e] = -CUDART_INF_F;
        }
      }
    }
    if constexpr (Traits::kTokenScales) {
      // The weights as V's integers meet them.
#pragma unroll
      for (int j = 0; j < kScores / 4; ++j) {
        const float2 log2_v = key_scales(1, j);
        s[4 * j] += log2_v.x, s[4 * j + 1] += log2_v.y;
        s[4 * j + 2] += log2_v.x, s[4 * j + 3] += log2_v.y;
      }
    }
  }
  // Of the thread's keys of group j: `kind` as in PrefillShared::scales(). Before release_k().
  __device__ __forceinline__ float2 key_scales(int kind, int j) const {
    return ptx::load_shared_float2(shared.scales(k_slot.index) +
                                   (kind * Traits::kKeys + 2 * (thread % 4) + 8 * j) * 4);
  }
  __device__ __forceinline__ void begin_rules(const PrefillItem& item) {
    const Extras& extras = params.extras;
    const int kv_head = (item.head << params.pack_shift) / params.group;
    factor = params.scale_log2;
    if (extras.k_scales != nullptr) factor *= __ldg(extras.k_scales + kv_head);
    mask_from = min(item.visible, item.kv_len) / Traits::kKeys;
    // The first key that the last row sees.
    mask_before = item.visible + item.q_len - 1 - extras.window;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      position[i] = item.visible - 1 + (tile_row(i) >> params.pack_shift);
      slope[i] = extras.alibi == nullptr ? 0.0F : __ldg(extras.alibi + head_of(item, i)) * kLog2E;
    }
  }
  __device__ int head_of(const PrefillItem& item, int i) const {
    return (item.head << params.pack_shift) + (tile_row(i) & ((1 << params.pack_shift) - 1));
  }
  // The assembler likes to move the exponentials behind the next wait, where nothing is left to
  // overlap with. It does not move them behind a store that depends on them; this one never
  // happens.
  __device__ __forceinline__ void hold_softmax() const {
    ptx::store_shared_if_negative(shared.spare(), row_sum[0] + row_sum[1]);
  }
  __device__ __forceinline__ void pack_probabilities() {
#pragma unroll
    for (int j = 0; j < kScores / 2; ++j) {
      p[j] = ptx::pack_16<Traits::kBf16>(s[2 * j], s[2 * j + 1]);
    }
  }
  __device__ __forceinline__ void correct_outputs() {
    if (!__any_sync(0xffffffffU, grown[0] || grown[1])) return;
#pragma unroll
    for (int j = 0; j < kOutputs / 4; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) o[4 * j + e] *= correction[e >> 1];
    }
  }

  // P V of the block before and the scores of block n, which becomes the block before.
  template <bool kMask>
  __device__ __forceinline__ void step(int n) {
    ptx::barrier_wait(shared.k_full(k_slot.index), k_slot.parity);
    turn_begin();
    if constexpr (Traits::kOverlap) {
      issue_scores();
      ptx::barrier_wait(shared.v_full(v_slot.index), v_slot.parity);
      issue_outputs();
      turn_end();
      ptx::wgmma_wait<1>();
      ptx::pin(s);
      if constexpr (!Traits::kTokenScales) release_k();
      softmax<kMask>(n);
      if constexpr (Traits::kTokenScales) release_k();
      hold_softmax();
      ptx::wgmma_wait<0>();
      ptx::pin(o);
      release_v();
    } else {
      ptx::barrier_wait(shared.v_full(v_slot.index), v_slot.parity);
      issue_outputs();
      ptx::wgmma_wait<0>();
      ptx::pin(o);
      release_v();
      issue_scores();
      turn_end();
      ptx::wgmma_wait<0>();
      ptx::pin(s);
      softmax<kMask>(n);
      release_k();
    }
    pack_probabilities();
    correct_outputs();
  }

  // From the first scores to the last P V, which is still under way at the end.
  __device__ __forceinline__ void compute(const PrefillItem& item) {
#pragma unroll
    for (int j = 0; j < kOutputs; ++j) o[j] = 0.0F;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      row_max[i] = -CUDART_INF_F;
      row_sum[i] = 0.0F;
      limit[i] =
          min(item.kv_len, item.visible + (tile_row(i) >> params.pack_shift) * params.causal);
    }
    if constexpr (Traits::kExtras) begin_rules(item);
    if constexpr (!Traits::kTokenScales) release_k();
    const int first = first_block<Traits>(params, item.visible);
    int n = item.num_blocks - 1;
    // Blocks below this one are visible as a whole to every row of the tile.
    const int unmasked = min(item.visible, item.kv_len) / Traits::kKeys;
    if (Traits::kExtras || n >= unmasked) {
      softmax<true>(n);
    } else {
      softmax<false>(n);
    }
    if constexpr (Traits::kTokenScales) release_k();
    pack_probabilities();
    if constexpr (!Traits::kGather) {
      // Rows of V past kv_len are no keys of this row, and 0 times what lies there may be NaN. All
      // warpgroups write the same zeros, so none waits for the others.
      const int end = item.kv_len - n * Traits::kKeys;
      if (end < Traits::kKeys) clear_v_tail(end);
    }

    --n;
    if constexpr (Traits::kExtras) {
      for (; n >= first; --n) step<true>(n);
    } else {
      for (; n >= unmasked; --n) step<true>(n);
      for (; n >= 0; --n) step<false>(n);
    }
    if (first_lane()) ptx::barrier_arrive(shared.q_empty(q_slot.index));
    q_slot.advance();

    ptx::barrier_wait(shared.v_full(v_slot.index), v_slot.parity);
    issue_outputs();
  }

  __device__ __forceinline__ void clear_v_tail(int end) {
    ptx::barrier_wait(shared.v_full(v_slot.index), v_slot.parity);
    const uint32_t base = shared.v_stage(v_slot.index);
    const int chunks = (Traits::kKeys - end) * 8;
    for (int slice = 0; slice < Traits::kSlices; ++slice) {
      for (int i = thread; i < chunks; i += 128) {
        const int key = end + i / 8;
        ptx::store_shared_zero_16(base + key / 8 * Traits::kKvGroupBytes +
                                  slice * Traits::kKvSliceBytes + key % 8 * 128 + i % 8 * 16);
      }
    }
    ptx::fence_async_shared();
    ptx::named_sync(turn(Traits::kConsumers + warpgroup), 128);
  }

  // Of the prefix pass: rows of f32 and their LSE.
  __device__ __forceinline__ void store_partial(const PrefillItem& item) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = row_sum[i];
      sum += __shfl_xor_sync(0xffffffffU, sum, 1);
      sum += __shfl_xor_sync(0xffffffffU, sum, 2);
      const float inverse = sum > 0.0F ? params.out_scale / sum : sum;  // a NaN stays one
      if (tile_row(i) >= item.q_len * params.group) continue;
      const int64_t row = int64_t{item.ragged} + tile_row(i);
      if (thread % 4 == 0) {
        params.prefix.lse[row] =
            sum == 0.0F ? -CUDART_INF_F : row_max[i] * params.scale + logf(sum);
      }
      float* out = params.prefix.out + row * params.head_dim + 2 * (thread % 4);
#pragma unroll
      for (int j = 0; j < kOutputs / 4; ++j) {
        if (8 * j < params.head_dim) {
          *reinterpret_cast<float2*>(out + 8 * j) =
              make_float2(o[4 * j + 2 * i] * inverse, o[4 * j + 2 * i + 1] * inverse);
        }
      }
    }
  }

  __device__ __forceinline__ void store(const PrefillItem& item) {
    const int pack_mask = (1 << params.pack_shift) - 1;
    const int quad = thread % 4;
    uint16_t* out_row[2];
    bool valid[2];
    float inverse[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = tile_row(i);
      const int token = row >> params.pack_shift;
      const int head = (item.head << params.pack_shift) + (row & pack_mask);
      float sum = row_sum[i];
      sum += __shfl_xor_sync(0xffffffffU, sum, 1);
      sum += __shfl_xor_sync(0xffffffffU, sum, 2);
      float top = row_max[i];
      float numerator = 1.0F;
      if constexpr (Traits::kExtras) take_sink(item, head, sum, top, numerator);
      inverse[i] = sum > 0.0F ? numerator / sum : sum;  // a NaN stays one
      valid[i] = token < item.q_len;
      const int64_t token_index = item.q_begin + token;
      out_row[i] = static_cast<uint16_t*>(params.out) + token_index * params.out_stride +
                   head * params.head_dim;
      if (params.lse != nullptr && valid[i] && quad == 0) {
        params.lse[token_index * params.num_q_heads + head] =
            sum == 0.0F ? -CUDART_INF_F
                        : top * (Traits::kExtras ? 1.0F / kLog2E : params.scale) + logf(sum);
      }
    }
    // Transposes within the four threads of a row, so that each stores 16 bytes at a time.
#pragma unroll
    for (int block = 0; block < Traits::kDim / 32; ++block) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t w[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int at = (block * 4 + j) * 4 + 2 * i;
          w[j] = ptx::pack_16<Traits::kBf16>(o[at] * inverse[i], o[at + 1] * inverse[i]);
        }
        exchange(w[0], w[1], quad & 1, 1);
        exchange(w[2], w[3], quad & 1, 1);
        exchange(w[0], w[2], quad & 2, 2);
        exchange(w[1], w[3], quad & 2, 2);
        const int column = (block * 4 + quad) * 8;
        if (valid[i] && column < params.head_dim) {
          *reinterpret_cast<uint4*>(out_row[i] + column) = make_uint4(w[0], w[1], w[2], w[3]);
        }
      }
    }
  }
  // A row's sum and maximum with its sink, and what its outputs are to be multiplied by.
  __device__ __forceinline__ void take_sink(
      const PrefillItem& item, int head, float& sum, float& top, float& numerator) const {
    const Extras& extras = params.extras;
    numerator = params.out_scale;
    if (extras.v_scales != nullptr) {
      numerator *= __ldg(extras.v_scales + (item.head << params.pack_shift) / params.group);
    }
    // A row without keys has no softmax that its sink could be part of.
    if (extras.sinks == nullptr || !(sum > 0.0F)) return;
    const float sink = __ldg(extras.sinks + head) * kLog2E;
    const float high = fmaxf(top, sink);
    const float weight = ptx::exp2_approx(top - high);
    sum = sum * weight + ptx::exp2_approx(sink - high);
    numerator *= weight;
    top = high;
  }
  // One step of a transposition between this thread and the one `distance` away.
  static __device__ __forceinline__ void exchange(uint32_t& low,
                                                  uint32_t& high,
                                                  bool upper,
                                                  int distance) {
    const uint32_t received = __shfl_xor_sync(0xffffffffU, upper ? low : high, distance);
    if (upper) {
      low = received;
    } else {
      high = received;
    }
  }
};

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    prefill_kernel(const __grid_constant__ PrefillKernelParams params) {
  extern __shared__ uint8_t raw[];
  const PrefillShared<Traits> shared(raw);
  const int warpgroup = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / 128, 0);
  if (threadIdx.x == 0) {
    constexpr int kWarps = 4 * Traits::kConsumers;
    constexpr int kLoadArrivals = Traits::kGather ? 64 : 1;
    for (int i = 0; i < 2; ++i) {
      ptx::barrier_init(shared.q_full(i), 1);
      ptx::barrier_init(shared.q_empty(i), kWarps);
      ptx::barrier_init(shared.item_full(i), 1);
      ptx::barrier_init(shared.item_empty(i), kWarps + 4);  // and the loaders
    }
    for (int i = 0; i < Traits::kStages; ++i) {
      ptx::barrier_init(shared.k_full(i), kLoadArrivals);
      ptx::barrier_init(shared.v_full(i), kLoadArrivals);
      ptx::barrier_init(shared.k_empty(i), kWarps);
      ptx::barrier_init(shared.v_empty(i), kWarps);
    }
    ptx::barrier_init_fence();
    ptx::prefetch_map(&params.q_map);
  }
  __syncthreads();
  if (warpgroup == Traits::kConsumers) {
    ptx::registers_lower<Traits::kLoaderRegisters>();
    const int thread = static_cast<int>(threadIdx.x) % 128;
    if (thread < 64) {
      PrefillLoader<Traits, true>(params, shared, thread).run();
    } else {
      PrefillLoader<Traits, false>(params, shared, thread - 64).run();
    }
  } else {
    ptx::registers_raise<Traits::kConsumerRegisters>();
    PrefillConsumer<Traits>(params, shared, warpgroup, static_cast<int>(threadIdx.x) % 128).run();
  }
}

}  // namespace tenon::flash
