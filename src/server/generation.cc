#include "server/generation.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/log.h"

namespace tenon {
namespace {

DetokenizerOptions detokenizer_options(const GenerationParams& params) {
  DetokenizerOptions options;
  options.skip_special = params.skip_special_tokens;
  options.stop = params.stop;
  options.include_stop_string = params.include_stop_string;
  options.min_tokens = params.sampling.min_tokens;
  options.continues_text = true;
  return options;
}

}  // namespace

void GenerationRegistry::add(const std::shared_ptr<Generation>& generation) {
  std::lock_guard lock(mutex_);
  live_.insert(generation.get());
}

void GenerationRegistry::remove(Generation* generation) {
  std::lock_guard lock(mutex_);
  live_.erase(generation);
}

size_t GenerationRegistry::size() const {
  std::lock_guard lock(mutex_);
  return live_.size();
}

void GenerationRegistry::cancel_all(const Status& reason) {
  std::vector<std::shared_ptr<Generation>> alive;  // released after the lock: ~Generation takes it
  {
    std::lock_guard lock(mutex_);
    for (Generation* generation : live_) {
      if (auto shared = generation->weak_from_this().lock()) alive.push_back(std::move(shared));
    }
  }
  for (const auto& generation : alive) generation->cancel(reason);
}

Generation::Generation(GenerationServices services,
                       GenerationPlan plan,
                       std::shared_ptr<HttpExchange> exchange,
                       std::shared_ptr<ChoiceSink> sink)
    : services_(std::move(services)),
      plan_(std::move(plan)),
      exchange_(std::move(exchange)),
      sink_(std::move(sink)),
      streaming_(plan_.params.stream.enabled),
      drains_early_(streaming_ || !plan_.params.stop.empty()) {
  const size_t count = plan_.prompts.size() * static_cast<size_t>(plan_.params.n);
  choices_.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    Choice& choice = choices_.emplace_back(
        Detokenizer(services_.model->tokenizer, detokenizer_options(plan_.params)));
    choice.update.index = static_cast<int32_t>(i);
    choice.update.prompt = plan_.prompts[i / static_cast<size_t>(plan_.params.n)];
  }
}

Generation::~Generation() {
  services_.registry->remove(this);
}

Status Generation::start(const std::function<void()>& accepted) {
  services_.registry->add(shared_from_this());
  exchange_->on_disconnect([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->abort();
  });
  try {
    for (size_t i = 0; i < choices_.size(); ++i) {
      if (const Status status = submit(i); !status.ok()) {
        abort();
        return status;
      }
    }
    accepted();
  } catch (...) {
    abort();
    throw;
  }
  std::lock_guard lock(mutex_);
  started_ = true;
  if (!inbox_.empty() && (drains_early_ || ended_ == choices_.size())) schedule_drain();
  return ok_status();
}

Status Generation::submit(size_t index) {
  const auto n = static_cast<size_t>(plan_.params.n);
  GenerationRequest request;
  request.prompt = plan_.prompts[index / n]->ids;
  request.sampling = plan_.sampling[index / n];
  if (request.sampling.seed) {
    request.sampling.seed =
        static_cast<int64_t>(static_cast<uint64_t>(*request.sampling.seed) + index % n);
  }
  request.priority = plan_.params.priority;
  request.cache_salt = plan_.params.cache_salt;
  const auto id = services_.model->engine->submit(
      std::move(request), [self = shared_from_this(), index](RequestOutput&& output) {
        self->receive(index, std::move(output));
      });
  if (!id.ok()) return id.status();
  bool aborted = false;
  {
    std::lock_guard lock(mutex_);
    choices_[index].request = *id;
    aborted = aborted_;
  }
  if (!aborted) return ok_status();
  services_.model->engine->abort(*id);
  return {StatusCode::kAborted, "the client has closed the connection"};
}

void Generation::abort() {
  std::vector<RequestId> ids;
  {
    std::lock_guard lock(mutex_);
    aborted_ = true;
    inbox_.clear();
    for (const Choice& choice : choices_) {
      if (choice.request) ids.push_back(*choice.request);
    }
  }
  for (const RequestId id : ids) services_.model->engine->abort(id);
}

void Generation::cancel(const Status& reason) {
  exchange_->post([self = shared_from_this(), reason] { self->end(reason); });
  abort();
}

// On the engine thread.
void Generation::receive(size_t index, RequestOutput&& output) {
  std::lock_guard lock(mutex_);
  if (output.finish_reason != FinishReason::kNone) {
    ++ended_;
    services_.counters->count_finish(choices_[index].stopped_by_text ? FinishReason::kStop
                                                                     : output.finish_reason);
  }
  if (aborted_) return;
  inbox_.push_back({index, std::move(output)});
  if (started_ && (drains_early_ || ended_ == choices_.size())) schedule_drain();
}

void Generation::schedule_drain() {
  if (drain_scheduled_) return;
  drain_scheduled_ = true;
  exchange_->post([self = shared_from_this()] { self->drain_or_fail(); });
}

