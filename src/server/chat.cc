// POST /v1/chat/completions.
#include "server/api.h"
#include "server/logprobs.h"

namespace tenon {
namespace {

class ChatFormat final : public ChoiceFormat {
 public:
  ChatFormat(std::shared_ptr<const ServedModel> model, const GenerationParams& params)
      : params_(params), names_{model->tokenizer, params.return_tokens_as_token_ids} {}

  // The role first, then content, then the reason of the end with an empty delta.
  std::vector<OrderedJson> stream(ChoiceUpdate& update) override {
    std::vector<OrderedJson> choices;
    if (update.first) {
      choices.push_back(delta(update.index, {{"role", "assistant"}, {"content", ""}}));
    }
    const bool shows_tokens =
        !update.tokens.empty() && (params_.return_token_ids || params_.sampling.logprobs);
    if (!update.text.empty() || shows_tokens) {
      OrderedJson choice = delta(update.index, {{"content", update.text}});
      choice["logprobs"] = logprobs_json(update);
      if (params_.return_token_ids) choice["token_ids"] = update.tokens;
      choices.push_back(std::move(choice));
    }
    if (update.finish_reason != FinishReason::kNone) {
      OrderedJson choice = delta(update.index, OrderedJson::object());
      choice["finish_reason"] = finish_reason_json(update.finish_reason);
      choice["stop_reason"] = stop_reason_json(update.stop_reason);
      choices.push_back(std::move(choice));
    }
    return choices;
  }

  OrderedJson whole(ChoiceUpdate& update) override {
    OrderedJson choice = {
        {"index", update.index},
        {"message", {{"role", "assistant"}, {"content", update.text}, {"refusal", nullptr}}},
        {"logprobs", logprobs_json(update)},
        {"finish_reason", finish_reason_json(update.finish_reason)},
        {"stop_reason", stop_reason_json(update.stop_reason)}};
    if (params_.return_token_ids) choice["token_ids"] = update.tokens;
    return choice;
  }

  void add_fields(const ChoiceUpdate& update, OrderedJson& envelope) override {
    if (params_.return_token_ids) envelope["prompt_token_ids"] = update.prompt->ids;
    if (params_.return_prompt_logprobs) {
      envelope["prompt_logprobs"] = prompt_logprobs_json(names_, update.prompt_logprobs);
    }
  }

 private:
  static OrderedJson delta(int32_t index, OrderedJson content) {
    return {{"index", index},
            {"delta", std::move(content)},
            {"logprobs", nullptr},
            {"finish_reason", nullptr}};
  }

  [[nodiscard]] OrderedJson logprobs_json(const ChoiceUpdate& update) const {
    return params_.sampling.logprobs ? chat_logprobs(names_, update.logprobs) : OrderedJson();
  }

  const GenerationParams params_;
  const TokenNames names_;
};

}  // namespace

Status handle_chat(const ApiContext& context,
                   const HttpRequest& http_request,
                   std::shared_ptr<HttpExchange> exchange) {
  TENON_ASSIGN_OR_RETURN(const OrderedJson body, context.parse_body(http_request));
  TENON_ASSIGN_OR_RETURN(const ChatRequest request,
                         parse_chat_request(body, context.request_limits()));
  const ServedModel& model = context.model();
  TENON_RETURN_IF_ERROR(check_model_name(model, request.params.model));
  TENON_ASSIGN_OR_RETURN(Prompt prompt, make_chat_prompt(model, request.input));
  GenerationPlan plan;
  plan.params = request.params;
  TENON_ASSIGN_OR_RETURN(SamplingParams sampling, fit_to_context(model, request.params.sampling,
                                                                 prompt.ids.size(), "messages"));
  plan.sampling.push_back(std::move(sampling));
  plan.prompts.push_back(std::make_shared<const Prompt>(std::move(prompt)));
  AnswerOptions answer;
  answer.id = random_id("chatcmpl-");
  answer.object = "chat.completion";
  answer.chunk_object = "chat.completion.chunk";
  auto format = std::make_unique<ChatFormat>(context.services.model, request.params);
  return start_generation(context, std::move(plan), std::move(answer), std::move(format),
                          std::move(exchange));
}

}  // namespace tenon
