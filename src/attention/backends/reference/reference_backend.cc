#include "attention/backends/reference/reference_backend.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "attention/cascade.h"
#include "base/check.h"

namespace tenon {
namespace {

double load(const KvView& kv, int64_t offset) {
  switch (kv.dtype) {
    case DType::kF32: return static_cast<const float*>(kv.base)[offset];
    case DType::kF16: return f16_to_f32(static_cast<const uint16_t*>(kv.base)[offset]);
    case DType::kF8E4M3: return f8e4m3_to_f32(static_cast<const uint8_t*>(kv.base)[offset]);
    case DType::kI8: return static_cast<const int8_t*>(kv.base)[offset];
    default: return bf16_to_f32(static_cast<const uint16_t*>(kv.base)[offset]);
  }
}

void store(const KvView& kv, int64_t offset, float value) {
  switch (kv.dtype) {
    case DType::kF32: static_cast<float*>(kv.base)[offset] = value; break;
    case DType::kF16: static_cast<uint16_t*>(kv.base)[offset] = f32_to_f16(value); break;
    case DType::kF8E4M3: static_cast<uint8_t*>(kv.base)[offset] = f32_to_f8e4m3(value); break;
    case DType::kI8: static_cast<int8_t*>(kv.base)[offset] = static_cast<int8_t>(value); break;
    default: static_cast<uint16_t*>(kv.base)[offset] = f32_to_bf16(value); break;
  }
}

class ReferenceMetadata final : public AttentionMetadata {
 public:
  [[nodiscard]] std::string describe() const override {
    return fmt::format("reference: {} rows one by one, {} prefix levels", batch.num_rows(),
                       prefixes.groups.size());
  }
  // The prefix levels are real segments whose states are merged, but every row reads them itself.
  [[nodiscard]] CascadeUse cascade() const override {
    CascadeUse use = cascade_use(prefixes, 0);
    use.tokens_not_read = 0;
    return use;
  }
  // Where the row's prefix levels end, in keys.
  void segments(int32_t row, int32_t block_size, std::vector<int32_t>& ends) const {
    ends.clear();
    for (const PrefixGroup& group : prefixes.groups) {
      const auto rows =
          std::span(prefixes.rows)
              .subspan(static_cast<size_t>(group.first), static_cast<size_t>(group.count));
      if (std::ranges::find(rows, row) != rows.end()) ends.push_back(group.end_page * block_size);
    }
  }

  BatchView batch;  // borrowed for the step
  PrefixTree prefixes;
};

class ReferenceImpl final : public AttentionImpl {
 public:
  ReferenceImpl(const LayerParams& params, bool causal) : params_(params), causal_(causal) {}

  void write_kv(const TensorView& k, const TensorView& v, std::span<const int64_t> slots) override {
    const KvView& kv = params_.kv;
    if (params_.shares_kv) return;
    for (size_t t = 0; t < slots.size(); ++t) {
      if (slots[t] < 0) continue;
      const int64_t block = slots[t] / kv.block_size;
      const int64_t token = slots[t] % kv.block_size;
      TENON_CHECK_LT(block, kv.num_blocks);
      const float* k_row = k.row<float>(static_cast<int64_t>(t));
      const float* v_row = v.row<float>(static_cast<int64_t>(t));
      for (int32_t head = 0; head < kv.num_kv_heads; ++head) {
        float* scales = kv.dtype == DType::kI8 ? kv.token_scales(block, head) + token : nullptr;
        store_cell({k_row + head * kv.head_dim_k, static_cast<size_t>(kv.head_dim_k)},
                   kv.scales.k_of(head), scales,
                   [&](int32_t i) { return kv.element(block, head, token, i); });
        store_cell({v_row + head * kv.head_dim_v, static_cast<size_t>(kv.head_dim_v)},
                   kv.scales.v_of(head), scales == nullptr ? nullptr : scales + kv.block_size,
                   [&](int32_t i) { return kv.element(block, head, token, kv.v_offset + i); });
      }
    }
  }

  void forward(const AttentionInput& in, const AttentionMetadata& metadata) override {
    const TensorView& q = in.q;
    const TensorView& out = in.out;
    const std::span<float> lse = in.lse;
    const auto& plan = static_cast<const ReferenceMetadata&>(metadata);
    const BatchView& batch = plan.batch;
    const int32_t group = params_.num_q_heads / params_.num_kv_heads;
    for (int32_t row = 0; row < batch.num_rows(); ++row) {
      const int32_t query_len = batch.query_len(row);
      const int32_t seq_len = batch.seq_lens[static_cast<size_t>(row)];
      const int32_t context = seq_len - query_len;
      plan.segments(row, params_.kv.block_size, ends_);
      ends_.push_back(seq_len);
      for (int32_t head = 0; head < params_.num_q_heads; ++head) {
        if (head % group == 0) gather(batch, row, head / group);
        for (int32_t i = 0; i < query_len; ++i) {
          const int64_t token = batch.query_start_loc[static_cast<size_t>(row)] + i;
          const Query query{head, context + i,
                            q.row<float>(token) + int64_t{head} * params_.head_dim_qk};
          const double value =
              attend(query, ends_, out.row<float>(token) + int64_t{head} * params_.head_dim_v);
          if (!lse.empty()) {
            lse[static_cast<size_t>(token * params_.num_q_heads + head)] =
                static_cast<float>(value);
          }
        }
      }
    }
  }

