// Executes one plan on the model: block copies, inputs, forward pass, sampling.
//
// Ownership:     borrows EngineParts and the scheduler. Thread safety: the engine thread only.
// Does not allocate after warm-up (every vector keeps its memory), but for logprobs that a request
// asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/setup.h"
#include "sampling/sampler.h"
#include "scheduler/scheduler.h"
#include "tensor/tensor.h"

namespace tenon {

// What the runner needs of a request beyond the scheduler's view.
struct SamplingTarget {
  RequestSampler* sampler = nullptr;
  // Entries [1, prompt) are filled as the prompt is computed; null if no prompt logprobs are
  // wanted.
  std::vector<TokenLogprobs>* prompt_logprobs = nullptr;
};

struct SampledRow {
  int32_t token = -1;      // -1: the row samples nothing
  TokenLogprobs logprobs;  // if the request wants them
  Status error;
};

class StepRunner {
 public:
  StepRunner(EngineParts* parts, const Scheduler* scheduler);

  // targets[i] belongs to plan.rows[i]; the result is valid until the next call. Errors: kInternal,
  // for the whole step.
  Result<std::span<SampledRow>> run(const StepPlan& plan, std::span<const SamplingTarget> targets);

 private:
  void copy_blocks(const StepPlan& plan);
  void prepare_inputs(const StepPlan& plan);
  void sample(const StepPlan& plan, std::span<const SamplingTarget> targets);
  void score_prompts(const StepPlan& plan, std::span<const SamplingTarget> targets);
  // Logits of `rows` (token indices of the step), in slices: visit(first index into rows, slice
  // view).
  template <typename Visit>
  void for_each_logits_slice(std::span<const int32_t> rows, const Visit& visit);

  EngineParts* parts_;
  const Scheduler* scheduler_;
  std::vector<int32_t> token_ids_, positions_, query_start_loc_, seq_lens_, page_indptr_,
      page_indices_;
  std::vector<int64_t> slot_mapping_;
  BatchView batch_;
  Buffer logits_;
  std::vector<float> log_sum_exp_;
  std::vector<SamplerScratch> scratch_;  // one a thread
  std::vector<SampledRow> results_;
  std::vector<int32_t> sampling_rows_, logits_rows_;
};

}  // namespace tenon
