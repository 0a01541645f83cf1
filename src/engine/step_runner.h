// Executes plans on the model: block copies, inputs, forward pass, sampling. launch() enqueues a
// step, collect() waits for the oldest one, so that on a GPU a step can be launched while the one
// before still runs.
//
// Ownership:     borrows EngineParts and the scheduler. Thread safety: the engine thread only.
// Does not allocate after warm-up (every vector keeps its memory), but for logprobs that a request
// asked for and for requests that begin.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "engine/decode_graphs.h"
#include "engine/setup.h"
#include "engine/step_inputs.h"
#include "sampling/batch_sampler.h"
#include "scheduler/scheduler.h"
#include "tenon/engine.h"

namespace tenon {

// What the runner needs of a request beyond the scheduler's view.
struct SamplingTarget {
  RequestSampler* sampler = nullptr;
  // Entries [1, prompt) are filled as the prompt is computed; null if no prompt logprobs are
  // wanted.
  std::vector<TokenLogprobs>* prompt_logprobs = nullptr;
};

class StepRunner {
 public:
  StepRunner(EngineParts* parts, const Scheduler* scheduler);

  // Takes memory, captures graphs. Call once, before the first launch(). Errors:
  // kResourceExhausted, kInternal.
  Status prepare();

  // Enqueues a step; targets[i] belongs to plan.rows[i] and is used during the call only.
  // Errors: kInternal, for the whole engine.
  Status launch(const StepPlan& plan, std::span<const SamplingTarget> targets);
  // Waits for the oldest launched step: one result for each of its rows (token -1: the row samples
  // nothing), valid until the next call.
  Result<std::span<SampledToken>> collect();
  // The request will not sample again before it is admitted anew.
  void release(RequestId id);

  [[nodiscard]] const StepTimes& times() const { return times_; }
  [[nodiscard]] uint64_t graph_steps() const { return graph_steps_; }
  [[nodiscard]] const CascadeCounters& cascade() const { return cascade_; }

 private:
  // A step on its way.
  struct Flight {
    std::vector<int32_t> sampling_rows;
    size_t num_rows = 0;
    std::unique_ptr<StreamTimer> timer;
    std::unique_ptr<Fence> fence;
  };

  void count_cascade(const AttentionMetadata& metadata);
  void copy_blocks(const StepPlan& plan);
  void choose_rows(const StepPlan& plan, std::span<const SamplingTarget> targets, Flight& flight);
  Status compute(const StepPlan& plan, std::span<const SamplingTarget> targets, Flight& flight);
  bool may_use_graph(const StepPlan& plan, std::span<const SamplingTarget> targets) const;
  Result<const AttentionMetadata*> plan_attention(const GraphBounds* bounds);
  void set_all_logits_rows(int32_t num_rows);
  void sample(std::span<const int32_t> token_rows);
  Status score_prompts(const StepPlan& plan, std::span<const SamplingTarget> targets);
  int32_t state_of(const ScheduledRequest& request, const RequestSampler& sampler);
  void read_profile();

  EngineParts* parts_;
  const Scheduler* scheduler_;
  StepInputs inputs_;
  DecodeGraphs graphs_;
  Buffer logits_;
  std::array<Flight, 4> flights_;
  size_t first_flight_ = 0, num_flights_ = 0;
  std::vector<SampledToken> results_;

  // Sampling states of requests that run.
  std::unordered_map<RequestId, int32_t> states_;
  std::vector<int32_t> free_states_;

  std::vector<SamplingRow> sampling_;
  std::vector<int32_t> pending_states_, logits_rows_, scored_tokens_;
  std::vector<TokenLogprobs> scores_;
  StepTimes times_;
  uint64_t graph_steps_ = 0;
  CascadeCounters cascade_;
};

}  // namespace tenon
