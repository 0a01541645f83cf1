#include "server/served_model.h"

#include <algorithm>
#include <atomic>

#include "base/log.h"
#include "text/chat_prompt.h"
#include "text/detokenizer.h"

namespace tenon {
namespace {

// Unicode composition makes at most one byte out of three, so text this much longer than the
// longest possible prompt cannot fit, and need not be tokenised to know it.
constexpr size_t kMaxShrink = 3;

Status too_long(const ServedModel& model, std::string_view how_many, const char* param) {
  return invalid_argument(
             "This model's maximum context length is {} tokens, but the prompt has {} tokens.",
             model.max_model_len(), how_many)
      .with_param(param);
}

Status check_text_size(const ServedModel& model, std::string_view text, const char* param) {
  const size_t bytes_per_token = model.max_token_bytes * kMaxShrink;
  if (text.size() / bytes_per_token <= static_cast<size_t>(model.max_model_len()))
    return ok_status();
  return too_long(model, fmt::format("more than {}", text.size() / bytes_per_token), param);
}

void warn_about_two_bos(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  static std::atomic_flag warned;
  const auto bos = tokenizer.bos_id();
  if (!bos || ids.size() < 2 || ids[0] != *bos || ids[1] != *bos) return;
  if (warned.test_and_set()) return;
  log_warning(
      "a prompt begins with two BOS tokens: its text has one already and the tokenizer adds "
      "another (said once)");
}

}  // namespace

Status check_model_name(const ServedModel& model, std::string_view name) {
  if (std::find(model.names.begin(), model.names.end(), name) != model.names.end())
    return ok_status();
  return not_found("the model '{}' does not exist; served: {}", name.substr(0, 200),
                   fmt::join(model.names, ", "))
      .with_param("model");
}

Result<Prompt> make_prompt(const ServedModel& model,
                           const PromptInput& input,
                           const EncodeOptions& options) {
  if (const auto* ids = std::get_if<std::vector<int32_t>>(&input)) return Prompt{*ids, false};
  const std::string& text = std::get<std::string>(input);
  TENON_RETURN_IF_ERROR(check_text_size(model, text, "prompt"));
  TENON_ASSIGN_OR_RETURN(std::vector<int32_t> ids, model.tokenizer->encode(text, options));
  if (ids.empty()) return invalid_argument("prompt: the text gives no tokens").with_param("prompt");
  warn_about_two_bos(*model.tokenizer, ids);
  const bool automatic =
      options.add_special && model.tokenizer->adds_bos() && model.tokenizer->bos_id() == ids[0];
  return Prompt{std::move(ids), automatic};
}

Result<Prompt> make_chat_prompt(const ServedModel& model, const ChatInput& input) {
  std::shared_ptr<const ChatTemplate> chat_template = model.chat_template;
  if (!input.chat_template.empty()) {
    if (!model.allow_request_chat_template) {
      return unsupported("chat_template in a request is not allowed on this server")
          .with_param("chat_template");
    }
    auto parsed = ChatTemplate::parse(input.chat_template);
    if (!parsed.ok())
      return parsed.status().with_context("chat_template").with_param("chat_template");
    chat_template = *parsed;
  }
  if (!chat_template) return unsupported("{}", model.chat_template_problem);
  ChatTemplateOptions options = chat_template_options(*model.tokenizer);
  options.add_generation_prompt = input.add_generation_prompt;
  options.continue_final_message = input.continue_final_message;
  OrderedJson kwargs = input.template_kwargs;
  if (!input.documents.is_null()) kwargs["documents"] = input.documents;
  TENON_ASSIGN_OR_RETURN(const RenderedPrompt rendered,
                         chat_template->render(input.messages, OrderedJson(), kwargs, options));
  TENON_RETURN_IF_ERROR(check_text_size(model, rendered.text, "messages"));
  EncodeOptions encode;
  encode.add_special = input.add_special_tokens;
  encode.untrusted = rendered.untrusted;
  TENON_ASSIGN_OR_RETURN(std::vector<int32_t> ids, model.tokenizer->encode(rendered.text, encode));
  if (ids.empty())
    return invalid_argument("the chat template gives an empty prompt").with_param("messages");
  return Prompt{std::move(ids), false};
}

Result<SamplingParams> fit_to_context(const ServedModel& model,
                                      const SamplingParams& sampling,
                                      size_t prompt_tokens,
                                      const char* param) {
  const auto context = static_cast<size_t>(model.max_model_len());
  // A prompt that is only scored may fill the context; any other needs room for one token.
  const size_t needed = prompt_tokens + (sampling.max_tokens > 0 ? 1 : 0);
  if (needed > context) return too_long(model, std::to_string(prompt_tokens), param);
  SamplingParams fitted = sampling;
  fitted.max_tokens = std::min(sampling.max_tokens, static_cast<int32_t>(context - prompt_tokens));
  fitted.min_tokens = std::min(sampling.min_tokens, fitted.max_tokens);
  return fitted;
}

std::string token_string(const Tokenizer& tokenizer, int32_t id) {
  std::string text;
  Utf8Assembler assembler;
  assembler.push(tokenizer.token_bytes(id), text);
  assembler.finish(text);
  return text;
}

}  // namespace tenon
