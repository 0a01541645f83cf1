// Turns the logits of one position into a token, for one request.
//
// Purpose:       a RequestSampler holds what one request's sampling depends on: its parameters, the
// tokens it has
//                seen, and its random stream. Nothing is shared between requests, so that a
//                request's tokens do not depend on what else is in the batch.
// Ownership:     owns copies of everything. Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "tenon/sampling.h"

namespace tenon {

// Memory that sample() needs and that all requests of an engine share, so that a step does not
// allocate.
struct SamplerScratch {
  std::vector<float> logits;
  std::vector<std::pair<float, int32_t>> candidates;
};

class RequestSampler {
 public:
  // prompt: for the repetition penalty. end_tokens: the model's EOS ids. fallback_seed: used when
  // the parameters carry none.
  RequestSampler(SamplingParams params,
                 std::span<const int32_t> prompt,
                 std::span<const int32_t> end_tokens,
                 uint64_t fallback_seed);

  // logits[vocab_size]: read only. The draw depends on (seed, number of tokens accepted so far)
  // alone: it inverts the cumulative distribution of the tokens that are kept, in the order of
  // their ids, in whole numbers (draw.h). Errors: kInvalidArgument when the request bans every
  // token, kInternal when the model produced no number.
  Result<int32_t> sample(std::span<const float> logits, SamplerScratch& scratch) const;

  // Records `token` as produced.
  void accept(int32_t token);

  [[nodiscard]] const SamplingParams& params() const { return params_; }
  [[nodiscard]] int32_t num_accepted() const { return num_accepted_; }
  [[nodiscard]] uint64_t seed() const { return seed_; }
  [[nodiscard]] std::span<const int32_t> end_tokens() const { return end_tokens_; }
  // Log2 of min_p; -infinity when it is off.
  [[nodiscard]] float min_p_log2() const;
  // True if `token` ends the request now: an EOS that is not ignored, or one of stop_token_ids.
  [[nodiscard]] bool ends_with(int32_t token) const;
  [[nodiscard]] bool is_eos(int32_t token) const;

 private:
  [[nodiscard]] bool adjusts_logits() const;
  void adjust(std::span<float> logits) const;
  int32_t draw(std::span<const float> logits, SamplerScratch& scratch) const;

  SamplingParams params_;
  std::vector<int32_t> end_tokens_;
  uint64_t seed_;
  int32_t num_accepted_ = 0;
  std::unordered_map<int32_t, int32_t> output_counts_;  // token -> times produced
  std::vector<int32_t> seen_;                           // distinct tokens of prompt and output
  std::unordered_map<int32_t, bool> in_seen_;
};

// The OpenAI API's "ban" value of logit_bias.
inline constexpr float kLogitBiasBan = -100.0F;

// Why a row gives no token.
[[nodiscard]] Status all_tokens_banned();      // kInvalidArgument
[[nodiscard]] Status logits_are_no_numbers();  // kInternal

// Index of the highest value, the lowest index among equals; -1 if nothing is above -infinity (NaN
// counts as nothing).
int32_t argmax(std::span<const float> values);

}  // namespace tenon
