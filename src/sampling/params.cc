// Validation of SamplingParams.
#include <cmath>

#include "base/status.h"
#include "tenon/sampling.h"

namespace tenon {
namespace {

Status out_of_range(const char* name, double value, const char* range) {
  return invalid_argument("{} must be in {}, got {}", name, range, value).with_param(name);
}

Status check_id(const char* name, int32_t id, int32_t vocab_size) {
  if (id >= 0 && id < vocab_size) return ok_status();
  return invalid_argument("{}: token id {} is not in the vocabulary of {} tokens", name, id,
                          vocab_size)
      .with_param(name);
}

}  // namespace

Status SamplingParams::validate(int32_t vocab_size) const {
  // Written so that NaN fails every test.
  if (!(temperature >= 0.0F && temperature <= 2.0F)) {
    return out_of_range("temperature", temperature, "[0, 2]");
  }
  if (top_k < -1) return out_of_range("top_k", top_k, "[-1, inf)");
  if (!(top_p >= 0.0F && top_p <= 1.0F)) return out_of_range("top_p", top_p, "[0, 1]");
  if (!(min_p >= 0.0F && min_p <= 1.0F)) return out_of_range("min_p", min_p, "[0, 1]");
  if (!(repetition_penalty > 0.0F && std::isfinite(repetition_penalty))) {
    return out_of_range("repetition_penalty", repetition_penalty, "(0, inf)");
  }
  if (!(presence_penalty >= -2.0F && presence_penalty <= 2.0F)) {
    return out_of_range("presence_penalty", presence_penalty, "[-2, 2]");
  }
  if (!(frequency_penalty >= -2.0F && frequency_penalty <= 2.0F)) {
    return out_of_range("frequency_penalty", frequency_penalty, "[-2, 2]");
  }
  for (const auto& [token, bias] : logit_bias) {
    TENON_RETURN_IF_ERROR(check_id("logit_bias", token, vocab_size));
    if (!(bias >= -100.0F && bias <= 100.0F))
      return out_of_range("logit_bias", bias, "[-100, 100]");
  }
  for (const int32_t token : stop_token_ids) {
    TENON_RETURN_IF_ERROR(check_id("stop_token_ids", token, vocab_size));
  }
  if (max_tokens < 0) return out_of_range("max_tokens", max_tokens, "[0, inf)");
  if (min_tokens < 0) return out_of_range("min_tokens", min_tokens, "[0, inf)");
  if (min_tokens > max_tokens) {
    return invalid_argument("min_tokens ({}) must not be above max_tokens ({})", min_tokens,
                            max_tokens)
        .with_param("min_tokens");
  }
  if (logprobs && (*logprobs < 0 || *logprobs > kMaxLogprobs)) {
    return out_of_range("logprobs", *logprobs, "[0, 20]");
  }
  if (prompt_logprobs && (*prompt_logprobs < 0 || *prompt_logprobs > kMaxLogprobs)) {
    return out_of_range("prompt_logprobs", *prompt_logprobs, "[0, 20]");
  }
  return ok_status();
}

}  // namespace tenon
