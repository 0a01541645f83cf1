// One row of logits in the shared memory of a cluster of thread blocks: sums and maxima over the
// row, and the search for the threshold that top_k or top_p draws.
//
// The row is read from device memory once; each block keeps a slice of it as order keys. Everything
// that is added up is a whole number, so that no result depends on timing.
#pragma once

#include <cooperative_groups.h>

#include <cstdint>

#include "sampling/cuda/sampling_kernels.h"
#include "sampling/draw.h"

namespace tenon::cuda_sampling {

namespace cg = cooperative_groups;

inline constexpr int kThreads = 512;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kBins = 1024;
inline constexpr int kBinsPerBlock = kBins / kCluster;
inline constexpr int kLogBins = 10;
inline constexpr uint32_t kFullWarp = 0xFFFFFFFFU;

// ---- order keys: a higher key is a higher logit; equal logits have equal keys

inline constexpr uint32_t kNothing = 0;                 // NaN
inline constexpr uint32_t kMinusInfinity = 0x007FFFFF;  // the lowest logit

__device__ inline uint32_t order_key(float value) {
  if (value != value) return kNothing;
  const uint32_t bits = __float_as_uint(__fadd_rn(value, 0.0F));  // -0 becomes 0
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ inline float key_value(uint32_t key) {
  if (key == kNothing) return __uint_as_float(0x7FC00000U);
  return __uint_as_float((key & 0x80000000U) != 0 ? key ^ 0x80000000U : ~key);
}

// A set of tokens that contains every better one of each member: better is a higher key, then a
// lower id.
struct Bound {
  uint32_t key = kNothing;
  int32_t id = -1;
  __device__ bool keeps(uint32_t k, int32_t i) const { return k > key || (k == key && i <= id); }
};
__device__ inline Bound tighter(const Bound& a, const Bound& b) {
  if (a.key != b.key) return a.key > b.key ? a : b;
  return a.id < b.id ? a : b;
}

// ---- sums and maxima

struct Sum {
  __device__ static uint64_t of(uint64_t a, uint64_t b) { return a + b; }
};
struct Max {
  __device__ static uint64_t of(uint64_t a, uint64_t b) { return a > b ? a : b; }
};
struct MaxOfHalves {
  __device__ static uint64_t of(uint64_t a, uint64_t b) {
    const uint32_t high = max(static_cast<uint32_t>(a >> 32), static_cast<uint32_t>(b >> 32));
    const uint32_t low = max(static_cast<uint32_t>(a), static_cast<uint32_t>(b));
    return static_cast<uint64_t>(high) << 32 | low;
  }
};

template <typename Op, int kLanes>
__device__ inline uint64_t reduce_lanes(uint64_t value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    value = Op::of(value, __shfl_xor_sync(kFullWarp, value, offset));
  }
  return value;
}

// What a search found in a histogram.
struct Found {
  uint64_t before;  // measure of the bins above
  uint64_t value;   // of the bin
  uint64_t target;
  uint32_t count;  // tokens in the bin
  int32_t bin;     // -1: the whole histogram does not reach the target
};

struct Shared {
  uint64_t exchange[2];
  uint64_t warp[kWarps];
  Found found;
  // A histogram of this block's slice: tokens, and their weight in two words.
  uint32_t count[kBins];
  uint32_t low[kBins];
  uint32_t high[kBins];
  // Of the whole row, for the bins that this block adds up.
  uint64_t row_weight[kBinsPerBlock];
  uint32_t row_count[kBinsPerBlock];
};

// Elements a block keeps: a multiple of four, so that slices start where a row is aligned.
__host__ __device__ inline int32_t slice_of(int32_t vocab_size) {
  const int32_t slice = (vocab_size + kCluster - 1) / kCluster;
  return (slice + 3) / 4 * 4;
}
inline size_t shared_bytes(int32_t vocab_size) {
  return static_cast<size_t>(slice_of(vocab_size)) * sizeof(uint32_t);
}

class ClusterRow {
 public:
  // `keys`: dynamic shared memory for a slice.
  __device__ ClusterRow(Shared& shared, uint32_t* keys, int32_t vocab_size)
      : keys(keys), shared_(shared), cluster_(cg::this_cluster()) {
    rank_ = static_cast<int32_t>(cluster_.block_rank());
    const int32_t slice = slice_of(vocab_size);
    begin = min(rank_ * slice, vocab_size);
    count = min(slice, vocab_size - begin);
    // Each warp owns a stretch of the slice, in the order of the ids.
    chunk_ = ((count + kWarps - 1) / kWarps + 31) / 32 * 32;
  }

