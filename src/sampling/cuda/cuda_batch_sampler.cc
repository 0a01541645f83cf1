#include "sampling/cuda/cuda_batch_sampler.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "sampling/cuda/sampling_kernels.h"
#include "sampling/draw.h"
#include "tensor/cuda/cuda_check.h"

namespace tenon {
namespace {

using cuda_sampling::GreedyBatch;
using cuda_sampling::GreedyRow;
using cuda_sampling::kMaxRowsPerLaunch;
using cuda_sampling::Logits;
using cuda_sampling::LogprobsBatch;
using cuda_sampling::Outcome;
using cuda_sampling::SampleBatch;
using cuda_sampling::SampledId;
using cuda_sampling::SampledLogprobs;
using cuda_sampling::SampleRow;
using cuda_sampling::TokenBias;

constexpr float kNegInf = -std::numeric_limits<float>::infinity();
// Biases and bans of a state that need no memory of their own.
constexpr size_t kMaxBiases = 1024;
// Uploads of binds that may be on their way before bind() has to wait.
constexpr size_t kUploads = 8;

size_t size(int32_t count) {
  return static_cast<size_t>(count);
}

class CudaBatchSampler final : public BatchSampler {
 public:
  CudaBatchSampler(const BatchSamplerLimits& limits, CudaDevice* device)
      : limits_(limits),
        device_(device),
        states_(size(limits.max_states)),
        steps_(size(limits.max_steps)),
        uploads_(kUploads),
        tokens_(size(limits.max_rows)) {}

  Status open() {
    const int32_t vocab = limits_.vocab_size;
    const int32_t most = cuda_sampling::max_vocab(device_->max_shared_bytes());
    if (vocab > most) {
      return unsupported("sampling on {}: a vocabulary of {} tokens; at most {} fit",
                         device_->info().name, vocab, most);
    }
    TENON_RETURN_IF_CUDA_ERROR(cuda_sampling::prepare_sample(vocab));
    TENON_RETURN_IF_CUDA_ERROR(cuda_sampling::prepare_logprobs(vocab));
    const size_t num_states = size(limits_.max_states);
    TENON_ASSIGN_OR_RETURN(last_token_, device_->allocate(num_states * sizeof(int32_t)));
    TENON_ASSIGN_OR_RETURN(counts_, device_->allocate(num_states * size(vocab) * sizeof(uint16_t)));
    TENON_ASSIGN_OR_RETURN(biases_, device_->allocate(num_states * kMaxBiases * sizeof(TokenBias)));
    for (Step& step : steps_) {
      TENON_ASSIGN_OR_RETURN(step.ids,
                             device_->allocate_host(size(limits_.max_rows) * sizeof(SampledId)));
      TENON_ASSIGN_OR_RETURN(
          step.logprobs, device_->allocate_host(size(limits_.max_rows) * sizeof(SampledLogprobs)));
      step.fence = device_->make_fence();
      step.rows.reserve(size(limits_.max_rows));
    }
    for (Upload& upload : uploads_) {
      TENON_ASSIGN_OR_RETURN(upload.counts, device_->allocate_host(size(vocab) * sizeof(uint16_t)));
      TENON_ASSIGN_OR_RETURN(upload.biases, device_->allocate_host(kMaxBiases * sizeof(TokenBias)));
      upload.fence = device_->make_fence();
    }
    TENON_ASSIGN_OR_RETURN(scores_,
                           device_->allocate_host(kMaxRowsPerLaunch * sizeof(SampledLogprobs)));
    scored_ = device_->make_fence();
    return device_->synchronize();
  }

