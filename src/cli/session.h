// A loaded model for the commands that talk to it from the terminal: engine, tokenizer, chat
// template. One thread at a time.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "tenon/engine.h"
#include "text/chat_template.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace tenon::cli {

struct Session {
  std::unique_ptr<Engine> engine;
  TextAssets text;
  // An error says why there is none; it matters only when a chat is wanted.
  Result<std::shared_ptr<const ChatTemplate>> chat_template = std::shared_ptr<const ChatTemplate>();

  // Loads the model with a progress bar on stderr when that is a terminal.
  static Result<Session> load(const EngineConfig& config);

  // messages -> prompt ids, by the chat template.
  Result<std::vector<int32_t>> encode_chat(const nlohmann::ordered_json& messages) const;
};

struct Generation {
  std::string text;
  FinishReason finish_reason = FinishReason::kNone;
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  double ttft_seconds = 0;    // submission to first token
  double decode_seconds = 0;  // first token to last token
};

// Runs one request to its end; on_text gets each piece of text. A true `*cancel` aborts the
// request.
Result<Generation> generate(const Session& session,
                            GenerationRequest request,
                            const DetokenizerOptions& options,
                            const std::function<void(const std::string&)>& on_text,
                            const std::atomic<bool>* cancel);

// "12 tokens in, 0 cached, 34 out | TTFT 20 ms | in 600 tok/s | out 250 tok/s"
std::string describe(const Generation& generation);

// The model used when --model is not given: what `make demo` fetched. Empty if it is not there.
std::string default_model_path();

// Progress line on stderr (a bar on a terminal, nothing elsewhere).
LoadProgress terminal_progress();

}  // namespace tenon::cli
