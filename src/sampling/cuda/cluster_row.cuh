// One row of logits in the shared memory of a cluster of thread blocks: sums and maxima over the
// row, and the search for the threshold that top_k or top_p draws.
//
// The row is read from device memory once; each block keeps a slice of it. Everything that is added
// up is a whole number, so that no result depends on timing.
#pragma once

#include <cooperative_groups.h>

#include <cmath>
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

// A higher key is a higher logit; equal logits have equal keys. Not for NaN.
__device__ inline uint32_t order_key(float value) {
  const uint32_t bits = __float_as_uint(__fadd_rn(value, 0.0F));  // -0 becomes 0
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ inline float key_value(uint32_t key) {
  return __uint_as_float((key & 0x80000000U) != 0 ? key ^ 0x80000000U : ~key);
}

// A set of tokens that contains every better one of each member: better is a higher logit, then a
// lower id. NaN is in none.
struct Bound {
  float logit = -INFINITY;
  int32_t id = INT32_MAX;
  __device__ bool keeps(float value, int32_t i) const {
    return value > logit || (value == logit && i <= id);
  }
};
__device__ inline Bound tighter(const Bound& a, const Bound& b) {
  if (a.logit != b.logit) return a.logit > b.logit ? a : b;
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

// Elements of a row that a block takes.
__host__ __device__ inline int32_t slice_of(int32_t vocab_size) {
  const int32_t slice = (vocab_size + kCluster - 1) / kCluster;
  return (slice + 3) / 4 * 4;
}
// In whole vectors, wherever the slice starts in the first of them.
inline size_t shared_bytes(int32_t vocab_size) {
  return (static_cast<size_t>(slice_of(vocab_size)) + 4) * sizeof(float);
}

// A thread's best token so far; visit ascending ids.
struct Best {
  float logit = -INFINITY;
  int32_t id = -1;
  __device__ void visit(float value, int32_t i) {
    if (value > logit) {
      logit = value;
      id = i;
    }
  }
  // The higher the better, as one word; 0 if there is none above -infinity.
  [[nodiscard]] __device__ uint64_t word() const { return id < 0 ? 0 : word_of(logit, id); }
  __device__ static uint64_t word_of(float value, int32_t i) {
    return static_cast<uint64_t>(order_key(value)) << 32 | ~static_cast<uint32_t>(i);
  }
  __device__ static Best of_word(uint64_t word) {
    if (word == 0) return {};
    return {key_value(static_cast<uint32_t>(word >> 32)),
            static_cast<int32_t>(~static_cast<uint32_t>(word))};
  }
};

class ClusterRow {
 public:
  // `values`: dynamic shared memory for a slice; null if it is not kept.
  __device__ ClusterRow(Shared& shared, float* values, const Logits& logits, int32_t index)
      : shared_(shared),
        cluster_(cg::this_cluster()),
        values_(reinterpret_cast<float4*>(values)),
        row_(logits.data + index * logits.row_stride) {
    rank_ = static_cast<int32_t>(cluster_.block_rank());
    const int32_t slice = slice_of(logits.vocab_size);
    begin_ = min(rank_ * slice, logits.vocab_size);
    end_ = min(begin_ + slice, logits.vocab_size);
    // Vectors are aligned in memory; what the first and the last hold of others is left out.
    const auto address = reinterpret_cast<uintptr_t>(row_ + begin_);
    id0_ = begin_ - static_cast<int32_t>(address / sizeof(float) % 4);
    const int32_t num_vectors = (end_ - id0_ + 3) / 4;
    // Each warp owns a stretch of the slice, in the order of the ids.
    const int32_t chunk = (num_vectors + kWarps - 1) / kWarps;
    chunk_ = chunk;
    first_ = min(warp() * chunk, num_vectors);
    last_ = min(first_ + chunk, num_vectors);
  }

  // Calls visit(v, logits of a vector) for this thread's vectors of the row in device memory, with
  // kInFlight loads on their way. NaN stands for what is outside of the slice. Ascending.
  template <int kInFlight, typename Visit>
  __device__ void read(const Visit& visit) const {
    for (int32_t start = first_ + lane(); start < last_; start += 32 * kInFlight) {
      float4 loaded[kInFlight];
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) loaded[j] = load(start + 32 * j);
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        if (start + 32 * j < last_) visit(start + 32 * j, loaded[j]);
      }
    }
  }
  // This thread's best in device memory.
  template <int kInFlight>
  __device__ Best best() const {
    Best best;
    read<kInFlight>([&](int32_t v, const float4& x) {
      visit_vector(v, x, [&](float value, int32_t id) { best.visit(value, id); });
    });
    return best;
  }
  // The same, and reads the slice into shared memory; every thread its own vectors.
  __device__ Best stage() {
    Best best;
    read<4>([&](int32_t v, const float4& x) {
      values_[v] = x;
      visit_vector(v, x, [&](float value, int32_t id) { best.visit(value, id); });
    });
    return best;
  }
  // Calls visit(logit, id) for this thread's logits in shared memory. Ascending.
  template <typename Visit>
  __device__ void each(const Visit& visit) const {
#pragma unroll 1
    for (int32_t v = first_ + lane(); v < last_; v += 32) visit_vector(v, values_[v], visit);
  }
  // Replaces them by change(logit, id).
  template <typename Change>
  __device__ void change(const Change& change) {
    for (int32_t v = first_ + lane(); v < last_; v += 32) {
      float4 x = values_[v];
      const int32_t id = id0_ + 4 * v;
      x.x = inside(id) ? change(x.x, id) : x.x;
      x.y = inside(id + 1) ? change(x.y, id + 1) : x.y;
      x.z = inside(id + 2) ? change(x.z, id + 2) : x.z;
      x.w = inside(id + 3) ? change(x.w, id + 3) : x.w;
      values_[v] = x;
    }
  }
  // One logit in shared memory, if it is in this block's slice.
  __device__ float* find_logit(int32_t id) const {
    return inside(id) ? reinterpret_cast<float*>(values_) + (id - id0_) : nullptr;
  }
  [[nodiscard]] __device__ const float* row() const {
    return row_;
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

  // Sets what select() and weights refer to: `best` is the highest logit of the row.
  __device__ void set_scale(float best, float scale) {
    best_ = best;
    scale_ = scale;
  }
  __device__ float ratio(float logit) const {
    return draw::log2_ratio(logit, best_, scale_);
  }

  // The smallest set of best tokens within `within` whose measure reaches the target. kWeight: the
  // measure is the weight and the target top_p of the whole; otherwise it is the number of tokens
  // and the target `top_k`. Gives `within` if that does not reach it.
  template <bool kWeight>
  __device__ Bound select(const Bound& within, uint32_t top_k, float top_p) {
    // First by bins of equal width in log-probability, where tokens spread well.
    const float bins = -scale_ * (static_cast<float>(kBins) / (draw::kWeightBits + 1));
    const auto first_bin = [&](float logit) {
      return min(static_cast<int32_t>((logit - best_) * bins), kBins - 1);
    };
    fill<!kWeight, kWeight>(within, first_bin);
    Found found = find<kWeight>([&](uint64_t total) {
      return kWeight ? draw::top_p_weight(total, top_p) : static_cast<uint64_t>(top_k);
    });
    if (found.bin < 0) return within;
    uint64_t need = found.target - found.before;
    // Then by keys: [lowest, highest] are those of the bin that holds the threshold.
    uint32_t largest = 0;
    uint32_t largest_inverse = 0;
    each([&](float logit, int32_t id) {
      if (within.keeps(logit, id) && first_bin(logit) == found.bin) {
        const uint32_t key = order_key(logit);
        largest = max(largest, key);
        largest_inverse = max(largest_inverse, ~key);
      }
    });
    const uint64_t range =
        reduce<MaxOfHalves>(static_cast<uint64_t>(largest) << 32 | largest_inverse);
    auto highest = static_cast<uint32_t>(range >> 32);
    uint32_t lowest = ~static_cast<uint32_t>(range);
    if (kWeight && lowest == highest) {  // as many as its weight says
      const uint64_t one = draw::weight(ratio(key_value(lowest)));
      found.count = static_cast<uint32_t>(found.value / max(one, uint64_t{1}));
    }
    for (;;) {
      if (kWeight ? found.count == 1 : need == found.count) {
        return tighter(within, {key_value(lowest), INT32_MAX});  // the whole bin
      }
      if (lowest == highest) break;
      const int shift = max(0, 32 - __clz(static_cast<int>(highest - lowest)) - kLogBins);
      const float low = key_value(lowest);
      const float high = key_value(highest);
      fill<true, kWeight>(within, [&](float logit) {
        return logit >= low && logit <= high
                   ? static_cast<int32_t>((highest - order_key(logit)) >> shift)
                   : -1;
      });
      found = find<kWeight>([&](uint64_t) { return need; });
      need -= found.before;
      highest -= static_cast<uint32_t>(found.bin) << shift;
      const uint32_t width = (1U << shift) - 1;
      if (highest - lowest > width) lowest = highest - width;
    }
    // Equal logits: those of the lowest ids.
    const float threshold = key_value(lowest);
    if (kWeight) {
      const uint64_t one = max(draw::weight(ratio(threshold)), uint64_t{1});
      need = (need + one - 1) / one;
    }
    if (need >= found.count) return tighter(within, {threshold, INT32_MAX});
    return tighter(within, {threshold, nth_tie(within, threshold, need)});
  }

  // Sum of weigh(logit, id) over the row; and then the id at which the sum of those up to it first
  // exceeds `point`: in one block, one thread calls on_found(id).
  template <typename Weigh>
  __device__ Parts weigh_row(const Weigh& weigh) {
    uint64_t sum = 0;
    each([&](float logit, int32_t id) { sum += weigh(logit, id); });
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
    const float* const values = reinterpret_cast<const float*>(values_);
    const int32_t chunk_begin = 4 * chunk * chunk_;
    const int32_t chunk_end = min(chunk_begin + 4 * chunk_, (end_ - id0_ + 3) / 4 * 4);
    const int32_t each = (4 * chunk_ + kThreads - 1) / kThreads;
    const int32_t first = min(chunk_begin + static_cast<int32_t>(threadIdx.x) * each, chunk_end);
    const int32_t last = min(first + each, chunk_end);
    uint64_t sum = 0;
    for (int32_t i = first; i < last; ++i) sum += weigh(values[i], id0_ + i);
    uint64_t total = 0;
    uint64_t passed = scan_block(sum, &total);
    if (point < passed || point - passed >= sum) return;
    for (int32_t i = first; i < last; ++i) {
      passed += weigh(values[i], id0_ + i);
      if (passed > point) {
        on_found(id0_ + i);
        return;
      }
    }
  }

 private:
  __device__ static int lane() {
    return static_cast<int>(threadIdx.x) % 32;
  }
  __device__ static int warp() {
    return static_cast<int>(threadIdx.x) / 32;
  }
  __device__ bool inside(int32_t id) const {
    return id >= begin_ && id < end_;
  }

  template <typename Visit>
  __device__ void visit_vector(int32_t v, const float4& x, const Visit& visit) const {
    const int32_t id = id0_ + 4 * v;
    visit(x.x, id);
    visit(x.y, id + 1);
    visit(x.z, id + 2);
    visit(x.w, id + 3);
  }

  __device__ float4 load(int32_t v) const {
    const int32_t id = id0_ + 4 * v;
    float4 x = {NAN, NAN, NAN, NAN};
    if (v >= last_) return x;
    if (inside(id) && inside(id + 3)) return __ldcs(reinterpret_cast<const float4*>(row_ + id));
    if (inside(id)) x.x = row_[id];
    if (inside(id + 1)) x.y = row_[id + 1];
    if (inside(id + 2)) x.z = row_[id + 2];
    if (inside(id + 3)) x.w = row_[id + 3];
    return x;
  }

  // The histogram of this block's slice over bin(logit); a negative bin is left out.
  template <bool kCount, bool kWeight, typename Bin>
  __device__ void fill(const Bound& within, const Bin& bin) {
    // All blocks have read the histogram before: find() has a barrier behind the reading.
    for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads) {
      shared_.count[i] = 0;
      shared_.low[i] = 0;
      shared_.high[i] = 0;
    }
    __syncthreads();
    each([&](float logit, int32_t id) {
      if (!within.keeps(logit, id)) return;
      const int32_t b = bin(logit);
      if (b < 0) return;
      if (kCount) atomicAdd(&shared_.count[b], 1U);
      if (kWeight) {
        // 64-bit addition by words: whoever overflows the low one carries.
        const uint64_t weight = draw::weight(ratio(logit));
        const auto low = static_cast<uint32_t>(weight);
        auto high = static_cast<uint32_t>(weight >> 32);
        if (low != 0) high += atomicAdd(&shared_.low[b], low) > ~low ? 1U : 0U;
        if (high != 0) atomicAdd(&shared_.high[b], high);
      }
    });
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

  // Id of the n-th (from 1) token of this logit, by ids.
  __device__ int32_t nth_tie(const Bound& within, float logit, uint64_t n) {
    const auto tie = [&](float value, int32_t id) -> uint64_t {
      return value == logit && within.keeps(value, id) ? 1 : 0;
    };
    const Parts parts = weigh_row(tie);
    if (threadIdx.x == 0) shared_.found.bin = 0;
    walk(parts, n - 1, tie, [&](int32_t id) { shared_.found.bin = id; });
    __syncthreads();
    return static_cast<int32_t>(reduce<Max>(static_cast<uint32_t>(shared_.found.bin)));
  }

  Shared& shared_;
  cg::cluster_group cluster_;
  float4* values_;
  const float* row_;
  int32_t rank_ = 0;
  int32_t begin_ = 0, end_ = 0;   // ids of the slice
  int32_t id0_ = 0;               // of the first element of vector 0; up to 3 before begin_
  int32_t chunk_ = 0;             // vectors a warp
  int32_t first_ = 0, last_ = 0;  // this warp's vectors
  int turn_ = 0;
  float best_ = 0;
  float scale_ = 0;
  uint64_t warp_sum_ = 0;
};

}  // namespace tenon::cuda_sampling
