// Requests of the OpenAI API (with vLLM's extensions) as plain, validated structs.
//
// Parsing:       unknown fields are accepted and ignored; a field that is known, would change the
//                answer and is not supported is refused. Errors are kInvalidArgument or
//                kUnsupported with param() set.
// Thread safety: plain data and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/status.h"
#include "server/json_input.h"
#include "tenon/sampling.h"

namespace tenon {

// What parsing has to know about the served model.
struct RequestLimits {
  int32_t vocab_size = 0;
  int32_t max_choices = 1024;
};

struct StreamParams {
  bool enabled = false;
  bool include_usage = false;
  bool continuous_usage = false;
};

// Fields that completions and chat share. sampling is validated; its max_tokens holds max_tokens,
// if given.
struct GenerationParams {
  std::string model;
  SamplingParams sampling;
  std::optional<int32_t> max_tokens;
  int32_t n = 1;
  std::vector<std::string> stop;
  bool include_stop_string = false;
  bool skip_special_tokens = true;
  StreamParams stream;
  int32_t priority = 0;
  std::string cache_salt;
  bool return_token_ids = false;            // ids beside the text
  bool return_tokens_as_token_ids = false;  // logprobs name tokens "token_id:N"
  bool return_prompt_logprobs = false;      // the `prompt_logprobs` field was given
};

using PromptInput = std::variant<std::string, std::vector<int32_t>>;  // text or token ids

struct CompletionRequest {
  GenerationParams params;
  std::vector<PromptInput> prompts;
  bool echo = false;
  bool add_special_tokens = true;  // BOS, as the tokenizer's own rule says
  bool parse_special = true;       // "<|im_end|>" in the text is the token, not eleven characters
};

// What a chat template needs.
struct ChatInput {
  OrderedJson messages;   // not empty; content is a string or null
  OrderedJson documents;  // array or null
  OrderedJson template_kwargs = OrderedJson::object();
  std::string chat_template;  // of this request; empty: the server's
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  bool add_special_tokens = false;
};

struct ChatRequest {
  GenerationParams params;
  ChatInput input;
};

struct TokenizeRequest {
  std::string model;  // may be empty
  std::variant<std::string, ChatInput> input;
  bool add_special_tokens = true;  // for text
  bool parse_special = true;       // for text
  bool return_token_strings = false;
};

struct DetokenizeRequest {
  std::string model;  // may be empty
  std::vector<int32_t> tokens;
};

Result<CompletionRequest> parse_completion_request(const OrderedJson& body,
                                                   const RequestLimits& limits);
Result<ChatRequest> parse_chat_request(const OrderedJson& body, const RequestLimits& limits);
Result<TokenizeRequest> parse_tokenize_request(const OrderedJson& body);
Result<DetokenizeRequest> parse_detokenize_request(const OrderedJson& body, int32_t vocab_size);

}  // namespace tenon
