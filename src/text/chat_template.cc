#include "text/chat_template.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "text/jinja/json.h"
#include "text/jinja/template.h"
#include "text/jinja/text_operations.h"
#include "text/jinja/unicode.h"

namespace tenon {
namespace {

using Json = nlohmann::ordered_json;

// Stands behind the text that is to be continued while the template is rendered. The trailing space
// tells whether the template strips messages.
constexpr std::string_view kContinueTag = "CONTINUE_FINAL_MESSAGE_TAG ";
constexpr std::string_view kBareContinueTag = kContinueTag.substr(0, kContinueTag.size() - 1);

constexpr std::array<const char*, 3> kReasoningFields = {"reasoning_content", "thinking",
                                                         "reasoning"};

// Templates read a message's reasoning under several names; it is offered under the two in use.
Json with_reasoning_names(const Json& message) {
  for (const char* field : kReasoningFields) {
    const auto found = message.find(field);
    if (found == message.end() || found->is_null()) continue;
    // Appended without a look-up for each key, which would walk all earlier ones.
    Json result = Json::object();
    auto& fields = result.get_ref<Json::object_t&>();
    const auto own = message.find("thinking");
    fields.emplace_back("thinking", own == message.end() ? *found : *own);
    for (const auto& [key, value] : message.get_ref<const Json::object_t&>()) {
      if (key != "thinking" && key != "reasoning_content") fields.emplace_back(key, value);
    }
    fields.emplace_back("reasoning_content", *found);
    return result;
  }
  return message;
}

Status check_messages(const Json& messages) {
  if (!messages.is_array())
    return invalid_argument("messages must be a list").with_param("messages");
  for (const Json& message : messages) {
    if (!message.is_object())
      return invalid_argument("each message must be an object").with_param("messages");
  }
  return ok_status();
}

Status nothing_to_continue() {
  return invalid_argument(
             "continue_final_message is set, but the last message has no text to continue")
      .with_param("continue_final_message");
}

// Puts the tag behind the last message's text; returns that text.
Result<std::string> tag_final_message(Json& messages) {
  if (messages.empty()) return nothing_to_continue();
  const auto content = messages.back().find("content");
  if (content == messages.back().end()) return nothing_to_continue();
  Json* text = &*content;
  if (content->is_array()) {
    text = nullptr;
    for (Json& part : *content) {
      if (part.is_object() && part.contains("text")) text = &part["text"];
    }
  }
  if (text == nullptr || !text->is_string()) return nothing_to_continue();
  const std::string original = text->get<std::string>();
  *text = original + std::string(kContinueTag);
  return original;
}

Status cut_at_tag(jinja::MarkedText& prompt, const std::string& message) {
  const size_t tag = prompt.view().rfind(kBareContinueTag);
  const jinja::MarkedText stripped =
      jinja::strip(jinja::MarkedText(message), nullptr, jinja::Side::kBoth);
  if (tag == std::string_view::npos ||
      prompt.view().find(stripped.view()) == std::string_view::npos) {
    return invalid_argument(
               "continue_final_message is set, but the template does not show the last message as "
               "it is")
        .with_param("continue_final_message");
  }
  const bool keeps_space = prompt.view().substr(tag).starts_with(kContinueTag);
  prompt.truncate(tag);
  if (!keeps_space) prompt.truncate(jinja::strip_space_right(prompt.view()).size());
  return ok_status();
}

class JinjaChatTemplate : public ChatTemplate {
 public:
  JinjaChatTemplate(jinja::Template body, bool shows_content)
      : template_(std::move(body)), shows_content_(shows_content) {}

  [[nodiscard]] Result<RenderedPrompt> render(const Json& messages,
                                              const Json& tools,
                                              const Json& extra,
                                              const ChatTemplateOptions& options) const override {
    TENON_RETURN_IF_ERROR(check_messages(messages));
    Json chat = Json::array();
    for (const Json& message : messages) chat.push_back(with_reasoning_names(message));
    std::string continued;
    if (options.continue_final_message) {
      if (!shows_content_) return nothing_to_continue();
      TENON_ASSIGN_OR_RETURN(continued, tag_final_message(chat));
    }
    TENON_ASSIGN_OR_RETURN(const jinja::Variables variables,
                           make_variables(chat, tools, extra, options));
    const int64_t now = options.now_unix != 0 ? options.now_unix : std::time(nullptr);
    TENON_ASSIGN_OR_RETURN(jinja::MarkedText prompt, template_.render(variables, now));
    if (options.continue_final_message) TENON_RETURN_IF_ERROR(cut_at_tag(prompt, continued));
    RenderedPrompt result;
    result.untrusted = prompt.untrusted();
    result.text = std::move(prompt).take_bytes();
    return result;
  }

 private:
  // Later ones win: the caller's arguments over the defaults.
  static Result<jinja::Variables> make_variables(const Json& chat,
                                                 const Json& tools,
                                                 const Json& extra,
                                                 const ChatTemplateOptions& options) {
    jinja::Variables variables;
    variables.emplace_back("bos_token", jinja::Value::text(options.bos_token));
    variables.emplace_back("eos_token", jinja::Value::text(options.eos_token));
    variables.emplace_back("documents", jinja::Value::none());
    variables.emplace_back(
        "add_generation_prompt",
        jinja::Value::boolean(options.add_generation_prompt && !options.continue_final_message));
    if (!extra.is_object() && !extra.is_null()) {
      return invalid_argument("arguments of the chat template must be an object");
    }
    for (const auto& [name, argument] : extra.items()) {
      if (name == "messages" || name == "tools") {
        return invalid_argument("'{}' cannot be given as an argument of the chat template", name);
      }
      TENON_ASSIGN_OR_RETURN(jinja::Value value, jinja::from_json(argument));
      variables.emplace_back(name, std::move(value));
    }
    TENON_ASSIGN_OR_RETURN(jinja::Value message_values, jinja::from_json(chat));
    TENON_ASSIGN_OR_RETURN(jinja::Value tool_values, jinja::from_json(tools));
    variables.emplace_back("messages", std::move(message_values));
    variables.emplace_back("tools", std::move(tool_values));
    return variables;
  }

  jinja::Template template_;
  bool shows_content_;
};

}  // namespace

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::parse(std::string_view source) {
  TENON_ASSIGN_OR_RETURN(jinja::Template parsed, jinja::Template::parse(source));
  const bool shows_content = source.find("content") != std::string_view::npos;
  return std::shared_ptr<const ChatTemplate>(
      std::make_shared<JinjaChatTemplate>(std::move(parsed), shows_content));
}

std::string_view chatml_template() {
  return R"({% for message in messages %}{{ '<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %})";
}

}  // namespace tenon
