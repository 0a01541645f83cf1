// From a generation's updates to the HTTP answer: one JSON object, or a stream of events.
//
// Ownership:     an Answer is owned by its Generation; the ChoiceFormat by the Answer.
// Thread safety: as ChoiceSink. A whole answer is built on the worker pool, since it may be long.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/generation.h"
#include "server/worker_pool.h"

namespace tenon {

// What differs between /v1/completions and /v1/chat/completions. Used by one thread at a time.
class ChoiceFormat {
 public:
  virtual ~ChoiceFormat() = default;
  // The `choices` entries of a streamed update; each is sent as an event of its own.
  virtual std::vector<OrderedJson> stream(ChoiceUpdate& update) = 0;
  // The `choices` entry of a whole answer.
  virtual OrderedJson whole(ChoiceUpdate& update) = 0;
  // Fields beside `choices` in a whole answer and in a choice's first event.
  virtual void add_fields(const ChoiceUpdate& update, OrderedJson& envelope) {}
};

struct AnswerOptions {
  std::string id;
  std::string object;        // of a whole answer
  std::string chunk_object;  // of an event
  std::string model;
  StreamParams stream;
};

class Answer final : public ChoiceSink, public std::enable_shared_from_this<Answer> {
 public:
  Answer(AnswerOptions options,
         std::shared_ptr<HttpExchange> exchange,
         std::unique_ptr<ChoiceFormat> format,
         std::shared_ptr<WorkerPool> workers);

  // Sends the head of a stream; nothing for a whole answer.
  void open();
  void update(ChoiceUpdate&& update, const Usage& usage) override;
  void finished(std::vector<ChoiceUpdate>&& choices, const Usage& usage) override;
  void failed(const Status& error) override;

 private:
  [[nodiscard]] OrderedJson envelope(const std::string& object) const;
  void respond_or_fail(std::vector<ChoiceUpdate>& choices, const Usage& usage);
  void respond(std::vector<ChoiceUpdate>& choices, const Usage& usage);

  const AnswerOptions options_;
  const int64_t created_;
  const std::shared_ptr<HttpExchange> exchange_;
  const std::unique_ptr<ChoiceFormat> format_;
  const std::shared_ptr<WorkerPool> workers_;
};

[[nodiscard]] OrderedJson finish_reason_json(FinishReason reason);
[[nodiscard]] OrderedJson stop_reason_json(const StopReason& reason);
// "cmpl-" + 32 random hexadecimal digits.
[[nodiscard]] std::string random_id(const std::string& prefix);

}  // namespace tenon