  // Calls visit(i, value) for this block's elements of `row`, four loads in flight a thread.
  template <typename Visit>
  __device__ void read(const float* row, const Visit& visit) const {
    const float* slice = row + begin;
    const int tid = static_cast<int>(threadIdx.x);
    int32_t done = 0;
    if ((reinterpret_cast<uintptr_t>(slice) & 15U) == 0) {
      const auto* vectors = reinterpret_cast<const float4*>(slice);
      const int32_t num_vectors = count / 4;
      constexpr int kInFlight = 8;
      for (int32_t first = tid; first < num_vectors; first += kInFlight * kThreads) {
        float4 loaded[kInFlight];
#pragma unroll
        for (int j = 0; j < kInFlight; ++j) {
          const int32_t i = first + j * kThreads;
          if (i < num_vectors) loaded[j] = __ldcs(vectors + i);
        }
#pragma unroll
        for (int j = 0; j < kInFlight; ++j) {
          const int32_t i = first + j * kThreads;
          if (i < num_vectors) {
            visit(4 * i, loaded[j].x);
            visit(4 * i + 1, loaded[j].y);
            visit(4 * i + 2, loaded[j].z);
            visit(4 * i + 3, loaded[j].w);
          }
        }
      }
      done = num_vectors * 4;
    }
    for (int32_t i = done + tid; i < count; i += kThreads) visit(i, __ldcs(slice + i));
  }

  __device__ void sync() {
    cluster_.sync();
  }
  [[nodiscard]] __device__ int32_t rank() const {
    return rank_;
  }

  // `Op` over the values of all threads of the block; every thread gets it.
  template <typename Op>
  __device__ uint64_t reduce_block(uint64_t value) {
    value = reduce_lanes<Op, 32>(value);
    __syncthreads();  // what was in `warp` has been read
    if (lane() == 0) shared_.warp[warp()] = value;
    __syncthreads();
    return reduce_lanes<Op, kWarps>(shared_.warp[lane() % kWarps]);
  }

  // `Op` over the values of all threads of the cluster; every thread gets it. `before`: over the
  // blocks of lower rank, with `own` this block's share (Sum only).
  struct Parts {
    uint64_t all, before, own;
  };
  template <typename Op>
  __device__ Parts reduce_parts(uint64_t value) {
    const uint64_t own = reduce_block<Op>(value);
    if (threadIdx.x == 0) shared_.exchange[turn_] = own;
    cluster_.sync();
    const int source = lane() % kCluster;
    const uint64_t part = *cluster_.map_shared_rank(&shared_.exchange[turn_], source);
    // The other cell is used next: by the time of this one's next use all blocks have passed
    // another barrier, and so have read it.
    turn_ ^= 1;
    return {reduce_lanes<Op, kCluster>(part), reduce_lanes<Op, kCluster>(source < rank_ ? part : 0),
            own};
  }
  template <typename Op>
  __device__ uint64_t reduce(uint64_t value) {
    return reduce_parts<Op>(value).all;
  }

  // Sum over the threads of the block before this one, and over all of them.
  __device__ uint64_t scan_block(uint64_t value, uint64_t* total) {
    uint64_t inclusive = value;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const uint64_t other = __shfl_up_sync(kFullWarp, inclusive, offset);
      if (lane() >= offset) inclusive += other;
    }
    __syncthreads();
    if (lane() == 31) shared_.warp[warp()] = inclusive;
    __syncthreads();
    const uint64_t part = shared_.warp[lane() % kWarps];
    *total = reduce_lanes<Sum, kWarps>(part);
    const uint64_t before = reduce_lanes<Sum, kWarps>(lane() % kWarps < warp() ? part : 0);
    return before + inclusive - value;
  }

  // The best token's (key, ~id) in one word; 0 if there is none above NaN.
  __device__ static uint64_t ranked(uint32_t key, int32_t id) {
    return key == kNothing ? 0 : static_cast<uint64_t>(key) << 32 | ~static_cast<uint32_t>(id);
  }
  __device__ static int32_t ranked_id(uint64_t word) {
    return static_cast<int32_t>(~static_cast<uint32_t>(word));
  }

  // Sets what select() and weights refer to: `best` is the highest logit of the row.
  __device__ void set_scale(float best, float scale) {
    best_ = best;
    scale_ = scale;
  }
  __device__ float ratio(uint32_t key) const {
    return draw::log2_ratio(key_value(key), best_, scale_);
  }

