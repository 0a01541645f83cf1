// POST /tokenize and /detokenize.
#include "server/api.h"

namespace tenon {
namespace {

Status check_optional_model(const ServedModel& model, const std::string& name) {
  return name.empty() ? ok_status() : check_model_name(model, name);
}

Result<std::vector<int32_t>> encode(const ServedModel& model,
                                    const TokenizeRequest& request,
                                    size_t max_bytes) {
  if (const auto* chat = std::get_if<ChatInput>(&request.input)) {
    TENON_ASSIGN_OR_RETURN(Prompt prompt, make_chat_prompt(model, *chat));
    return std::move(prompt.ids);
  }
  const std::string& text = std::get<std::string>(request.input);
  if (text.size() > max_bytes) {
    return invalid_argument("prompt: a text to tokenise may have {} bytes, this one has {}",
                            max_bytes, text.size())
        .with_param("prompt");
  }
  return model.tokenizer->encode(text, EncodeOptions{.add_special = request.add_special_tokens,
                                                     .parse_special = request.parse_special});
}

}  // namespace

Result<OrderedJson> handle_tokenize(const ApiContext& context, const HttpRequest& http_request) {
  TENON_ASSIGN_OR_RETURN(const OrderedJson body, context.parse_body(http_request));
  TENON_ASSIGN_OR_RETURN(const TokenizeRequest request, parse_tokenize_request(body));
  const ServedModel& model = context.model();
  TENON_RETURN_IF_ERROR(check_optional_model(model, request.model));
  TENON_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                         encode(model, request, context.limits.max_tokenize_bytes));
  OrderedJson strings;
  if (request.return_token_strings) {
    strings = OrderedJson::array();
    for (const int32_t id : ids) strings.push_back(model.tokenizer->token_text(id));
  }
  return OrderedJson{{"count", ids.size()},
                     {"max_model_len", model.max_model_len()},
                     {"tokens", ids},
                     {"token_strs", std::move(strings)}};
}

Result<OrderedJson> handle_detokenize(const ApiContext& context, const HttpRequest& http_request) {
  TENON_ASSIGN_OR_RETURN(const OrderedJson body, context.parse_body(http_request));
  const ServedModel& model = context.model();
  TENON_ASSIGN_OR_RETURN(const DetokenizeRequest request,
                         parse_detokenize_request(body, model.tokenizer->vocab_size()));
  TENON_RETURN_IF_ERROR(check_optional_model(model, request.model));
  return OrderedJson{{"prompt", model.tokenizer->decode(request.tokens, {.skip_special = false})}};
}

}  // namespace tenon