 private:
  // Stores values / scale at offset(i); with `token_scale`, as integers of at most 127 with the
  // scale that takes: quotient * (127 / largest), rounded to nearest even.
  template <typename Offset>
  void store_cell(std::span<const float> values,
                  float scale,
                  float* token_scale,
                  const Offset& offset) {
    float factor = 1.0F;
    if (token_scale != nullptr) {
      float largest = 0;
      for (const float value : values) largest = std::max(largest, std::abs(value / scale));
      factor = largest > 0 ? 127.0F / largest : 0.0F;
      *token_scale = largest / 127.0F;
    }
    for (size_t i = 0; i < values.size(); ++i) {
      const float value = values[i] / scale;
      store(params_.kv, offset(static_cast<int32_t>(i)),
            token_scale == nullptr ? value : std::nearbyint(value * factor));
    }
  }

  [[nodiscard]] bool visible(int32_t query, int32_t key) const {
    if (!causal_) return true;
    const int32_t distance = query - key;
    return distance >= 0 && (!params_.sliding_window || distance < *params_.sliding_window);
  }

  // Copies the keys and values of one row and KV head out of the pages.
  void gather(const BatchView& batch, int32_t row, int32_t kv_head) {
    const KvView& kv = params_.kv;
    const int32_t* pages = batch.page_indices.data() + batch.page_indptr[static_cast<size_t>(row)];
    keys_.clear();
    values_.clear();
    for (int32_t key = 0; key < batch.seq_lens[static_cast<size_t>(row)]; ++key) {
      const auto element = [&](int64_t i) {
        return load(kv, kv.element(pages[key / kv.block_size], kv_head, key % kv.block_size, i));
      };
      double k_scale = kv.scales.k_of(kv_head);
      double v_scale = kv.scales.v_of(kv_head);
      if (kv.dtype == DType::kI8) {
        const float* scales =
            kv.token_scales(pages[key / kv.block_size], kv_head) + key % kv.block_size;
        k_scale *= scales[0];
        v_scale *= scales[kv.block_size];
      }
      for (int32_t i = 0; i < kv.head_dim_k; ++i) keys_.push_back(element(i) * k_scale);
      for (int32_t i = 0; i < kv.head_dim_v; ++i) {
        values_.push_back(element(kv.v_offset + i) * v_scale);
      }
    }
  }

  // One head's query at `position`, against the gathered keys.
  struct Query {
    int32_t head = 0;
    int32_t position = 0;
    const float* q = nullptr;
  };

  [[nodiscard]] double score(const Query& query, int32_t key) const {
    const auto dim = static_cast<size_t>(params_.head_dim_qk);
    const double* k = &keys_[static_cast<size_t>(key) * dim];
    double score = 0;
    for (size_t i = 0; i < dim; ++i) score += query.q[i] * k[i];
    score *= params_.scale;
    if (params_.logits_soft_cap > 0) {
      score = params_.logits_soft_cap * std::tanh(score / params_.logits_soft_cap);
    }
    if (!params_.alibi_slopes.empty()) {
      score += static_cast<double>(params_.alibi_slopes[static_cast<size_t>(query.head)]) *
               (key - query.position);
    }
    return score;
  }

  // Unnormalised softmax over a segment of keys. Nothing seen: total 0, top -inf.
  struct State {
    double top = -std::numeric_limits<double>::infinity();
    double total = 0;
    std::vector<double> sum;  // [head_dim_v]
  };

  void attend_segment(const Query& query, int32_t begin, int32_t end, State& state) {
    state.top = -std::numeric_limits<double>::infinity();
    state.total = 0;
    state.sum.assign(static_cast<size_t>(params_.head_dim_v), 0.0);
    scores_.clear();
    for (int32_t key = begin; key < end; ++key) {
      if (!visible(query.position, key)) continue;
      scores_.emplace_back(key, score(query, key));
      state.top = std::max(state.top, scores_.back().second);
    }
    for (const auto& [key, value] : scores_) {
      const double weight = std::exp(value - state.top);
      const double* v = &values_[static_cast<size_t>(key) * state.sum.size()];
      state.total += weight;
      for (size_t i = 0; i < state.sum.size(); ++i) state.sum[i] += weight * v[i];
    }
  }

