#include "text/chat_prompt.h"

#include <optional>
#include <string>

namespace tenon {

Result<std::shared_ptr<const ChatTemplate>> choose_chat_template(const TextAssets& assets,
                                                                 std::string_view instead) {
  std::string_view source = instead.empty() ? assets.chat_template : instead;
  if (source.empty() && assets.tokenizer->find_token("<|im_start|>")) source = chatml_template();
  if (source.empty()) return not_found("this model has no chat template");
  return ChatTemplate::parse(source);
}

ChatTemplateOptions chat_template_options(const Tokenizer& tokenizer) {
  const auto literal = [&](std::optional<int32_t> id) {
    return id ? std::string(tokenizer.token_bytes(*id)) : std::string();
  };
  ChatTemplateOptions options;
  options.bos_token = literal(tokenizer.bos_id());
  options.eos_token = literal(tokenizer.eos_id());
  return options;
}

}  // namespace tenon