  void bind(int32_t index,
            const RequestSampler& request,
            std::span<const int32_t> tokens,
            int32_t num_prompt_tokens) override {
    const SamplingParams& params = request.params();
    State& state = states_[size(index)];
    state.bound = true;
    state.error = ok_status();
    state.min_tokens = params.min_tokens;
    state.num_top = params.logprobs.value_or(-1);
    SampleRow& row = state.row;
    row = {};
    row.seed = request.seed();
    row.scale = params.greedy() ? 0.0F : draw::log2_scale(params.temperature);
    row.top_k = params.top_k <= 0 || params.top_k >= limits_.vocab_size ? 0 : params.top_k;
    row.top_p = params.top_p;
    row.min_p_log2 = request.min_p_log2();
    row.repetition_penalty = params.repetition_penalty;
    row.presence_penalty = params.presence_penalty;
    row.frequency_penalty = params.frequency_penalty;
    row.at.state = index;

    const bool penalties = params.repetition_penalty != 1.0F || params.presence_penalty != 0.0F ||
                           params.frequency_penalty != 0.0F;
    collect_biases(request, row);
    if (!penalties && bias_list_.empty()) return;
    Upload& upload = uploads_[next_upload_];
    next_upload_ = (next_upload_ + 1) % uploads_.size();
    if (upload.used) {
      // An error stays with the device and is told by collect().
      (void)upload.fence->wait();
    }
    upload.used = true;
    if (!bias_list_.empty()) state.error = upload_biases(state, upload);
    if (penalties) {
      const size_t vocab = size(limits_.vocab_size);
      row.counts = counts_.as<uint16_t>() + size(index) * vocab;
      count_tokens(tokens, size(num_prompt_tokens), {upload.counts.as<uint16_t>(), vocab});
      device_->upload(row.counts, upload.counts.data(), vocab * sizeof(uint16_t));
    }
    upload.fence->record();
  }

  void resolve(std::span<int32_t> ids) override {
    if (ids.empty()) return;
    cuda_sampling::launch_resolve(ids.data(), static_cast<int64_t>(ids.size()),
                                  last_token_.as<int32_t>(), device_->stream());
    device_->note(cudaGetLastError(), "resolving token ids");
  }

  void begin() override {
    TENON_CHECK(!begun_);
    TENON_CHECK_LT(num_in_flight_, steps_.size());
    begun_ = true;
    step().rows.clear();
  }

  void sample(const TensorView& logits, std::span<const SamplingRow> rows) override {
    TENON_CHECK(begun_);
    TENON_CHECK_EQ(logits.rows(), static_cast<int64_t>(rows.size()));
    Step& step = this->step();
    TENON_CHECK_LE(step.rows.size() + rows.size(), size(limits_.max_rows));
    const Logits view = view_of(logits);
    greedy_.logits = sample_.logits = logprobs_.logits = view;
    greedy_.last_token = sample_.last_token = last_token_.as<int32_t>();
    logprobs_.last_token = last_token_.as<int32_t>();
    greedy_.out = sample_.out = step.ids.as<SampledId>();
    logprobs_.out = step.logprobs.as<SampledLogprobs>();
    for (size_t r = 0; r < rows.size(); ++r) {
      const State& state = states_[size(rows[r].state)];
      TENON_CHECK(state.bound);
      const bool bans = rows[r].num_accepted < state.min_tokens && state.row.num_bans > 0;
      const GreedyRow at = {static_cast<int32_t>(r), rows[r].state,
                            static_cast<int32_t>(step.rows.size())};
      step.rows.push_back({rows[r].state, state.num_top});
      if (state.row.scale == 0.0F && state.row.counts == nullptr && state.row.num_biases == 0 &&
          !bans) {
        if (greedy_.num_rows == kMaxRowsPerLaunch) flush_greedy();
        greedy_.rows[greedy_.num_rows++] = at;
      } else {
        if (sample_.num_rows == kMaxRowsPerLaunch) flush_sample();
        SampleRow& row = sample_.rows[sample_.num_rows++];
        row = state.row;
        row.counter = static_cast<uint64_t>(rows[r].num_accepted);
        if (!bans) row.num_bans = 0;
        row.at = at;
      }
    }
    flush_greedy();
    flush_sample();
    // Behind the tokens they are about.
    for (size_t r = 0; r < rows.size(); ++r) {
      const int32_t num_top = states_[size(rows[r].state)].num_top;
      if (num_top < 0) continue;
      if (logprobs_.num_rows == kMaxRowsPerLaunch) flush_logprobs();
      logprobs_.rows[logprobs_.num_rows++] = {
          static_cast<int32_t>(r), ~rows[r].state, num_top,
          static_cast<int32_t>(step.rows.size() - rows.size() + r)};
    }
    flush_logprobs();
  }

  void end() override {
    TENON_CHECK(begun_);
    step().fence->record();
    begun_ = false;
    ++num_in_flight_;
  }

