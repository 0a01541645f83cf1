#include "attention/backends/reference/reference_backend.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace tenon {
namespace {

double load(const KvView& kv, int64_t offset) {
  switch (kv.dtype) {
    case DType::kF32: return static_cast<const float*>(kv.base)[offset];
    case DType::kF16: return f16_to_f32(static_cast<const uint16_t*>(kv.base)[offset]);
    default: return bf16_to_f32(static_cast<const uint16_t*>(kv.base)[offset]);
  }
}

void store(const KvView& kv, int64_t offset, float value) {
  switch (kv.dtype) {
    case DType::kF32: static_cast<float*>(kv.base)[offset] = value; break;
    case DType::kF16: static_cast<uint16_t*>(kv.base)[offset] = f32_to_f16(value); break;
    default: static_cast<uint16_t*>(kv.base)[offset] = f32_to_bf16(value); break;
  }
}

class ReferenceMetadata final : public AttentionMetadata {
 public:
  [[nodiscard]] std::string describe() const override {
    return fmt::format("reference: rows 0..{} one by one", batch.num_rows());
  }
  BatchView batch;  // borrowed for the step
};

class ReferenceImpl final : public AttentionImpl {
 public:
  ReferenceImpl(const LayerParams& params, bool causal)
      : params_(params), causal_(causal), sum_(static_cast<size_t>(params.head_dim_v)) {}

  void write_kv(const TensorView& k, const TensorView& v, std::span<const int64_t> slots) override {
    const KvView& kv = params_.kv;
    for (size_t t = 0; t < slots.size(); ++t) {
      if (slots[t] < 0) continue;
      const int64_t block = slots[t] / kv.block_size;
      const int64_t token = slots[t] % kv.block_size;
      TENON_CHECK_LT(block, kv.num_blocks);
      const float* k_row = k.row<float>(static_cast<int64_t>(t));
      const float* v_row = v.row<float>(static_cast<int64_t>(t));
      for (int32_t head = 0; head < kv.num_kv_heads; ++head) {
        const int64_t cell = kv.k_offset(block, head, token);
        for (int32_t i = 0; i < kv.head_dim_k; ++i) {
          store(kv, cell + i, k_row[head * kv.head_dim_k + i] / kv.k_scale);
        }
        for (int32_t i = 0; i < kv.head_dim_v; ++i) {
          store(kv, cell + kv.v_offset + i, v_row[head * kv.head_dim_v + i] / kv.v_scale);
        }
      }
    }
  }

  void forward(const TensorView& q, const TensorView& out, const AttentionMetadata& metadata,
               std::span<float> lse) override {
    const BatchView& batch = static_cast<const ReferenceMetadata&>(metadata).batch;
    scores_.resize(static_cast<size_t>(batch.max_seq_len));
    for (int32_t row = 0; row < batch.num_rows(); ++row) {
      const int32_t query_len = batch.query_len(row);
      const int32_t seq_len = batch.seq_lens[static_cast<size_t>(row)];
      for (int32_t i = 0; i < query_len; ++i) {
        const int64_t token = batch.query_start_loc[static_cast<size_t>(row)] + i;
        for (int32_t head = 0; head < params_.num_q_heads; ++head) {
          const double value =
              attend(batch, row, {seq_len - query_len + i, head},
                     q.row<float>(token) + int64_t{head} * params_.head_dim_qk,
                     out.row<float>(token) + int64_t{head} * params_.head_dim_v);
          if (!lse.empty()) {
            lse[static_cast<size_t>(token * params_.num_q_heads + head)] = static_cast<float>(value);
          }
        }
      }
    }
  }

 private:
  struct Query {
    int32_t position;
    int32_t head;
  };

  [[nodiscard]] bool visible(int32_t query, int32_t key) const {
    if (!causal_) return true;
    const int32_t distance = query - key;
    return distance >= 0 && (!params_.sliding_window || distance < *params_.sliding_window);
  }

