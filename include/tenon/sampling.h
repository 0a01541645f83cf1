// Sampling parameters of one request. Plain data, validated by `validate()`; safe to copy between
// threads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tenon/status.h"

namespace tenon {

struct SamplingParams {
  // Order of application: logit_bias, min_tokens mask, repetition / presence / frequency penalties,
  // temperature, top_k, top_p, min_p, draw. temperature 0 (or below 1e-5) is greedy: highest logit
  // after bias and penalties, ties broken by the lowest id, whatever the other fields say.
  float temperature = 1.0F;         // [0, 2]
  int32_t top_k = 0;                // 0 or -1: off; larger than the vocabulary: off
  float top_p = 1.0F;               // [0, 1]; at least one token always stays
  float min_p = 0.0F;               // [0, 1]
  float repetition_penalty = 1.0F;  // (0, inf); over prompt and output (CTRL, arXiv:1909.05858)
  float presence_penalty = 0.0F;    // [-2, 2]; over output only (OpenAI API)
  float frequency_penalty = 0.0F;   // [-2, 2]; over output only
  std::vector<std::pair<int32_t, float>>
      logit_bias;  // token id -> [-100, 100]; -100 bans the token
  std::optional<int64_t>
      seed;                 // same seed, same request: same tokens, whatever else is in the batch
  int32_t max_tokens = 16;  // >= 0; 0 only scores the prompt
  int32_t min_tokens = 0;   // end tokens are masked until this many tokens were produced
  bool ignore_eos = false;
  std::vector<int32_t> stop_token_ids;  // ends the request, finish reason `stop`
  // Number of alternatives to return with each token; nullopt: no logprobs, 0: chosen token only.
  std::optional<int32_t> logprobs;         // [0, kMaxLogprobs]
  std::optional<int32_t> prompt_logprobs;  // the same for every prompt token (echo)

  static constexpr int32_t kMaxLogprobs = 20;

  [[nodiscard]] bool greedy() const { return temperature < 1e-5F; }
  // kInvalidArgument with param() set to the offending field's OpenAI name.
  [[nodiscard]] Status validate(int32_t vocab_size) const;
};

// Natural-log probabilities of one position, from the model's logits before any sampling parameter
// changes them (vLLM's `raw_logprobs`).
struct TokenLogprobs {
  int32_t token = -1;
  float logprob = 0.0F;
  std::vector<std::pair<int32_t, float>> top;  // most probable first, as many as were asked for
};

}  // namespace tenon
