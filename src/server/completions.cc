// POST /v1/completions.
#include "server/api.h"
#include "server/logprobs.h"

namespace tenon {
namespace {

class CompletionFormat final : public ChoiceFormat {
 public:
  CompletionFormat(std::shared_ptr<const ServedModel> model, const CompletionRequest& request)
      : model_(std::move(model)),
        params_(request.params),
        echo_(request.echo),
        names_{model_->tokenizer, request.params.return_tokens_as_token_ids} {
    if (echo_) {
      for (const PromptInput& prompt : request.prompts) echo_texts_.push_back(prompt_text(prompt));
    }
    const size_t choices = request.prompts.size() * static_cast<size_t>(params_.n);
    if (params_.sampling.logprobs) {
      for (size_t i = 0; i < choices; ++i)
        logprobs_.emplace_back(names_, *params_.sampling.logprobs);
    }
  }

  std::vector<OrderedJson> stream(ChoiceUpdate& update) override {
    const bool shows_tokens = params_.return_token_ids || params_.sampling.logprobs;
    const bool silent = update.text.empty() && !shows_tokens && !(update.first && echo_) &&
                        update.finish_reason == FinishReason::kNone;
    if (silent) return {};
    return {whole(update)};
  }

  OrderedJson whole(ChoiceUpdate& update) override {
    const bool shows_prompt = echo_ && update.first;
    OrderedJson choice = {{"index", update.index}};
    choice["text"] = (shows_prompt ? echo_texts_[prompt_of(update)] : std::string()) + update.text;
    choice["logprobs"] = params_.sampling.logprobs ? logprobs_json(update) : OrderedJson();
    choice["finish_reason"] = finish_reason_json(update.finish_reason);
    choice["stop_reason"] = stop_reason_json(update.stop_reason);
    if (params_.return_prompt_logprobs)
      choice["prompt_logprobs"] = prompt_logprobs_json(names_, update.prompt_logprobs);
    if (params_.return_token_ids) {
      if (update.first) choice["prompt_token_ids"] = update.prompt->ids;
      choice["token_ids"] = update.tokens;
    }
    return choice;
  }

 private:
  [[nodiscard]] size_t prompt_of(const ChoiceUpdate& update) const {
    return static_cast<size_t>(update.index) / static_cast<size_t>(params_.n);
  }

  [[nodiscard]] std::string prompt_text(const PromptInput& prompt) const {
    if (const auto* text = std::get_if<std::string>(&prompt)) return *text;
    return model_->tokenizer->decode(std::get<std::vector<int32_t>>(prompt),
                                     {.skip_special = false});
  }

  OrderedJson logprobs_json(const ChoiceUpdate& update) {
    CompletionLogprobs& logprobs = logprobs_[static_cast<size_t>(update.index)];
    if (echo_ && update.first) {
      for (size_t i = 0; i < update.prompt_logprobs.size(); ++i) {
        const bool visible = i > 0 || !update.prompt->automatic_bos;
        logprobs.add(update.prompt_logprobs[i], visible, i > 0);
      }
    }
    for (const TokenLogprobs& token : update.logprobs) {
      logprobs.add(token,
                   !(params_.skip_special_tokens && model_->tokenizer->is_special(token.token)));
    }
    return logprobs.take();
  }

  const std::shared_ptr<const ServedModel> model_;
  const GenerationParams params_;
  const bool echo_;
  const TokenNames names_;
  std::vector<std::string> echo_texts_;       // one for each prompt
  std::vector<CompletionLogprobs> logprobs_;  // one for each choice
};

}  // namespace

Status handle_completion(const ApiContext& context,
                         const HttpRequest& http_request,
                         std::shared_ptr<HttpExchange> exchange) {
  TENON_ASSIGN_OR_RETURN(const OrderedJson body, context.parse_body(http_request));
  TENON_ASSIGN_OR_RETURN(const CompletionRequest request,
                         parse_completion_request(body, context.request_limits()));
  const ServedModel& model = context.model();
  TENON_RETURN_IF_ERROR(check_model_name(model, request.params.model));
  GenerationPlan plan;
  plan.params = request.params;
  const EncodeOptions options{.add_special = request.add_special_tokens,
                              .parse_special = request.parse_special};
  for (const PromptInput& input : request.prompts) {
    TENON_ASSIGN_OR_RETURN(Prompt prompt, make_prompt(model, input, options));
    TENON_ASSIGN_OR_RETURN(SamplingParams sampling, fit_to_context(model, request.params.sampling,
                                                                   prompt.ids.size(), "prompt"));
    plan.sampling.push_back(std::move(sampling));
    plan.prompts.push_back(std::make_shared<const Prompt>(std::move(prompt)));
  }
  AnswerOptions answer;
  answer.id = random_id("cmpl-");
  answer.object = answer.chunk_object = "text_completion";
  auto format = std::make_unique<CompletionFormat>(context.services.model, request);
  return start_generation(context, std::move(plan), std::move(answer), std::move(format),
                          std::move(exchange));
}

}  // namespace tenon
