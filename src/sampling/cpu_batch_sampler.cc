// BatchSampler over host memory: a RequestSampler a row, spread over the thread pool.
#include <cstddef>
#include <utility>

#include "base/check.h"
#include "sampling/batch_sampler.h"
#include "sampling/logprobs.h"

namespace tenon {
namespace {

class CpuBatchSampler final : public BatchSampler {
 public:
  CpuBatchSampler(const BatchSamplerLimits& limits, Ops* ops, ThreadPool* pool)
      : ops_(ops),
        pool_(pool),
        log_sum_exp_(static_cast<size_t>(limits.max_rows)),
        scratch_(static_cast<size_t>(pool->num_threads())) {
    TENON_CHECK_EQ(limits.max_steps, 1);
    results_.reserve(static_cast<size_t>(limits.max_rows));
  }

  // The state lives in the RequestSampler itself.
  void bind(int32_t, const RequestSampler&, std::span<const int32_t>, int32_t) override {}
  void resolve(std::span<int32_t>) override {}

  void begin() override { results_.clear(); }
  void end() override {}
  Result<std::span<SampledToken>> collect() override { return std::span<SampledToken>(results_); }

  void sample(const TensorView& logits, std::span<const SamplingRow> rows) override {
    const size_t first = results_.size();
    results_.resize(first + rows.size());
    pool_->parallel_for(logits.rows(), 1, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t r = begin; r < end; ++r) {
        SampledToken& result = results_[first + static_cast<size_t>(r)];
        auto token = rows[static_cast<size_t>(r)].request->sample(
            row_of(logits, r), scratch_[static_cast<size_t>(thread)]);
        if (token.ok()) {
          result.token = *token;
        } else {
          result.error = token.status();
        }
      }
    });
    bool wanted = false;
    for (const SamplingRow& row : rows) wanted |= row.request->params().logprobs.has_value();
    if (!wanted) return;
    sum(logits);
    for (int64_t r = 0; r < logits.rows(); ++r) {
      SampledToken& result = results_[first + static_cast<size_t>(r)];
      const auto& count = rows[static_cast<size_t>(r)].request->params().logprobs;
      if (!count || result.token < 0) continue;
      result.logprobs = make_logprobs(row_of(logits, r), log_sum_exp_[static_cast<size_t>(r)],
                                      result.token, *count);
    }
  }

  Status score(const TensorView& logits,
               std::span<const int32_t> targets,
               int32_t num_top,
               std::span<TokenLogprobs> results) override {
    sum(logits);
    for (size_t r = 0; r < targets.size(); ++r) {
      results[r] = make_logprobs(row_of(logits, static_cast<int64_t>(r)), log_sum_exp_[r],
                                 targets[r], num_top);
    }
    return ok_status();
  }

 private:
  static std::span<const float> row_of(const TensorView& logits, int64_t row) {
    return {logits.row<const float>(row), static_cast<size_t>(logits.shape[1])};
  }
  void sum(const TensorView& logits) {
    ops_->log_sum_exp(logits, {log_sum_exp_.data(), static_cast<size_t>(logits.rows())});
  }

  Ops* ops_;
  ThreadPool* pool_;
  std::vector<float> log_sum_exp_;
  std::vector<SamplerScratch> scratch_;  // one a thread
  std::vector<SampledToken> results_;
};

}  // namespace

std::unique_ptr<BatchSampler> make_cpu_batch_sampler(const BatchSamplerLimits& limits,
                                                     Ops* ops,
                                                     ThreadPool* pool) {
  return std::make_unique<CpuBatchSampler>(limits, ops, pool);
}

}  // namespace tenon
