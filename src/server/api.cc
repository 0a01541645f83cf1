#include "server/api.h"

namespace tenon {

RequestLimits ApiContext::request_limits() const {
  return {.vocab_size = model().engine->model_info().vocab_size, .max_choices = limits.max_choices};
}

Result<OrderedJson> ApiContext::parse_body(const HttpRequest& request) const {
  JsonLimits json_limits;
  json_limits.max_depth = limits.max_json_depth;
  return parse_json(request.body, json_limits);
}

Status start_generation(const ApiContext& context,
                        GenerationPlan plan,
                        AnswerOptions options,
                        std::unique_ptr<ChoiceFormat> format,
                        std::shared_ptr<HttpExchange> exchange) {
  options.stream = plan.params.stream;
  options.model = plan.params.model;
  context.services.counters->count_request(plan.params.n);
  auto answer =
      std::make_shared<Answer>(std::move(options), exchange, std::move(format), context.workers);
  auto generation =
      std::make_shared<Generation>(context.services, std::move(plan), exchange, answer);
  return generation->start([&answer] { answer->open(); });
}

OrderedJson model_list(const ServedModel& model) {
  OrderedJson data = OrderedJson::array();
  for (const std::string& name : model.names) {
    data.push_back({{"id", name},
                    {"object", "model"},
                    {"created", model.created},
                    {"owned_by", "tenon"},
                    {"root", model.root},
                    {"parent", nullptr},
                    {"max_model_len", model.max_model_len()},
                    {"permission", OrderedJson::array()}});
  }
  return {{"object", "list"}, {"data", std::move(data)}};
}

}  // namespace tenon
