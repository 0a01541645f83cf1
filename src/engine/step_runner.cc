#include "engine/step_runner.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"

namespace tenon {

StepRunner::StepRunner(EngineParts* parts, const Scheduler* scheduler)
    : parts_(parts), scheduler_(scheduler) {}

Status StepRunner::prepare() {
  const StepBudget& budget = parts_->scheduler.budget;
  StepInputs::Limits limits;
  limits.max_tokens = budget.max_num_batched_tokens;
  limits.max_rows = budget.max_num_seqs;
  limits.max_pages = parts_->scheduler.num_blocks;
  limits.max_logits_rows = std::max(budget.max_num_batched_tokens, budget.max_num_seqs);
  limits.block_size = parts_->scheduler.block_size;
  TENON_RETURN_IF_ERROR(inputs_.prepare(parts_->device.get(), limits));
  const auto rows = static_cast<size_t>(budget.max_num_seqs);
  TENON_ASSIGN_OR_RETURN(
      logits_,
      parts_->device->allocate(static_cast<size_t>(parts_->logits_slice) *
                               static_cast<size_t>(parts_->info.vocab_size) * sizeof(float)));
  for (Flight& flight : flights_) {
    flight.timer = parts_->device->make_timer();
    flight.fence = parts_->device->make_fence();
    flight.sampling_rows.reserve(rows);
  }
  for (int32_t state = budget.max_num_seqs; state-- > 0;) free_states_.push_back(state);
  logits_rows_.reserve(static_cast<size_t>(limits.max_logits_rows));
  if (parts_->profile) parts_->device->start_profile();
  if (!parts_->graphs) return ok_status();

  const double begin = now_seconds();
  const AttentionMetadata* metadata = nullptr;
  DecodeGraphs::Step step;
  step.plan = [&](int32_t num_rows) -> Status {
    inputs_.build_decode_shape(num_rows);
    set_all_logits_rows(num_rows);
    const GraphBounds bounds{num_rows};
    TENON_ASSIGN_OR_RETURN(metadata, plan_attention(&bounds));
    inputs_.upload();
    return ok_status();
  };
  step.enqueue = [&](int32_t num_rows) {
    parts_->sampler->resolve(inputs_.token_ids());
    parts_->model->forward(inputs_.model_input(metadata));
    parts_->model->logits(
        inputs_.logits_rows(),
        TensorView::dense(logits_.data(), DType::kF32, {num_rows, parts_->info.vocab_size}));
    return parts_->device->status();
  };
  const int32_t largest = std::min(budget.max_num_seqs, parts_->logits_slice);
  // Once without a graph: libraries load their kernels at the first use.
  TENON_RETURN_IF_ERROR(step.plan(largest));
  TENON_RETURN_IF_ERROR(step.enqueue(largest));
  TENON_RETURN_IF_ERROR(graphs_.capture(parts_->device.get(), largest, step));
  log_info("decode graphs captured in {:.2f} s", now_seconds() - begin);
  return parts_->device->synchronize();
}

void StepRunner::set_all_logits_rows(int32_t num_rows) {
  logits_rows_.resize(static_cast<size_t>(num_rows));
  std::iota(logits_rows_.begin(), logits_rows_.end(), 0);
  inputs_.set_logits_rows(logits_rows_);
}

Result<const AttentionMetadata*> StepRunner::plan_attention(const GraphBounds* bounds) {
#ifndef NDEBUG
  TENON_RETURN_IF_ERROR(
      validate_batch_view(inputs_.batch(), parts_->scheduler.block_size, parts_->kv->num_blocks()));
#endif
  if (parts_->cascade) inputs_.share_prefixes();
  return parts_->attention->build_metadata(inputs_.batch(), bounds);
}

Status StepRunner::launch(const StepPlan& plan, std::span<const SamplingTarget> targets) {
  const double begin = now_seconds();
  const double prepared_before = times_.prepare;
  TENON_CHECK_LT(num_flights_, flights_.size());
  for (const Preemption& preemption : plan.preemptions) release(preemption.id);
  Flight& flight = flights_[(first_flight_ + num_flights_) % flights_.size()];
  ++num_flights_;
  flight.num_rows = plan.rows.size();
  flight.sampling_rows.clear();
  choose_rows(plan, targets, flight);
  inputs_.build(plan, *scheduler_, pending_states_);
  times_.prepare += now_seconds() - begin;
  flight.timer->start();  // late: an idle device starts it at once
  copy_blocks(plan);
  parts_->sampler->begin();
  if (!plan.rows.empty()) {
    parts_->device->enter(StepSection::kOther);
    TENON_RETURN_IF_ERROR(compute(plan, targets, flight));
    parts_->device->enter(StepSection::kBetweenSteps);
  }
  parts_->sampler->end();
  flight.timer->stop();
  flight.fence->record();
  times_.launch += now_seconds() - begin - (times_.prepare - prepared_before);
  return parts_->device->status();
}

// Which rows sample, their states, and the states of rows whose last token is still on the device.
void StepRunner::choose_rows(const StepPlan& plan,
                             std::span<const SamplingTarget> targets,
                             Flight& flight) {
  sampling_.clear();
  pending_states_.assign(plan.rows.size(), -1);
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const PlanRow& row = plan.rows[i];
    const ScheduledRequest& request = scheduler_->request(row.slot);
    const RequestSampler& sampler = *targets[i].sampler;
    const int32_t end = row.start + row.num_tokens;
    if (request.tokens[static_cast<size_t>(end) - 1] == kPendingToken) {
      pending_states_[i] = states_.at(row.id);
    }
    // A request with max_tokens 0 only scores its prompt.
    if (!row.sample || sampler.params().max_tokens == 0) continue;
    flight.sampling_rows.push_back(static_cast<int32_t>(i));
    sampling_.push_back({state_of(request, sampler), &sampler, end - request.num_prompt_tokens});
  }
}

