// Samples a step: one token for each row of logits, on the device that holds them.
//
// A request's sampling state (penalty counts) lives in a `state` slot, and its last token in
// memory of the device, so that the next step can be enqueued before the host knows the token.
//
// Ownership:     borrows the RequestSamplers it is handed, for the call only.
// Thread safety: the engine thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "kernels/ops.h"
#include "sampling/sampler.h"
#include "tenon/request.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

namespace tenon {

struct SamplingRow {
  int32_t state = 0;                        // slot of the request, < max_states
  const RequestSampler* request = nullptr;  // parameters and seed
  int32_t num_accepted = 0;                 // tokens the request has produced before this one,
                                            // those the host does not know yet included
};

struct SampledToken {
  int32_t token = -1;
  TokenLogprobs logprobs;  // if the request asks for them
  Status error;            // kInvalidArgument: everything is banned; kInternal: no numbers
};

struct BatchSamplerLimits {
  int32_t max_rows = 0;  // rows a step
  int32_t max_states = 0;
  int32_t vocab_size = 0;
  int32_t max_steps = 1;  // begun and not yet collected
};

class BatchSampler {
 public:
  virtual ~BatchSampler() = default;

  // `state` belongs to a new request from here on: `tokens` (prompt and what it has produced, all
  // known) count for its penalties.
  virtual void bind(int32_t state,
                    const RequestSampler& request,
                    std::span<const int32_t> tokens,
                    int32_t num_prompt_tokens) = 0;

  // Replaces ids[t] < 0 by the last token sampled for state ~ids[t] (device memory, in stream
  // order).
  virtual void resolve(std::span<int32_t> ids) = 0;

  // A step: begin(), any number of sample() calls with consecutive rows, end(). All enqueue.
  virtual void begin() = 0;
  // logits[rows.size(), vocab_size] f32; read only on the host's behalf, the values may be changed.
  virtual void sample(const TensorView& logits, std::span<const SamplingRow> rows) = 0;
  virtual void end() = 0;
  // Waits for the oldest step not yet collected. One result a row, in the order of the sample()
  // calls; valid until the next collect(). Errors: the device's.
  virtual Result<std::span<SampledToken>> collect() = 0;

  // Log-probabilities of given tokens: result[i] for `targets[i]` in logits row i, with the num_top
  // best ones. Waits; for prompts that are to be scored. Errors: the device's.
  virtual Status score(const TensorView& logits,
                       std::span<const int32_t> targets,
                       int32_t num_top,
                       std::span<TokenLogprobs> results) = 0;
};

// On the CPU, with one sampler scratch a thread.
[[nodiscard]] std::unique_ptr<BatchSampler> make_cpu_batch_sampler(const BatchSamplerLimits& limits,
                                                                   Ops* ops,
                                                                   ThreadPool* pool);

// The sampler for logits that live on the device of `ops`. Defined beside the list of backends
// (src/backends.cc). Errors: kResourceExhausted.
[[nodiscard]] Result<std::unique_ptr<BatchSampler>> make_batch_sampler(
    const BatchSamplerLimits& limits, Ops* ops, ThreadPool* pool);

}  // namespace tenon
