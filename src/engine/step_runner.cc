#include "engine/step_runner.h"

#include <algorithm>

#include "sampling/logprobs.h"

namespace tenon {

StepRunner::StepRunner(EngineParts* parts, const Scheduler* scheduler)
    : parts_(parts),
      scheduler_(scheduler),
      logits_(static_cast<size_t>(kLogitsSlice) * static_cast<size_t>(parts->info.vocab_size) *
              sizeof(float)),
      log_sum_exp_(kLogitsSlice),
      scratch_(static_cast<size_t>(parts->threads->num_threads())) {
  const StepBudget& budget = parts->scheduler.budget;
  const auto tokens = static_cast<size_t>(budget.max_num_batched_tokens);
  const auto rows = static_cast<size_t>(budget.max_num_seqs);
  token_ids_.reserve(tokens);
  positions_.reserve(tokens);
  slot_mapping_.reserve(tokens);
  query_start_loc_.reserve(rows + 1);
  seq_lens_.reserve(rows);
  page_indptr_.reserve(rows + 1);
  page_indices_.reserve(static_cast<size_t>(parts->scheduler.num_blocks));
  sampling_rows_.reserve(rows);
  logits_rows_.reserve(tokens);
}

Result<std::span<SampledRow>> StepRunner::run(const StepPlan& plan,
                                              std::span<const SamplingTarget> targets) {
  copy_blocks(plan);
  results_.resize(plan.rows.size());
  for (SampledRow& result : results_) result = {};
  if (plan.rows.empty()) return std::span<SampledRow>(results_);
  prepare_inputs(plan);
#ifndef NDEBUG
  TENON_RETURN_IF_ERROR(
      validate_batch_view(batch_, parts_->scheduler.block_size, parts_->kv->num_blocks()));
#endif
  TENON_ASSIGN_OR_RETURN(const AttentionMetadata* metadata,
                         parts_->attention->build_metadata(batch_));
  ModelInput input;
  input.token_ids = token_ids_;
  input.positions = positions_;
  input.slot_mapping = slot_mapping_;
  input.attention = metadata;
  parts_->model->forward(input);
  score_prompts(plan, targets);
  sample(plan, targets);
  return std::span<SampledRow>(results_);
}

void StepRunner::copy_blocks(const StepPlan& plan) {
  if (!plan.swap_out_copies.empty()) {
    parts_->attention->swap_blocks(*parts_->kv, *parts_->kv_host, plan.swap_out_copies);
  }
  if (!plan.swap_in_copies.empty()) {
    parts_->attention->swap_blocks(*parts_->kv_host, *parts_->kv, plan.swap_in_copies);
  }
}

void StepRunner::prepare_inputs(const StepPlan& plan) {
  token_ids_.clear();
  positions_.clear();
  slot_mapping_.clear();
  query_start_loc_.assign(1, 0);
  seq_lens_.clear();
  page_indptr_.assign(1, 0);
  page_indices_.clear();
  batch_ = {};
  const int32_t block_size = parts_->scheduler.block_size;
  for (const PlanRow& row : plan.rows) {
    const ScheduledRequest& request = scheduler_->request(row.slot);
    const int32_t end = row.start + row.num_tokens;
    for (int32_t position = row.start; position < end; ++position) {
      token_ids_.push_back(request.tokens[static_cast<size_t>(position)]);
      positions_.push_back(position);
      const int64_t block = request.block_table[static_cast<size_t>(position / block_size)];
      slot_mapping_.push_back(block * block_size + position % block_size);
    }
    query_start_loc_.push_back(static_cast<int32_t>(token_ids_.size()));
    seq_lens_.push_back(end);
    const auto pages = static_cast<size_t>((end + block_size - 1) / block_size);
    page_indices_.insert(page_indices_.end(), request.block_table.begin(),
                         request.block_table.begin() + static_cast<std::ptrdiff_t>(pages));
    page_indptr_.push_back(static_cast<int32_t>(page_indices_.size()));
    batch_.max_query_len = std::max(batch_.max_query_len, row.num_tokens);
    batch_.max_seq_len = std::max(batch_.max_seq_len, end);
    switch (row.kind) {
      case RowKind::kDecode: batch_.num_decode_tokens += row.num_tokens; break;
      case RowKind::kExtend: batch_.num_extend_tokens += row.num_tokens; break;
      case RowKind::kPrefill: batch_.num_prefill_tokens += row.num_tokens; break;
    }
  }
  batch_.num_decode_rows = plan.num_decode_rows;
  batch_.num_extend_rows = plan.num_extend_rows;
  batch_.num_prefill_rows = plan.num_prefill_rows;
  batch_.query_start_loc = query_start_loc_;
  batch_.seq_lens = seq_lens_;
  batch_.page_indptr = page_indptr_;
  batch_.page_indices = page_indices_;
  batch_.slot_mapping = slot_mapping_;
}

template <typename Visit>
void StepRunner::for_each_logits_slice(std::span<const int32_t> rows, const Visit& visit) {
  const int64_t vocab = parts_->info.vocab_size;
  for (size_t first = 0; first < rows.size(); first += kLogitsSlice) {
    const auto slice = rows.subspan(first, std::min<size_t>(kLogitsSlice, rows.size() - first));
    const TensorView logits =
        TensorView::dense(logits_.data(), DType::kF32, {static_cast<int64_t>(slice.size()), vocab});
    parts_->model->logits(slice, logits);
    visit(first, logits);
  }
}

void StepRunner::sample(const StepPlan& plan, std::span<const SamplingTarget> targets) {
  sampling_rows_.clear();
  logits_rows_.clear();
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    // A request with max_tokens 0 only scores its prompt.
    if (!plan.rows[i].sample || targets[i].sampler->params().max_tokens == 0) continue;
    sampling_rows_.push_back(static_cast<int32_t>(i));
    logits_rows_.push_back(query_start_loc_[i + 1] - 1);
  }
  const auto vocab = static_cast<size_t>(parts_->info.vocab_size);
  for_each_logits_slice(logits_rows_, [&](size_t first, const TensorView& logits) {
    parts_->threads->parallel_for(logits.rows(), 1, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t r = begin; r < end; ++r) {
        const auto index = static_cast<size_t>(sampling_rows_[first + static_cast<size_t>(r)]);
        auto token = targets[index].sampler->sample({logits.row<const float>(r), vocab},
                                                    scratch_[static_cast<size_t>(thread)]);
        if (token.ok()) {
          results_[index].token = *token;
        } else {
          results_[index].error = token.status();
        }
      }
    });
    bool wanted = false;
    for (int64_t r = 0; r < logits.rows(); ++r) {
      const auto index = static_cast<size_t>(sampling_rows_[first + static_cast<size_t>(r)]);
      wanted |= targets[index].sampler->params().logprobs.has_value();
    }
    if (!wanted) return;
    parts_->ops->log_sum_exp(logits, {log_sum_exp_.data(), static_cast<size_t>(logits.rows())});
    for (int64_t r = 0; r < logits.rows(); ++r) {
      const auto index = static_cast<size_t>(sampling_rows_[first + static_cast<size_t>(r)]);
      const auto& params = targets[index].sampler->params();
      if (!params.logprobs || results_[index].token < 0) continue;
      results_[index].logprobs =
          make_logprobs({logits.row<const float>(r), vocab}, log_sum_exp_[static_cast<size_t>(r)],
                        results_[index].token, *params.logprobs);
    }
  });
}

