// tenon chat: a conversation in the terminal. Ctrl-C stops the answer, not the program.
#include <editline/readline.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/session.h"

namespace tenon::cli {
namespace {

constexpr const char* kHelp =
    "/clear            forget the conversation\n"
    "/system TEXT      set the system message and forget the conversation\n"
    "/temperature X    0 is greedy\n"
    "/max-tokens N     longest answer\n"
    "/stats            what the last answer cost\n"
    "/help, /exit      (or Ctrl-D); Ctrl-C stops an answer\n";

// One line of input; nullopt at the end of input. On a terminal with line editing and history.
std::optional<std::string> read_line(bool terminal, const InterruptScope& interrupt) {
  if (!terminal) {
    std::string line;
    if (!std::getline(std::cin, line)) return std::nullopt;
    return line;
  }
  for (;;) {
    char* line = ::readline("> ");
    if (line == nullptr) {
      if (!interrupt.flag().load()) return std::nullopt;
      interrupt.clear();
      std::printf("\n(/exit or Ctrl-D to leave)\n");
      continue;
    }
    std::string text(line);
    std::free(line);
    if (!text.empty()) ::add_history(text.c_str());
    return text;
  }
}

class Conversation {
 public:
  explicit Conversation(std::string system) : system_(std::move(system)) { clear(); }

  void clear() {
    messages_ = nlohmann::ordered_json::array();
    if (!system_.empty()) add("system", system_);
  }
  void set_system(std::string system) {
    system_ = std::move(system);
    clear();
  }
  void add(const char* role, const std::string& content) {
    messages_.push_back({{"role", role}, {"content", content}});
  }
  void drop_last() { messages_.erase(messages_.size() - 1); }
  // Forgets the oldest exchange, keeping the system message. False when only the newest message is
  // left.
  bool drop_oldest() {
    const size_t first = !messages_.empty() && messages_[0]["role"] == "system" ? 1 : 0;
    if (messages_.size() <= first + 1) return false;
    messages_.erase(first);
    while (messages_.size() > first + 1 && messages_[first]["role"] != "user")
      messages_.erase(first);
    return true;
  }
  [[nodiscard]] const nlohmann::ordered_json& messages() const { return messages_; }

 private:
  std::string system_;
  nlohmann::ordered_json messages_;
};

}  // namespace

int chat_command(const ChatOptions& options) {
  auto session = Session::load(options.engine);
  if (!session.ok()) return fail(session.status());
  if (const Status status = session->chat_template.status(); !status.ok()) return fail(status);
  const bool terminal = ::isatty(STDIN_FILENO) != 0;
  const ModelInfo& info = session->engine->model_info();
  if (terminal) {
    std::printf("%s, %s, attention %s, context %d tokens. /help for commands.\n",
                info.architecture.c_str(), info.isa.c_str(), info.attention_backend.c_str(),
                info.max_model_len);
    ::using_history();
  }
  const InterruptScope interrupt;
  Conversation conversation(options.system);
  SamplingParams sampling = options.sampling;
  std::string stats = "no answer yet";

  while (auto line = read_line(terminal, interrupt)) {
    interrupt.clear();
    if (line->empty()) continue;
    if (line->front() == '/') {
      const size_t space = std::min(line->find(' '), line->size());
      const std::string command = line->substr(0, space);
      const std::string argument = space < line->size() ? line->substr(space + 1) : "";
      if (command == "/exit" || command == "/quit") break;
      if (command == "/clear") {
        conversation.clear();
      } else if (command == "/system") {
        conversation.set_system(argument);
      } else if (command == "/temperature" || command == "/max-tokens") {
        SamplingParams changed = sampling;
        char* end = nullptr;
        const float number = std::strtof(argument.c_str(), &end);
        const bool whole = !argument.empty() && *end == '\0';
        if (command == "/temperature") {
          changed.temperature = number;
        } else {
          changed.max_tokens = number >= 1 && number <= 1e6F ? static_cast<int32_t>(number) : -1;
        }
        const Status status = !whole ? invalid_argument("{} needs a number", command)
                                     : changed.validate(info.vocab_size);
        if (status.ok()) {
          sampling = changed;
        } else {
          std::fprintf(stderr, "%s\n", status.message().c_str());
        }
      } else if (command == "/stats") {
        std::printf("%s\n", stats.c_str());
      } else {
        std::printf("%s", kHelp);
      }
      continue;
    }

    conversation.add("user", *line);
    auto ids = session->encode_chat(conversation.messages());
    // A long conversation loses its oldest exchanges rather than ending in an error.
    bool trimmed = false;
    while (ids.ok() &&
           static_cast<int32_t>(ids->size()) + std::min(sampling.max_tokens, 64) >=
               info.max_model_len &&
           conversation.drop_oldest()) {
      trimmed = true;
      ids = session->encode_chat(conversation.messages());
    }
    if (trimmed) std::fprintf(stderr, "(the oldest messages no longer fit and were forgotten)\n");
    Result<Generation> answer = [&]() -> Result<Generation> {
      if (!ids.ok()) return ids.status();
      GenerationRequest request;
      request.prompt = std::move(*ids);
      request.sampling = sampling;
      request.sampling.max_tokens =
          std::max(1, std::min(sampling.max_tokens,
                               info.max_model_len - static_cast<int32_t>(request.prompt.size())));
      return generate(
          *session, std::move(request), {},
          [](const std::string& text) {
            std::fwrite(text.data(), 1, text.size(), stdout);
            std::fflush(stdout);
          },
          &interrupt.flag());
    }();
    if (!answer.ok()) {
      std::fprintf(stderr, "error: %s\n", answer.status().message().c_str());
      conversation.drop_last();
      continue;
    }
    const bool stopped = answer->finish_reason == FinishReason::kAbort;
    std::printf("%s\n", stopped ? " [stopped]" : "");
    interrupt.clear();
    conversation.add("assistant", answer->text);
    stats = describe(*answer);
    if (terminal) std::printf("\033[2m%s\033[0m\n", stats.c_str());
  }
  if (terminal) std::printf("\n");
  return 0;
}

}  // namespace tenon::cli