  // Writes one head's output and returns its log-sum-exp.
  double attend(const BatchView& batch, int32_t row, Query query, const float* q, float* out) {
    const KvView& kv = params_.kv;
    const int32_t seq_len = batch.seq_lens[static_cast<size_t>(row)];
    const int32_t* pages =
        batch.page_indices.data() + batch.page_indptr[static_cast<size_t>(row)];
    const int32_t kv_head = query.head / (params_.num_q_heads / params_.num_kv_heads);
    const auto cell = [&](int32_t key) {
      return kv.k_offset(pages[key / kv.block_size], kv_head, key % kv.block_size);
    };
    double top = -std::numeric_limits<double>::infinity();
    for (int32_t key = 0; key < seq_len; ++key) {
      if (!visible(query.position, key)) continue;
      double score = 0;
      for (int32_t i = 0; i < params_.head_dim_qk; ++i) {
        score += static_cast<double>(q[i]) * load(kv, cell(key) + i) * kv.k_scale;
      }
      score *= params_.scale;
      if (params_.logits_soft_cap > 0) {
        score = params_.logits_soft_cap * std::tanh(score / params_.logits_soft_cap);
      }
      scores_[static_cast<size_t>(key)] = score;
      top = std::max(top, score);
    }
    std::fill(sum_.begin(), sum_.end(), 0.0);
    double total = 0;
    for (int32_t key = 0; key < seq_len; ++key) {
      if (!visible(query.position, key)) continue;
      const double weight = std::exp(scores_[static_cast<size_t>(key)] - top);
      total += weight;
      for (int32_t i = 0; i < params_.head_dim_v; ++i) {
        sum_[static_cast<size_t>(i)] += weight * load(kv, cell(key) + kv.v_offset + i) * kv.v_scale;
      }
    }
    for (int32_t i = 0; i < params_.head_dim_v; ++i) {
      out[i] = total == 0 ? 0.0F : static_cast<float>(sum_[static_cast<size_t>(i)] / total);
    }
    return total == 0 ? -std::numeric_limits<double>::infinity() : top + std::log(total);
  }

  const LayerParams params_;
  const bool causal_;
  std::vector<double> scores_;
  std::vector<double> sum_;
};

class ReferenceBackend final : public AttentionBackend {
 public:
  explicit ReferenceBackend(const BackendContext& context)
      : requirements_(context.requirements) {
    info_.name = "reference";
    info_.summary = "double accumulation, one key at a time; the oracle of the tests";
    info_.devices = {DeviceType::kCpu};
    info_.q_dtypes = {DType::kF32};
    info_.kv_dtypes = {DType::kF32, DType::kF16, DType::kBF16};
    info_.max_head_dim = 65536;
    info_.layouts = {KvLayout::kLBHNC, KvLayout::kLBNHC, KvLayout::kBLHNC};
    info_.features = static_cast<uint32_t>(AttentionFeature::kNonCausal) |
                     static_cast<uint32_t>(AttentionFeature::kSlidingWindow) |
                     static_cast<uint32_t>(AttentionFeature::kLogitsSoftCap) |
                     static_cast<uint32_t>(AttentionFeature::kLse);
    info_.max_decode_query_len = std::numeric_limits<int32_t>::max();
    info_.batch_invariant = true;
  }

  [[nodiscard]] const BackendInfo& info() const override { return info_; }

  [[nodiscard]] int64_t workspace_size(const AttentionLimits& limits) const override {
    // Per impl: one score a key, one sum an output feature.
    return (int64_t{limits.max_seq_len} + requirements_.head_dim_v) *
           static_cast<int64_t>(sizeof(double));
  }

  Status prepare(const AttentionLimits& limits) override {
    limits_ = limits;
    return ok_status();
  }

  Result<const AttentionMetadata*> build_metadata(const BatchView& batch) override {
    TENON_RETURN_IF_ERROR(validate_batch_rows(batch, requirements_.block_size));
    TENON_RETURN_IF_ERROR(check_batch_limits(batch, limits_));
    ReferenceMetadata& metadata = ring_[next_];
    next_ = (next_ + 1) % ring_.size();
    metadata.batch = batch;
    return &metadata;
  }

  std::unique_ptr<AttentionImpl> make_impl(const LayerParams& params) override {
    return std::make_unique<ReferenceImpl>(params, requirements_.causal);
  }

 private:
  const AttentionRequirements requirements_;
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
