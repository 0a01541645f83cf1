// One HTTP request's work in the engine: every prompt, n times, from token ids to text.
//
// Purpose:       submits the engine requests, turns their outputs into text, watches for stop
//                strings and hands updates to a ChoiceSink; a client that goes away, or an error,
//                ends all of them at once.
// Ownership:     shared by the engine callbacks and the exchange until the last engine output has
//                come.
// Thread safety: start() once, on any thread; abort() from any thread. The sink is called on the
//                exchange's I/O thread, one call at a time, never after it got finished() or
//                failed().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "server/http_server.h"
#include "server/metrics.h"
#include "server/openai_types.h"
#include "server/served_model.h"
#include "tenon/engine.h"
#include "text/detokenizer.h"

namespace tenon {

using StopReason = std::variant<std::monostate, int32_t, std::string>;  // none or end of text,
                                                                        // token id, stop string

// What one choice gained: since the last update when streaming, altogether otherwise.
struct ChoiceUpdate {
  int32_t index = 0;
  std::shared_ptr<const Prompt> prompt;
  bool first = true;  // nothing of this choice was shown before
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> logprobs;         // one for each token, if asked for
  std::vector<TokenLogprobs> prompt_logprobs;  // with the first update, if asked for
  FinishReason finish_reason = FinishReason::kNone;
  StopReason stop_reason;
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
};

class ChoiceSink {
 public:
  virtual ~ChoiceSink() = default;
  // Streaming only; `usage` is that choice's.
  virtual void update(ChoiceUpdate&& update, const Usage& usage) = 0;
  // All choices are finished; `choices` are complete unless streaming, when update() has had their
  // contents.
  virtual void finished(std::vector<ChoiceUpdate>&& choices, const Usage& usage) = 0;
  virtual void failed(const Status& error) = 0;
};

struct GenerationPlan {
  std::vector<std::shared_ptr<const Prompt>> prompts;
  std::vector<SamplingParams> sampling;  // one for each prompt
  GenerationParams params;
};

class Generation;

// All generations whose engine requests have not ended. Thread safe.
class GenerationRegistry {
 public:
  void add(const std::shared_ptr<Generation>& generation);
  void remove(Generation* generation);
  [[nodiscard]] size_t size() const;
  void cancel_all(const Status& reason);

 private:
  mutable std::mutex mutex_;
  std::unordered_set<Generation*> live_;
};

struct GenerationServices {
  std::shared_ptr<const ServedModel> model;
  std::shared_ptr<GenerationRegistry> registry;
  std::shared_ptr<ServerCounters> counters;
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(GenerationServices services,
             GenerationPlan plan,
             std::shared_ptr<HttpExchange> exchange,
             std::shared_ptr<ChoiceSink> sink);

  ~Generation();
  // Submits everything, then calls accepted() and, after it has returned, the sink. On an error
  // nothing stays in the engine and neither is ever called.
  Status start(const std::function<void()>& accepted);
  // Ends all engine requests. The sink hears no more: nobody waits for the answer.
  void abort();
  // The same, and the sink gets failed(reason).
  void cancel(const Status& reason);

 private:
  struct Choice {
    explicit Choice(Detokenizer text) : detokenizer(std::move(text)) {}
    ChoiceUpdate update;
    Detokenizer detokenizer;
    std::optional<RequestId> request;  // guarded by mutex_
    bool stopped_by_text = false;      // guarded by mutex_
    int64_t cached_tokens = 0;
    int64_t tokens = 0;
    bool shown = false;  // streaming: the last update was sent
  };
  struct Arrival {
    size_t choice;
    RequestOutput output;
  };

  Status submit(size_t index);
  void receive(size_t index, RequestOutput&& output);
  void schedule_drain();  // with mutex_ held
  void drain();
  void drain_or_fail();
  void show(Choice& choice);
  void consume(Choice& choice, RequestOutput& output);
  void finish(Choice& choice, FinishReason reason, StopReason stop_reason);
  void end(const Status& error);
  void count_tokens() const;
  [[nodiscard]] static Usage usage_of(const Choice& choice);
  [[nodiscard]] Usage usage() const;  // of all choices

  const GenerationServices services_;
  const GenerationPlan plan_;
  const std::shared_ptr<HttpExchange> exchange_;
  const std::shared_ptr<ChoiceSink> sink_;
  const bool streaming_;
  const bool drains_early_;      // outputs are looked at as they come, not only at the end
  std::vector<Choice> choices_;  // on the exchange's thread, except for what mutex_ guards
  bool over_ = false;            // the sink has had its last call

  std::mutex mutex_;
  std::vector<Arrival> inbox_;
  size_t ended_ = 0;  // engine requests that sent their last output
  bool started_ = false;
  bool aborted_ = false;
  bool drain_scheduled_ = false;
};

}  // namespace tenon
