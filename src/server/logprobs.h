// The two shapes in which log probabilities are answered. Plain values; a CompletionLogprobs
// belongs to one choice.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/json_input.h"
#include "tenon/sampling.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace tenon {

// How tokens are named in logprobs.
struct TokenNames {
  std::shared_ptr<const Tokenizer> tokenizer;
  bool as_ids = false;  // "token_id:123" instead of the text

  [[nodiscard]] std::string operator()(int32_t id) const;
};

// JSON has no infinity: what is less likely than this is written as this.
constexpr float kMinLogprob = -9999.0F;

// Chat: {"content": [{"token", "logprob", "bytes", "top_logprobs": [...]}]}.
[[nodiscard]] OrderedJson chat_logprobs(const TokenNames& names,
                                        const std::vector<TokenLogprobs>& logprobs);

// vLLM's `prompt_logprobs`: [null, {"id": {"logprob", "rank", "decoded_token"}}, ...]; rank is null
// where it is not among the alternatives asked for.
[[nodiscard]] OrderedJson prompt_logprobs_json(const TokenNames& names,
                                               const std::vector<TokenLogprobs>& logprobs);

// Completions: parallel lists tokens, token_logprobs, top_logprobs, text_offset. text_offset counts
// the characters of the choice's text before the token, over all calls of take().
class CompletionLogprobs {
 public:
  CompletionLogprobs(TokenNames names, int32_t num_top);

  // `visible`: the token's text is part of the choice's text. A token of a prompt's first position
  // has no logprob.
  void add(const TokenLogprobs& logprobs, bool visible, bool has_logprob = true);
  // What was added since the last call.
  [[nodiscard]] OrderedJson take();

 private:
  TokenNames names_;
  int32_t num_top_;
  Utf8Assembler assembler_;
  int64_t offset_ = 0;
  OrderedJson tokens_, token_logprobs_, top_logprobs_, text_offset_;
  void clear();
};

}  // namespace tenon