  // a := a and b together; a sum of no weights stays one.
  static void merge(State& a, const State& b) {
    if (b.total == 0) return;
    const double top = std::max(a.top, b.top);
    const double weight_a = a.total == 0 ? 0 : std::exp(a.top - top);
    const double weight_b = std::exp(b.top - top);
    for (size_t i = 0; i < a.sum.size(); ++i) a.sum[i] = weight_a * a.sum[i] + weight_b * b.sum[i];
    a.total = weight_a * a.total + weight_b * b.total;
    a.top = top;
  }

  // Writes one head's output over the gathered keys, in segments that end at `ends`; returns its
  // log-sum-exp.
  double attend(const Query& query, std::span<const int32_t> ends, float* out) {
    State& all = all_;
    State& part = part_;
    attend_segment(query, 0, ends[0], all);
    for (size_t i = 1; i < ends.size(); ++i) {
      attend_segment(query, ends[i - 1], ends[i], part);
      merge(all, part);
    }
    // A row without keys has no softmax at all, so nothing for its sink to be part of.
    if (!params_.sinks.empty() && all.total > 0) {
      part.top = params_.sinks[static_cast<size_t>(query.head)];
      part.total = 1;
      part.sum.assign(all.sum.size(), 0.0);
      merge(all, part);
    }
    for (size_t i = 0; i < all.sum.size(); ++i) {
      out[i] = all.total == 0 ? 0.0F : static_cast<float>(all.sum[i] / all.total);
    }
    return all.total == 0 ? -std::numeric_limits<double>::infinity()
                          : all.top + std::log(all.total);
  }

  const LayerParams params_;
  const bool causal_;
  std::vector<double> keys_;                        // [seq_len, head_dim_qk] of one row and KV head
  std::vector<double> values_;                      // [seq_len, head_dim_v]
  std::vector<std::pair<int32_t, double>> scores_;  // of the visible keys of a segment
  std::vector<int32_t> ends_;                       // of a row's segments
  State all_, part_;
};

class ReferenceBackend final : public AttentionBackend {
 public:
  explicit ReferenceBackend(const BackendContext& context)
      : requirements_(context.requirements), cascade_(context.cascade) {
    info_.name = "reference";
    info_.summary = "double accumulation, one row at a time; the oracle of the tests";
    info_.devices = {DeviceType::kCpu};
    info_.q_dtypes = {DType::kF32};
    info_.kv_dtypes = {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kI8};
    info_.max_head_dim = 65536;
    info_.layouts = {KvLayout::kLBHNC, KvLayout::kLBNHC, KvLayout::kBLHNC,
                     KvLayout::kLBHNCSwizzled};
    using enum AttentionFeature;
    info_.features = features({kNonCausal, kSlidingWindow, kLogitsSoftCap, kAlibi, kSinks,
                               kKvSharing, kCascade, kLse, kKvScalePerHead});
    info_.max_decode_query_len = std::numeric_limits<int32_t>::max();
    info_.batch_invariant = true;
  }

  [[nodiscard]] const BackendInfo& info() const override { return info_; }

  [[nodiscard]] int64_t workspace_size(const AttentionLimits& limits) const override {
    // One row's keys, values and scores of one KV head, in double.
    const int64_t per_key = int64_t{requirements_.head_dim_qk} + requirements_.head_dim_v + 2;
    return (limits.max_seq_len * per_key + 2 * int64_t{requirements_.head_dim_v}) *
           static_cast<int64_t>(sizeof(double));
  }

  Status prepare(const AttentionLimits& limits) override {
    limits_ = limits;
    return ok_status();
  }

  Result<const AttentionMetadata*> build_metadata(const BatchView& batch,
                                                  const GraphBounds*) override {
    TENON_RETURN_IF_ERROR(validate_batch_rows(batch, requirements_.block_size));
    TENON_RETURN_IF_ERROR(check_batch_limits(batch, limits_));
    ReferenceMetadata& metadata = ring_[next_];
    next_ = (next_ + 1) % ring_.size();
    metadata.batch = batch;
    metadata.prefixes.clear();
    if (cascade_ != CascadeMode::kOff) {
      choose_prefix_groups(
          batch, requirements_.block_size, 1, [](const PrefixLevel&) { return true; },
          metadata.prefixes);
    }
    return &metadata;
  }

  std::unique_ptr<AttentionImpl> make_impl(const LayerParams& params) override {
    return std::make_unique<ReferenceImpl>(params, requirements_.causal);
  }

 private:
  const AttentionRequirements requirements_;
  const CascadeMode cascade_;
  BackendInfo info_;
  AttentionLimits limits_;
  std::array<ReferenceMetadata, kMetadataRing> ring_;
  size_t next_ = 0;
};

}  // namespace

std::unique_ptr<AttentionBackend> make_reference_attention(const BackendContext& context) {
  return std::make_unique<ReferenceBackend>(context);
}

}  // namespace tenon
