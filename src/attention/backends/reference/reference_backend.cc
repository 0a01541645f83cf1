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
  ReferenceImpl(const LayerParams& params, bool causal) : params_(params), causal_(causal) {}

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
        for (int32_t i = 0; i < kv.head_dim_k; ++i) {
          store(kv, kv.element(block, head, token, i),
                k_row[head * kv.head_dim_k + i] / kv.k_scale);
        }
        for (int32_t i = 0; i < kv.head_dim_v; ++i) {
          store(kv, kv.element(block, head, token, kv.v_offset + i),
                v_row[head * kv.head_dim_v + i] / kv.v_scale);
        }
      }
    }
  }

  void forward(const AttentionInput& in, const AttentionMetadata& metadata) override {
    const TensorView& q = in.q;
    const TensorView& out = in.out;
    const std::span<float> lse = in.lse;
    const BatchView& batch = static_cast<const ReferenceMetadata&>(metadata).batch;
    const int32_t group = params_.num_q_heads / params_.num_kv_heads;
    for (int32_t row = 0; row < batch.num_rows(); ++row) {
      const int32_t query_len = batch.query_len(row);
      const int32_t context = batch.seq_lens[static_cast<size_t>(row)] - query_len;
      for (int32_t head = 0; head < params_.num_q_heads; ++head) {
        if (head % group == 0) gather(batch, row, head / group);
        for (int32_t i = 0; i < query_len; ++i) {
          const int64_t token = batch.query_start_loc[static_cast<size_t>(row)] + i;
          const double value =
              attend(context + i, q.row<float>(token) + int64_t{head} * params_.head_dim_qk,
                     out.row<float>(token) + int64_t{head} * params_.head_dim_v);
          if (!lse.empty()) {
            lse[static_cast<size_t>(token * params_.num_q_heads + head)] =
                static_cast<float>(value);
          }
        }
      }
    }
  }

 private:
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
      for (int32_t i = 0; i < kv.head_dim_k; ++i) keys_.push_back(element(i) * kv.k_scale);
      for (int32_t i = 0; i < kv.head_dim_v; ++i) {
        values_.push_back(element(kv.v_offset + i) * kv.v_scale);
      }
    }
  }

  // Writes one head's output for the query at `position` over the gathered keys; returns its
  // log-sum-exp.
  double attend(int32_t position, const float* q, float* out) {
    const auto dim_k = static_cast<size_t>(params_.head_dim_qk);
    const auto dim_v = static_cast<size_t>(params_.head_dim_v);
    const auto seq_len = static_cast<int32_t>(keys_.size() / dim_k);
    scores_.assign(static_cast<size_t>(seq_len), 0.0);
    double top = -std::numeric_limits<double>::infinity();
    for (int32_t key = 0; key < seq_len; ++key) {
      if (!visible(position, key)) continue;
      const double* k = &keys_[static_cast<size_t>(key) * dim_k];
      double score = 0;
      for (size_t i = 0; i < dim_k; ++i) score += q[i] * k[i];
      score *= params_.scale;
      if (params_.logits_soft_cap > 0) {
        score = params_.logits_soft_cap * std::tanh(score / params_.logits_soft_cap);
      }
      scores_[static_cast<size_t>(key)] = score;
      top = std::max(top, score);
    }
    sum_.assign(dim_v, 0.0);
    double total = 0;
    for (int32_t key = 0; key < seq_len; ++key) {
      if (!visible(position, key)) continue;
      const double* v = &values_[static_cast<size_t>(key) * dim_v];
      const double weight = std::exp(scores_[static_cast<size_t>(key)] - top);
      total += weight;
      for (size_t i = 0; i < dim_v; ++i) sum_[i] += weight * v[i];
    }
    for (size_t i = 0; i < dim_v; ++i) {
      out[i] = total == 0 ? 0.0F : static_cast<float>(sum_[i] / total);
    }
    return total == 0 ? -std::numeric_limits<double>::infinity() : top + std::log(total);
  }

  const LayerParams params_;
  const bool causal_;
  std::vector<double> keys_;    // [seq_len, head_dim_qk] of one row and KV head
  std::vector<double> values_;  // [seq_len, head_dim_v]
  std::vector<double> scores_;
  std::vector<double> sum_;
};

class ReferenceBackend final : public AttentionBackend {
 public:
  explicit ReferenceBackend(const BackendContext& context) : requirements_(context.requirements) {
    info_.name = "reference";
    info_.summary = "double accumulation, one key at a time; the oracle of the tests";
    info_.devices = {DeviceType::kCpu};
    info_.q_dtypes = {DType::kF32};
    info_.kv_dtypes = {DType::kF32, DType::kF16, DType::kBF16};
    info_.max_head_dim = 65536;
    info_.layouts = {KvLayout::kLBHNC, KvLayout::kLBNHC, KvLayout::kBLHNC,
                     KvLayout::kLBHNCSwizzled};
    info_.features = static_cast<uint32_t>(AttentionFeature::kNonCausal) |
                     static_cast<uint32_t>(AttentionFeature::kSlidingWindow) |
                     static_cast<uint32_t>(AttentionFeature::kLogitsSoftCap) |
                     static_cast<uint32_t>(AttentionFeature::kLse);
    info_.max_decode_query_len = std::numeric_limits<int32_t>::max();
    info_.batch_invariant = true;
  }

  [[nodiscard]] const BackendInfo& info() const override { return info_; }

  [[nodiscard]] int64_t workspace_size(const AttentionLimits& limits) const override {
    // One row's keys, values and scores of one KV head, in double.
    const int64_t per_key = int64_t{requirements_.head_dim_qk} + requirements_.head_dim_v + 1;
    return (limits.max_seq_len * per_key + requirements_.head_dim_v) *
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
