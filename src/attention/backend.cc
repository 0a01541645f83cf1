#include "attention/backend.h"

#include <algorithm>

#include <fmt/ranges.h>

namespace tenon {
namespace {

std::string_view device_name(DeviceType device) {
  return device == DeviceType::kCpu ? "cpu" : "cuda";
}

std::string dtype_list(const std::vector<DType>& dtypes) {
  std::vector<std::string_view> names;
  names.reserve(dtypes.size());
  for (const DType dtype : dtypes) names.push_back(dtype_traits(dtype).name);
  return fmt::format("{}", fmt::join(names, ", "));
}

template <typename T>
bool contains(const std::vector<T>& values, T value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

// Collects reasons; one method a kind of requirement.
class Checker {
 public:
  Checker(const BackendInfo& info, const AttentionRequirements& wanted)
      : info_(info), wanted_(wanted) {}

  std::vector<std::string> run() && {
    check_types();
    check_heads();
    check_paging();
    check_features();
    return std::move(reasons_);
  }

 private:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    reasons_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  void check_types() {
    if (!contains(info_.devices, wanted_.device)) {
      add("does not run on device {}", device_name(wanted_.device));
    }
    if (!contains(info_.q_dtypes, wanted_.q_dtype)) {
      add("query dtype {} (supported: {})", dtype_traits(wanted_.q_dtype).name,
          dtype_list(info_.q_dtypes));
    }
    if (!contains(info_.kv_dtypes, wanted_.kv_dtype)) {
      add("KV cache dtype {} (supported: {})", dtype_traits(wanted_.kv_dtype).name,
          dtype_list(info_.kv_dtypes));
    }
  }

  void check_head_dim(std::string_view which, int32_t dim) {
    if (dim <= 0) {
      add("{} {} is not positive", which, dim);
    } else if (dim > info_.max_head_dim) {
      add("{} {} is above the largest supported, {}", which, dim, info_.max_head_dim);
    } else if (dim % info_.head_dim_multiple != 0) {
      add("{} {} is not a multiple of {}", which, dim, info_.head_dim_multiple);
    }
  }

  void check_heads() {
    check_head_dim("head_dim_qk", wanted_.head_dim_qk);
    check_head_dim("head_dim_v", wanted_.head_dim_v);
    const int32_t q_heads = wanted_.num_q_heads;
    const int32_t kv_heads = wanted_.num_kv_heads;
    if (q_heads <= 0 || kv_heads <= 0) {
      add("{} query heads and {} KV heads: both must be positive", q_heads, kv_heads);
    } else if (q_heads % kv_heads != 0) {
      add("{} query heads are not divisible by {} KV heads", q_heads, kv_heads);
    }
  }

  void check_paging() {
    if (wanted_.block_size <= 0) {
      add("block size {} is not positive", wanted_.block_size);
    } else if (!info_.block_sizes.empty() && !contains(info_.block_sizes, wanted_.block_size)) {
      add("block size {} (supported: {})", wanted_.block_size, fmt::join(info_.block_sizes, ", "));
    }
    if (wanted_.max_decode_query_len > info_.max_decode_query_len) {
      add("decode rows of {} query tokens (at most {})", wanted_.max_decode_query_len,
          info_.max_decode_query_len);
    }
  }

  void need(bool wanted, AttentionFeature feature, std::string_view name) {
    if (wanted && !info_.has(feature)) add("no {}", name);
  }

  void check_features() {
    need(!wanted_.causal, AttentionFeature::kNonCausal, "non-causal attention");
    need(wanted_.sliding_window, AttentionFeature::kSlidingWindow, "sliding window");
    need(wanted_.logits_soft_cap, AttentionFeature::kLogitsSoftCap, "logits soft cap");
    need(wanted_.alibi, AttentionFeature::kAlibi, "ALiBi");
    need(wanted_.sinks, AttentionFeature::kSinks, "attention sinks");
    need(wanted_.kv_sharing, AttentionFeature::kKvSharing, "KV sharing between layers");
    need(wanted_.cascade, AttentionFeature::kCascade, "cascade");
    need(wanted_.kv_scale_per_head, AttentionFeature::kKvScalePerHead, "KV scales per head");
    need(wanted_.needs_lse, AttentionFeature::kLse, "log-sum-exp output");
    if (!wanted_.causal && wanted_.sliding_window) {
      add("sliding window without causal masking is not defined");
    }
  }

  const BackendInfo& info_;
  const AttentionRequirements& wanted_;
  std::vector<std::string> reasons_;
};

}  // namespace

Status check_batch_limits(const BatchView& batch, const AttentionLimits& limits) {
  if (batch.num_rows() <= limits.max_num_seqs &&
      batch.num_tokens() <= limits.max_num_batched_tokens &&
      batch.max_seq_len <= limits.max_seq_len) {
    return ok_status();
  }
  return invalid_argument("batch: {} rows, {} tokens, {} keys exceed the limits {}, {}, {}",
                          batch.num_rows(), batch.num_tokens(), batch.max_seq_len,
                          limits.max_num_seqs, limits.max_num_batched_tokens, limits.max_seq_len);
}

std::vector<std::string> AttentionBackend::check(const AttentionRequirements& wanted) const {
  return Checker(info(), wanted).run();
}

void AttentionBackend::copy_blocks(KvPool& pool, std::span<const BlockCopy> copies) {
  copy_kv_blocks(pool, pool, copies);
}

void AttentionBackend::swap_blocks(const KvPool& src,
                                   KvPool& dst,
                                   std::span<const BlockCopy> copies) {
  copy_kv_blocks(src, dst, copies);
}

}  // namespace tenon
