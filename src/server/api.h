// The endpoints that work on a model, as functions of a request. They run on worker threads.
// Thread safe.
#pragma once

#include <memory>

#include "server/answer.h"
#include "server/generation.h"
#include "server/http_server.h"
#include "server/server.h"
#include "server/worker_pool.h"

namespace tenon {

struct ApiContext {
  GenerationServices services;
  std::shared_ptr<WorkerPool> workers;
  ServerLimits limits;

  [[nodiscard]] const ServedModel& model() const { return *services.model; }
  [[nodiscard]] RequestLimits request_limits() const;
  [[nodiscard]] Result<OrderedJson> parse_body(const HttpRequest& request) const;
};

// Ok: the answer is under way. An error: nothing was answered yet.
Status handle_completion(const ApiContext& context,
                         const HttpRequest& request,
                         std::shared_ptr<HttpExchange> exchange);
Status handle_chat(const ApiContext& context,
                   const HttpRequest& request,
                   std::shared_ptr<HttpExchange> exchange);

Result<OrderedJson> handle_tokenize(const ApiContext& context, const HttpRequest& request);
Result<OrderedJson> handle_detokenize(const ApiContext& context, const HttpRequest& request);
[[nodiscard]] OrderedJson model_list(const ServedModel& model);

// The common end of completions and chat. `options` lacks only `stream`.
Status start_generation(const ApiContext& context,
                        GenerationPlan plan,
                        AnswerOptions options,
                        std::unique_ptr<ChoiceFormat> format,
                        std::shared_ptr<HttpExchange> exchange);

}  // namespace tenon
