// Log-probabilities of one position.
#pragma once

#include <cstdint>
#include <span>

#include "tenon/sampling.h"

namespace tenon {

// logits[vocab_size], untouched by sampling parameters; log_sum_exp over all of them. Alternatives
// are sorted by probability, ties by id.
TokenLogprobs make_logprobs(std::span<const float> logits,
                            float log_sum_exp,
                            int32_t token,
                            int32_t num_top);

}  // namespace tenon