void Generation::drain_or_fail() {
  try {
    drain();
  } catch (const std::exception& e) {
    log_error("generation: {}", e.what());
    over_ = true;
    abort();
    sink_->failed(internal_error("internal error"));
  }
}

void Generation::drain() {
  std::vector<Arrival> arrivals;
  {
    std::lock_guard lock(mutex_);
    drain_scheduled_ = false;
    arrivals.swap(inbox_);
  }
  for (Arrival& arrival : arrivals) {
    if (over_) return;
    consume(choices_[arrival.choice], arrival.output);
  }
  if (over_) return;
  if (streaming_) {
    for (Choice& choice : choices_) show(choice);
  }
  const bool all_finished = std::all_of(choices_.begin(), choices_.end(), [](const Choice& choice) {
    return choice.update.finish_reason != FinishReason::kNone;
  });
  if (!all_finished) return;
  over_ = true;
  count_tokens();
  std::vector<ChoiceUpdate> whole;
  for (Choice& choice : choices_) whole.push_back(std::move(choice.update));
  sink_->finished(std::move(whole), usage());
}

void Generation::show(Choice& choice) {
  const ChoiceUpdate& update = choice.update;
  const bool last = update.finish_reason != FinishReason::kNone;
  const bool news =
      !update.tokens.empty() || !update.text.empty() || !update.prompt_logprobs.empty();
  if (choice.shown || !(news || last)) return;
  choice.shown = last;
  ChoiceUpdate next;
  next.index = update.index;
  next.prompt = update.prompt;
  next.first = false;
  next.finish_reason = update.finish_reason;
  sink_->update(std::exchange(choice.update, std::move(next)), usage_of(choice));
}

void Generation::consume(Choice& choice, RequestOutput& output) {
  ChoiceUpdate& update = choice.update;
  if (update.finish_reason != FinishReason::kNone) return;  // tokens computed past a stop string
  if (output.finish_reason == FinishReason::kError) {
    return end(output.error.ok() ? internal_error("the engine failed") : output.error);
  }
  if (output.finish_reason == FinishReason::kAbort) {
    return end(make_status(StatusCode::kUnavailable, "the server is shutting down"));
  }
  choice.cached_tokens = std::max<int64_t>(choice.cached_tokens, output.num_cached_tokens);
  if (!output.prompt_logprobs.empty()) update.prompt_logprobs = std::move(output.prompt_logprobs);
  for (size_t i = 0; i < output.tokens.size(); ++i) {
    const int32_t token = output.tokens[i];
    ++choice.tokens;
    update.tokens.push_back(token);
    if (i < output.logprobs.size()) update.logprobs.push_back(std::move(output.logprobs[i]));
    const bool ends_request = output.stop_token && i + 1 == output.tokens.size();
    if (ends_request && !(plan_.params.include_stop_string && !output.stopped_by_eos))
      break;  // not part of the text
    Detokenizer::Delta delta = choice.detokenizer.push(token);
    update.text += delta.text;
    if (!delta.stopped_by) continue;
    finish(choice, FinishReason::kStop, std::move(*delta.stopped_by));
    if (output.finish_reason == FinishReason::kNone) {
      RequestId id = 0;
      {
        std::lock_guard lock(mutex_);
        choice.stopped_by_text = true;
        id = *choice.request;
      }
      services_.model->engine->abort(id);
    }
    return;
  }
  if (output.finish_reason == FinishReason::kNone) return;
  update.text += choice.detokenizer.finish().text;
  const bool names_token = output.stop_token && !output.stopped_by_eos;
  finish(choice, output.finish_reason, names_token ? StopReason(*output.stop_token) : StopReason());
}

void Generation::finish(Choice& choice, FinishReason reason, StopReason stop_reason) {
  choice.update.finish_reason = reason;
  choice.update.stop_reason = std::move(stop_reason);
}

void Generation::end(const Status& error) {
  if (std::exchange(over_, true)) return;
  abort();
  sink_->failed(error);
}

void Generation::count_tokens() const {
  const auto n = static_cast<size_t>(plan_.params.n);
  int64_t longest = 0;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Usage usage = usage_of(choices_[i]);
    services_.counters->count_prefill(usage.prompt_tokens - usage.cached_tokens);
    longest = std::max(i % n == 0 ? 0 : longest, usage.completion_tokens);
    if (i % n == n - 1) services_.counters->count_output(longest);
  }
}

Usage Generation::usage_of(const Choice& choice) {
  return {.prompt_tokens = static_cast<int64_t>(choice.update.prompt->ids.size()),
          .completion_tokens = choice.tokens,
          .cached_tokens = choice.cached_tokens};
}

Usage Generation::usage() const {
  Usage usage;
  const auto n = static_cast<size_t>(plan_.params.n);
  for (size_t i = 0; i < choices_.size(); ++i) {
    usage.completion_tokens += choices_[i].tokens;
    if (i % n != 0) continue;
    usage.prompt_tokens += static_cast<int64_t>(plan_.prompts[i / n]->ids.size());
    usage.cached_tokens += choices_[i].cached_tokens;
  }
  return usage;
}

}  // namespace tenon
