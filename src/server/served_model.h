// The model behind the server, and how its prompts are made.
//
// Ownership:     a ServedModel is built once by Server::attach() and then shared, immutable; the
//                Engine is borrowed.
// Thread safety: immutable; every function may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "server/openai_types.h"
#include "tenon/engine.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tenon {

struct ServedModel {
  Engine* engine = nullptr;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate>
      chat_template;  // null: chat is refused with chat_template_problem
  std::string chat_template_problem;
  bool allow_request_chat_template = false;
  std::vector<std::string> names;  // the first one is used in answers
  std::string root;
  int64_t created = 0;         // Unix time
  size_t max_token_bytes = 1;  // longest token

  [[nodiscard]] int32_t max_model_len() const { return engine->model_info().max_model_len; }
};

struct Prompt {
  std::vector<int32_t> ids;
  bool automatic_bos = false;  // ids[0] was put there by the tokenizer, not by the caller
};

// kNotFound (param "model") for a name that is not served.
[[nodiscard]] Status check_model_name(const ServedModel& model, std::string_view name);

// Text or ids as /v1/completions takes them. kInvalidArgument with param "prompt" for a prompt
// without tokens.
Result<Prompt> make_prompt(const ServedModel& model,
                           const PromptInput& input,
                           const EncodeOptions& options);
// Template and tokenizer. Text of messages never becomes a control token.
Result<Prompt> make_chat_prompt(const ServedModel& model, const ChatInput& input);

// Settles max_tokens (at most what the context leaves) for a prompt. kInvalidArgument with "maximum
// context length is N tokens" if nothing is left.
Result<SamplingParams> fit_to_context(const ServedModel& model,
                                      const SamplingParams& sampling,
                                      size_t prompt_tokens,
                                      const char* param);

// The text of a token alone: U+FFFD for bytes that are no complete character.
[[nodiscard]] std::string token_string(const Tokenizer& tokenizer, int32_t id);

}  // namespace tenon