  Result<std::span<SampledToken>> collect() override {
    TENON_CHECK_GT(num_in_flight_, 0U);
    Step& step = steps_[oldest_];
    oldest_ = (oldest_ + 1) % steps_.size();
    --num_in_flight_;
    TENON_RETURN_IF_ERROR(step.fence->wait());
    for (size_t i = 0; i < step.rows.size(); ++i) {
      const SampledId& id = step.ids.as<SampledId>()[i];
      SampledToken& result = tokens_[i];
      result.token = id.token;
      result.error = error_of(step.rows[i].state, id.outcome);
      if (!result.error.ok()) result.token = -1;
      result.logprobs.token = -1;
      result.logprobs.top.clear();
      if (step.rows[i].num_top >= 0 && result.token >= 0) {
        unpack(step.logprobs.as<SampledLogprobs>()[i], result.token, result.logprobs);
      }
    }
    return std::span<SampledToken>(tokens_.data(), step.rows.size());
  }

  Status score(const TensorView& logits,
               std::span<const int32_t> targets,
               int32_t num_top,
               std::span<TokenLogprobs> results) override {
    logprobs_.logits = view_of(logits);
    logprobs_.last_token = last_token_.as<int32_t>();
    logprobs_.out = scores_.as<SampledLogprobs>();
    for (size_t first = 0; first < targets.size(); first += kMaxRowsPerLaunch) {
      const size_t count = std::min<size_t>(kMaxRowsPerLaunch, targets.size() - first);
      for (size_t i = 0; i < count; ++i) {
        logprobs_.rows[logprobs_.num_rows++] = {static_cast<int32_t>(first + i), targets[first + i],
                                                num_top, static_cast<int32_t>(i)};
      }
      flush_logprobs();
      scored_->record();
      TENON_RETURN_IF_ERROR(scored_->wait());
      for (size_t i = 0; i < count; ++i) {
        unpack(scores_.as<SampledLogprobs>()[i], targets[first + i], results[first + i]);
      }
    }
    return ok_status();
  }

 private:
  // Of a slot: the parameters of its request as the kernels take them.
  struct State {
    bool bound = false;
    int32_t min_tokens = 0;
    int32_t num_top = -1;  // of logprobs; < 0: none
    SampleRow row;
    Buffer more_biases;  // for a list longer than kMaxBiases
    Status error;        // the request cannot be sampled at all
  };
  struct StepRow {
    int32_t state = 0;
    int32_t num_top = -1;
  };
  struct Step {
    Buffer ids;  // pinned; the kernels write into both
    Buffer logprobs;
    std::vector<StepRow> rows;
    std::unique_ptr<Fence> fence;
  };
  struct Upload {
    Buffer counts;  // pinned
    Buffer biases;
    std::unique_ptr<Fence> fence;
    bool used = false;
  };

  // The step that has begun.
  Step& step() { return steps_[(oldest_ + num_in_flight_) % steps_.size()]; }

  Logits view_of(const TensorView& logits) const {
    TENON_CHECK_EQ(logits.shape[1], static_cast<int64_t>(limits_.vocab_size));
    return {logits.as<const float>(), logits.stride[0], limits_.vocab_size};
  }

  // Into bias_list_: biases, then what min_tokens bans.
  void collect_biases(const RequestSampler& request, SampleRow& row) {
    const SamplingParams& params = request.params();
    bias_list_.clear();
    for (const auto& [token, bias] : params.logit_bias) {
      bias_list_.push_back({token, bias <= kLogitBiasBan ? kNegInf : bias});
    }
    row.num_biases = static_cast<int32_t>(bias_list_.size());
    if (params.min_tokens > 0) {
      for (const int32_t token : params.stop_token_ids) bias_list_.push_back({token, kNegInf});
      if (!params.ignore_eos) {
        for (const int32_t token : request.end_tokens()) bias_list_.push_back({token, kNegInf});
      }
    }
    row.num_bans = static_cast<int32_t>(bias_list_.size()) - row.num_biases;
  }