  // The smallest set of best tokens within `within` whose measure reaches the target. kWeight: the
  // measure is the weight and the target top_p of the whole; otherwise it is the number of tokens
  // and the target `top_k`. Gives `within` if that does not reach it.
  template <bool kWeight>
  __device__ Bound select(const Bound& within, uint32_t top_k, float top_p) {
    // First by bins of equal width in ln-probability, where tokens spread well.
    constexpr float kBinsPerUnit = static_cast<float>(kBins) / (draw::kWeightBits + 1);
    const auto first_bin = [&](uint32_t key) {
      return min(static_cast<int32_t>(-ratio(key) * kBinsPerUnit), kBins - 1);
    };
    fill<kWeight>(within, first_bin);
    Found found = find<kWeight>([&](uint64_t total) {
      return kWeight ? draw::top_p_weight(total, top_p) : static_cast<uint64_t>(top_k);
    });
    if (found.bin < 0) return within;
    uint64_t need = found.target - found.before;
    // Then by keys: [lowest, highest] are those of the bin that holds the threshold.
    uint64_t range = 0;
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += kThreads) {
      const uint32_t key = keys[i];
      if (within.keeps(key, begin + i) && first_bin(key) == found.bin) {
        range = MaxOfHalves::of(range, static_cast<uint64_t>(key) << 32 | ~key);
      }
    }
    range = reduce<MaxOfHalves>(range);
    auto highest = static_cast<uint32_t>(range >> 32);
    uint32_t lowest = ~static_cast<uint32_t>(range);
    for (;;) {
      if (kWeight ? found.count == 1 : need == found.count) {
        return tighter(within, {lowest, INT32_MAX});  // the whole bin
      }
      if (lowest == highest) break;
      const int shift = max(0, 32 - __clz(static_cast<int>(highest - lowest)) - kLogBins);
      fill<kWeight>(within, [&](uint32_t key) {
        return key < lowest || key > highest ? -1 : static_cast<int32_t>((highest - key) >> shift);
      });
      found = find<kWeight>([&](uint64_t) { return need; });
      need -= found.before;
      highest -= static_cast<uint32_t>(found.bin) << shift;
      const uint32_t width = (1U << shift) - 1;
      if (highest - lowest > width) lowest = highest - width;
    }
    // Equal logits: those of the lowest ids.
    if (kWeight) {
      const uint64_t each = draw::weight(ratio(lowest));
      need = each == 0 ? 1 : (need + each - 1) / each;
    }
    if (need >= found.count) return tighter(within, {lowest, INT32_MAX});
    return tighter(within, {lowest, nth_tie(within, lowest, need)});
  }

  // Sum of weigh(key, id) over the row; and then the id at which the sum of those before it first
  // exceeds `point`: in one block, one thread calls found(id).
  template <typename Weigh>
  __device__ Parts weigh_row(const Weigh& weigh) {
    uint64_t sum = 0;
    const int32_t first = warp() * chunk_;
    const int32_t last = min(first + chunk_, count);
#pragma unroll 4
    for (int32_t i = first + lane(); i < last; i += 32) sum += weigh(keys[i], begin + i);
    warp_sum_ = reduce_lanes<Sum, 32>(sum);
    return reduce_parts<Sum>(sum);
  }
  template <typename Weigh, typename OnFound>
  __device__ void walk(const Parts& parts,
                       uint64_t point,
                       const Weigh& weigh,
                       const OnFound& on_found) {
    if (point < parts.before || point - parts.before >= parts.own) return;  // another block's
    point -= parts.before;
    __syncthreads();
    if (lane() == 0) shared_.warp[warp()] = warp_sum_;
    __syncthreads();
    int chunk = 0;
    while (point >= shared_.warp[chunk]) point -= shared_.warp[chunk++];
    // The whole block takes the stretch of one warp.
    const int32_t chunk_begin = chunk * chunk_;
    const int32_t chunk_end = min(chunk_begin + chunk_, count);
    const int32_t each = (chunk_ + kThreads - 1) / kThreads;
    const int32_t first = min(chunk_begin + static_cast<int32_t>(threadIdx.x) * each, chunk_end);
    const int32_t last = min(first + each, chunk_end);
    uint64_t sum = 0;
    for (int32_t i = first; i < last; ++i) sum += weigh(keys[i], begin + i);
    uint64_t total = 0;
    uint64_t passed = scan_block(sum, &total);
    if (point < passed || point - passed >= sum) return;
    for (int32_t i = first; i < last; ++i) {
      passed += weigh(keys[i], begin + i);
      if (passed > point) {
        on_found(begin + i);
        return;
      }
    }
  }

  uint32_t* keys;     // of this block's slice
  int32_t begin = 0;  // id of the slice's first token
  int32_t count = 0;  // tokens of the slice

 private:
  __device__ static int lane() {
    return static_cast<int>(threadIdx.x) % 32;
  }
  __device__ static int warp() {
    return static_cast<int>(threadIdx.x) / 32;
  }

  // The histogram of this block's slice over bin(key); a negative bin is left out.
  template <bool kWeight, typename Bin>
  __device__ void fill(const Bound& within, const Bin& bin) {
    const int tid = static_cast<int>(threadIdx.x);
    // All blocks have read the histogram before: find() ends with a barrier after reading.
    for (int i = tid; i < kBins; i += kThreads) {
      shared_.count[i] = 0;
      shared_.low[i] = 0;
      shared_.high[i] = 0;
    }
    __syncthreads();
#pragma unroll 2
    for (int32_t i = tid; i < count; i += kThreads) {
      const uint32_t key = keys[i];
      if (!within.keeps(key, begin + i)) continue;
      const int32_t b = bin(key);
      if (b < 0) continue;
      atomicAdd(&shared_.count[b], 1U);
      if (kWeight) {
        // 64-bit addition by words: whoever overflows the low one carries.
        const uint64_t weight = draw::weight(ratio(key));
        const auto low = static_cast<uint32_t>(weight);
        auto high = static_cast<uint32_t>(weight >> 32);
        if (low != 0) high += atomicAdd(&shared_.low[b], low) > ~low ? 1U : 0U;
        if (high != 0) atomicAdd(&shared_.high[b], high);
      }
    }
  }

  // Adds the blocks' histograms up and finds the bin in which the measure reaches target(total).
  template <bool kWeight, typename Target>
  __device__ Found find(const Target& target) {
    cluster_.sync();
    const int tid = static_cast<int>(threadIdx.x);
    if (tid < kBinsPerBlock) {
      const int bin = rank_ * kBinsPerBlock + tid;
      uint64_t weight = 0;
      uint32_t tokens = 0;
#pragma unroll
      for (int r = 0; r < kCluster; ++r) {
        tokens += cluster_.map_shared_rank(shared_.count, r)[bin];
        if (kWeight) {
          weight += cluster_.map_shared_rank(shared_.low, r)[bin];
          weight += static_cast<uint64_t>(cluster_.map_shared_rank(shared_.high, r)[bin]) << 32;
        }
      }
      shared_.row_count[tid] = tokens;
      shared_.row_weight[tid] = kWeight ? weight : tokens;
    }
    cluster_.sync();
    // Every block looks at all bins, two a thread.
    constexpr int kEach = kBins / kThreads;
    uint64_t values[kEach];
    uint32_t counts[kEach];
    uint64_t sum = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int bin = tid * kEach + j;
      const int owner = bin / kBinsPerBlock;
      values[j] = cluster_.map_shared_rank(shared_.row_weight, owner)[bin % kBinsPerBlock];
      counts[j] = cluster_.map_shared_rank(shared_.row_count, owner)[bin % kBinsPerBlock];
      sum += values[j];
    }
    uint64_t total = 0;
    uint64_t before = scan_block(sum, &total);
    const uint64_t wanted = target(total);
    if (tid == 0) shared_.found = {0, 0, wanted, 0, -1};
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (before < wanted && wanted - before <= values[j]) {
        shared_.found = {before, values[j], wanted, counts[j], tid * kEach + j};
      }
      before += values[j];
    }
    __syncthreads();
    return shared_.found;
  }

  // Id of the n-th (from 1) token with `key`, by ids.
  __device__ int32_t nth_tie(const Bound& within, uint32_t key, uint64_t n) {
    const auto tie = [&](uint32_t k, int32_t id) -> uint64_t {
      return k == key && within.keeps(k, id) ? 1 : 0;
    };
    const Parts parts = weigh_row(tie);
    if (threadIdx.x == 0) shared_.found.bin = 0;
    walk(parts, n - 1, tie, [&](int32_t id) { shared_.found.bin = id; });
    __syncthreads();
    return static_cast<int32_t>(
        reduce<Max>(static_cast<uint64_t>(static_cast<uint32_t>(shared_.found.bin))));
  }

  Shared& shared_;
  cg::cluster_group cluster_;
  int32_t rank_ = 0;
  int32_t chunk_ = 0;
  int turn_ = 0;
  float best_ = 0;
  float scale_ = 0;
  uint64_t warp_sum_ = 0;
};

}  // namespace tenon::cuda_sampling
