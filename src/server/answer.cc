#include "server/answer.h"

#include <ctime>
#include <exception>
#include <random>

#include "base/log.h"
#include "server/errors.h"
#include "server/sse.h"

namespace tenon {
namespace {

OrderedJson usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

}  // namespace

OrderedJson finish_reason_json(FinishReason reason) {
  return reason == FinishReason::kNone ? OrderedJson() : OrderedJson(finish_reason_name(reason));
}

OrderedJson stop_reason_json(const StopReason& reason) {
  if (const auto* id = std::get_if<int32_t>(&reason)) return *id;
  if (const auto* text = std::get_if<std::string>(&reason)) return *text;
  return {};
}

std::string random_id(const std::string& prefix) {
  thread_local std::mt19937_64 generator{std::random_device{}()};
  const uint64_t high = generator();
  return fmt::format("{}{:016x}{:016x}", prefix, high, generator());
}

Answer::Answer(AnswerOptions options,
               std::shared_ptr<HttpExchange> exchange,
               std::unique_ptr<ChoiceFormat> format,
               std::shared_ptr<WorkerPool> workers)
    : options_(std::move(options)),
      created_(static_cast<int64_t>(std::time(nullptr))),
      exchange_(std::move(exchange)),
      format_(std::move(format)),
      workers_(std::move(workers)) {}

OrderedJson Answer::envelope(const std::string& object) const {
  return {
      {"id", options_.id}, {"object", object}, {"created", created_}, {"model", options_.model}};
}

void Answer::open() {
  if (options_.stream.enabled) exchange_->begin_stream(sse_head(), std::string(kSsePing));
}

void Answer::update(ChoiceUpdate&& update, const Usage& usage) {
  std::string events;
  bool first = update.first;
  for (OrderedJson& choice : format_->stream(update)) {
    OrderedJson event = envelope(options_.chunk_object);
    event["choices"] = OrderedJson::array({std::move(choice)});
    if (std::exchange(first, false)) format_->add_fields(update, event);
    if (options_.stream.continuous_usage) {
      event["usage"] = usage_json(usage);
    } else if (options_.stream.include_usage) {
      event["usage"] = nullptr;
    }
    events += sse_event(event);
  }
  if (!events.empty()) exchange_->write(events);
}

void Answer::finished(std::vector<ChoiceUpdate>&& choices, const Usage& usage) {
  if (!options_.stream.enabled) {
    auto task = [self = shared_from_this(),
                 list = std::make_shared<std::vector<ChoiceUpdate>>(std::move(choices)),
                 usage] { self->respond_or_fail(*list, usage); };
    if (!workers_->submit(task)) task();
    return;
  }
  std::string events;
  if (options_.stream.include_usage) {
    OrderedJson event = envelope(options_.chunk_object);
    event["choices"] = OrderedJson::array();
    event["usage"] = usage_json(usage);
    events = sse_event(event);
  }
  events += kSseDone;
  exchange_->write(events);
  exchange_->end_stream();
}

void Answer::respond_or_fail(std::vector<ChoiceUpdate>& choices, const Usage& usage) {
  try {
    respond(choices, usage);
  } catch (const std::exception& e) {
    log_error("{}: {}", options_.id, e.what());
    exchange_->respond(error_response(500, "internal error"));
  }
}

void Answer::respond(std::vector<ChoiceUpdate>& choices, const Usage& usage) {
  OrderedJson answer = envelope(options_.object);
  OrderedJson list = OrderedJson::array();
  for (ChoiceUpdate& choice : choices) list.push_back(format_->whole(choice));
  answer["choices"] = std::move(list);
  format_->add_fields(choices.front(), answer);
  answer["usage"] = usage_json(usage);
  exchange_->respond(json_response(200, answer));
}

void Answer::failed(const Status& error) {
  log_warning("{}: {}", options_.id, error.message());
  if (!options_.stream.enabled) return exchange_->respond(error_response(error));
  exchange_->write(sse_event(error_json(error)) + std::string(kSseDone));
  exchange_->end_stream();
}

}  // namespace tenon
