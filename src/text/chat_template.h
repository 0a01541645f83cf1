// Chat templates: messages -> prompt text, by the Jinja template the model ships.
//
// Input marking: every character of the result knows whether it came from the template or from the
// caller's messages; the caller's parts come back as `untrusted` ranges, so that the tokenizer
// never turns text inside a message into a control token. Ownership: values. Thread safety: a
// ChatTemplate is immutable; render() may run on any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/tokenizer.h"

namespace tenon {

struct RenderedPrompt {
  std::string text;
  std::vector<TextRange> untrusted;  // sorted, disjoint
};

struct ChatTemplateOptions {
  bool add_generation_prompt = true;
  bool continue_final_message = false;  // cut the prompt right after the last message's content
  std::string bos_token, eos_token;     // literal texts offered to the template
  int64_t now_unix = 0;                 // for strftime_now; 0: the real time
};

class ChatTemplate {
 public:
  // Errors: kInvalidArgument with the line of a syntax error.
  static Result<std::shared_ptr<const ChatTemplate>> parse(std::string_view source);
  virtual ~ChatTemplate() = default;
  // messages: array of {"role", "content", ...}; tools, documents: array or null; extra: object of
  // template kwargs. Errors: kInvalidArgument; raise_exception's message as it is, other failures
  // with the template's line. Steps, depth and output size are limited.
  [[nodiscard]] virtual Result<RenderedPrompt> render(const nlohmann::ordered_json& messages,
                                                      const nlohmann::ordered_json& tools,
                                                      const nlohmann::ordered_json& extra,
                                                      const ChatTemplateOptions& options) const = 0;
};

// The template used when a model ships none and its vocabulary has <|im_start|> (ChatML).
[[nodiscard]] std::string_view chatml_template();

}  // namespace tenon