int32_t StepRunner::state_of(const ScheduledRequest& request, const RequestSampler& sampler) {
  const auto [found, added] = states_.try_emplace(request.id, -1);
  if (added) {
    TENON_CHECK(!free_states_.empty());
    found->second = free_states_.back();
    free_states_.pop_back();
    size_t known = request.tokens.size();
    while (known > 0 && request.tokens[known - 1] == kPendingToken) --known;
    parts_->sampler->bind(found->second, sampler, {request.tokens.data(), known},
                          request.num_prompt_tokens);
  }
  return found->second;
}

void StepRunner::release(RequestId id) {
  const auto found = states_.find(id);
  if (found == states_.end()) return;
  free_states_.push_back(found->second);
  states_.erase(found);
}

bool StepRunner::may_use_graph(const StepPlan& plan,
                               std::span<const SamplingTarget> targets) const {
  if (plan.num_extend_rows + plan.num_prefill_rows > 0 ||
      plan.num_tokens != static_cast<int32_t>(plan.rows.size())) {
    return false;
  }
  return std::none_of(targets.begin(), targets.end(), [](const SamplingTarget& target) {
    return target.prompt_logprobs != nullptr;
  });
}

Status StepRunner::compute(const StepPlan& plan,
                           std::span<const SamplingTarget> targets,
                           Flight& flight) {
  const double begin = now_seconds();
  logits_rows_.clear();
  const auto num_rows = static_cast<int32_t>(plan.rows.size());
  const int32_t size = may_use_graph(plan, targets) ? graphs_.size_for(num_rows) : 0;
  if (size > 0) {
    inputs_.pad_rows(size);
    set_all_logits_rows(size);
    const GraphBounds bounds{size};
    auto metadata = plan_attention(&bounds);
    if (metadata.ok()) {
      count_cascade(**metadata);
      inputs_.upload();
      times_.prepare += now_seconds() - begin;
      graphs_.launch(size);
      ++graph_steps_;
      TENON_CHECK_EQ(sampling_.size(), plan.rows.size());  // every decode row samples
      sample({});
      return ok_status();
    }
    if (metadata.status().code() != StatusCode::kFailedPrecondition) return metadata.status();
    // This batch is outside what was captured: as an ordinary step.
    inputs_.build(plan, *scheduler_, pending_states_);
    logits_rows_.clear();
  }
  for (const int32_t row : flight.sampling_rows) {
    logits_rows_.push_back(inputs_.last_token(static_cast<size_t>(row)));
  }
  inputs_.set_logits_rows(logits_rows_);
  TENON_ASSIGN_OR_RETURN(const AttentionMetadata* metadata, plan_attention(nullptr));
  count_cascade(*metadata);
  inputs_.upload();
  times_.prepare += now_seconds() - begin;
  if (inputs_.has_pending()) parts_->sampler->resolve(inputs_.token_ids());
  parts_->model->forward(inputs_.model_input(metadata));
  sample(inputs_.logits_rows());
  return score_prompts(plan, targets);
}

void StepRunner::count_cascade(const AttentionMetadata& metadata) {
  const CascadeUse use = metadata.cascade();
  if (use.groups == 0) return;
  if (cascade_.steps == 0) log_info("requests share prefixes: {}", metadata.describe());
  ++cascade_.steps;
  cascade_.groups += static_cast<uint64_t>(use.groups);
  cascade_.rows += static_cast<uint64_t>(use.rows);
  cascade_.tokens_not_read += static_cast<uint64_t>(use.tokens_not_read);
}