void StepRunner::score_prompts(const StepPlan& plan, std::span<const SamplingTarget> targets) {
  const auto vocab = static_cast<size_t>(parts_->info.vocab_size);
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    if (targets[i].prompt_logprobs == nullptr) continue;
    const PlanRow& row = plan.rows[i];
    const ScheduledRequest& request = scheduler_->request(row.slot);
    // The logits at position p score prompt token p + 1.
    const int32_t end = std::min(row.start + row.num_tokens, request.num_prompt_tokens - 1);
    logits_rows_.clear();
    for (int32_t position = row.start; position < end; ++position) {
      logits_rows_.push_back(query_start_loc_[i] + position - row.start);
    }
    const int32_t num_top = *targets[i].sampler->params().prompt_logprobs;
    for_each_logits_slice(logits_rows_, [&](size_t first, const TensorView& logits) {
      parts_->ops->log_sum_exp(logits, {log_sum_exp_.data(), static_cast<size_t>(logits.rows())});
      for (int64_t r = 0; r < logits.rows(); ++r) {
        const size_t position = static_cast<size_t>(row.start) + first + static_cast<size_t>(r) + 1;
        (*targets[i].prompt_logprobs)[position] =
            make_logprobs({logits.row<const float>(r), vocab}, log_sum_exp_[static_cast<size_t>(r)],
                          request.tokens[position], num_top);
      }
    });
  }
}

}  // namespace tenon