  // Errors: kResourceExhausted. The row is left without biases then.
  Status upload_biases(State& state, Upload& upload) {
    const size_t bytes = bias_list_.size() * sizeof(TokenBias);
    if (bias_list_.size() <= kMaxBiases) {
      TokenBias* const biases = biases_.as<TokenBias>() + size(state.row.at.state) * kMaxBiases;
      std::copy(bias_list_.begin(), bias_list_.end(), upload.biases.as<TokenBias>());
      device_->upload(biases, upload.biases.data(), bytes);
      state.row.biases = biases;
      return ok_status();
    }
    if (state.more_biases.size() < bytes) {
      auto buffer = device_->allocate(bytes);
      if (!buffer.ok()) {
        state.row.num_biases = state.row.num_bans = 0;
        return buffer.status();
      }
      state.more_biases = std::move(*buffer);
    }
    device_->write(state.more_biases.data(), bias_list_.data(), bytes);
    state.row.biases = state.more_biases.as<TokenBias>();
    return ok_status();
  }

  static void count_tokens(std::span<const int32_t> tokens,
                           size_t num_prompt_tokens,
                           std::span<uint16_t> counts) {
    std::fill(counts.begin(), counts.end(), uint16_t{0});
    for (size_t i = 0; i < tokens.size(); ++i) {
      uint16_t& count = counts[size(tokens[i])];
      if (i < num_prompt_tokens) {
        count = cuda_sampling::kInPrompt;
      } else if ((count & cuda_sampling::kMaxCount) != cuda_sampling::kMaxCount) {
        ++count;
      }
    }
  }

  Status error_of(int32_t state, Outcome outcome) const {
    if (!states_[size(state)].error.ok()) return states_[size(state)].error;
    switch (outcome) {
      case Outcome::kToken: return ok_status();
      case Outcome::kAllBanned: return all_tokens_banned();
      case Outcome::kNoNumbers: return logits_are_no_numbers();
    }
    return internal_error("sampling gave no outcome");
  }

  static void unpack(const SampledLogprobs& from, int32_t token, TokenLogprobs& to) {
    to.token = token;
    to.logprob = from.logprob;
    to.top.clear();
    for (int32_t i = 0; i < from.num_top; ++i) to.top.emplace_back(from.ids[i], from.logprobs[i]);
  }

  void flush_greedy() {
    if (greedy_.num_rows == 0) return;
    cuda_sampling::launch_greedy(greedy_, device_->stream());
    device_->note(cudaGetLastError(), "greedy sampling");
    greedy_.num_rows = 0;
  }
  void flush_sample() {
    if (sample_.num_rows == 0) return;
    cuda_sampling::launch_sample(sample_, device_->stream());
    device_->note(cudaGetLastError(), "sampling");
    sample_.num_rows = 0;
  }
  void flush_logprobs() {
    if (logprobs_.num_rows == 0) return;
    cuda_sampling::launch_logprobs(logprobs_, device_->stream());
    device_->note(cudaGetLastError(), "log-probabilities");
    logprobs_.num_rows = 0;
  }

  const BatchSamplerLimits limits_;
  CudaDevice* const device_;
  Buffer last_token_;  // [max_states]
  Buffer counts_;      // [max_states, vocab_size]
  Buffer biases_;      // [max_states, kMaxBiases]
  std::vector<State> states_;
  std::vector<TokenBias> bias_list_;

  std::vector<Step> steps_;  // a ring
  size_t oldest_ = 0;
  size_t num_in_flight_ = 0;
  bool begun_ = false;
  std::vector<Upload> uploads_;  // a ring
  size_t next_upload_ = 0;

  GreedyBatch greedy_{};  // rows not yet launched
  SampleBatch sample_{};
  LogprobsBatch logprobs_{};
  Buffer scores_;  // pinned, [kMaxRowsPerLaunch]
  std::unique_ptr<Fence> scored_;
  std::vector<SampledToken> tokens_;  // of the last collect()
};

}  // namespace

Result<std::unique_ptr<BatchSampler>> make_cuda_batch_sampler(const BatchSamplerLimits& limits,
                                                              CudaDevice* device) {
  auto sampler = std::make_unique<CudaBatchSampler>(limits, device);
  Status opened = sampler->open();
  if (!opened.ok()) return opened.with_context("the sampler");
  return std::unique_ptr<BatchSampler>(std::move(sampler));
}

}  // namespace tenon