void StepRunner::copy_blocks(const StepPlan& plan) {
  if (!plan.swap_out_copies.empty()) {
    parts_->attention->swap_blocks(*parts_->kv, *parts_->kv_host, plan.swap_out_copies);
  }
  if (!plan.swap_in_copies.empty()) {
    parts_->attention->swap_blocks(*parts_->kv_host, *parts_->kv, plan.swap_in_copies);
  }
}

// Samples sampling_[i] from the logits of token_rows[i] (on the device), in slices; without
// token_rows the logits are there already.
void StepRunner::sample(std::span<const int32_t> token_rows) {
  const int64_t vocab = parts_->info.vocab_size;
  const auto slice_rows = static_cast<size_t>(parts_->logits_slice);
  const std::span<const SamplingRow> rows = sampling_;
  for (size_t first = 0; first < rows.size(); first += slice_rows) {
    const size_t count = std::min(slice_rows, rows.size() - first);
    const TensorView logits =
        TensorView::dense(logits_.data(), DType::kF32, {static_cast<int64_t>(count), vocab});
    if (!token_rows.empty()) parts_->model->logits(token_rows.subspan(first, count), logits);
    parts_->device->enter(StepSection::kSampling);
    parts_->sampler->sample(logits, rows.subspan(first, count));
    parts_->device->enter(StepSection::kOther);
  }
}

Status StepRunner::score_prompts(const StepPlan& plan, std::span<const SamplingTarget> targets) {
  const int64_t vocab = parts_->info.vocab_size;
  const auto slice_rows = static_cast<size_t>(parts_->logits_slice);
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    if (targets[i].prompt_logprobs == nullptr) continue;
    const PlanRow& row = plan.rows[i];
    const ScheduledRequest& request = scheduler_->request(row.slot);
    // The logits at position p score prompt token p + 1.
    const int32_t end = std::min(row.start + row.num_tokens, request.num_prompt_tokens - 1);
    logits_rows_.clear();
    scored_tokens_.clear();
    for (int32_t position = row.start; position < end; ++position) {
      logits_rows_.push_back(inputs_.first_token(i) + position - row.start);
      scored_tokens_.push_back(request.tokens[static_cast<size_t>(position) + 1]);
    }
    if (logits_rows_.empty()) continue;
    inputs_.set_logits_rows(logits_rows_);
    inputs_.upload();
    const int32_t num_top = *targets[i].sampler->params().prompt_logprobs;
    const std::span<const int32_t> on_device = inputs_.logits_rows();
    for (size_t first = 0; first < on_device.size(); first += slice_rows) {
      const size_t count = std::min(slice_rows, on_device.size() - first);
      const TensorView logits =
          TensorView::dense(logits_.data(), DType::kF32, {static_cast<int64_t>(count), vocab});
      parts_->model->logits(on_device.subspan(first, count), logits);
      const size_t position = static_cast<size_t>(row.start) + first + 1;
      TENON_RETURN_IF_ERROR(
          parts_->sampler->score(logits, std::span(scored_tokens_).subspan(first, count), num_top,
                                 std::span(*targets[i].prompt_logprobs).subspan(position, count)));
    }
  }
  return ok_status();
}

Result<std::span<SampledToken>> StepRunner::collect() {
  TENON_CHECK_GT(num_flights_, size_t{0});
  Flight& flight = flights_[first_flight_];
  first_flight_ = (first_flight_ + 1) % flights_.size();
  --num_flights_;
  TENON_ASSIGN_OR_RETURN(const std::span<SampledToken> sampled, parts_->sampler->collect());
  TENON_RETURN_IF_ERROR(flight.fence->wait());
  times_.device += flight.timer->seconds();
  if (parts_->profile) read_profile();
  TENON_CHECK_EQ(sampled.size(), flight.sampling_rows.size());
  results_.resize(flight.num_rows);
  for (SampledToken& result : results_) result = {};
  for (size_t i = 0; i < sampled.size(); ++i) {
    results_[static_cast<size_t>(flight.sampling_rows[i])] = std::move(sampled[i]);
  }
  return std::span<SampledToken>(results_);
}

void StepRunner::read_profile() {
  Device& device = *parts_->device;
  times_.attention = device.profile_seconds(StepSection::kAttention);
  times_.linear = device.profile_seconds(StepSection::kLinear);
  times_.sampling = device.profile_seconds(StepSection::kSampling);
  times_.other = device.profile_seconds(StepSection::kOther);
}

}  // namespace tenon
