// tenon run: one prompt, one answer.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/session.h"

namespace tenon::cli {

int run_command(const RunOptions& options) {
  std::string prompt = options.prompt;
  if (::isatty(STDIN_FILENO) == 0) {
    // `cat notes.txt | tenon run -p "Summarise:"` puts the question before the text.
    const std::string piped{std::istreambuf_iterator<char>(std::cin), {}};
    if (!piped.empty()) prompt += prompt.empty() ? piped : "\n" + piped;
  }
  if (prompt.empty())
    return fail(invalid_argument("no prompt: give -p \"...\" or pipe text to stdin"));

  auto session = Session::load(options.engine);
  if (!session.ok()) return fail(session.status());
  Result<std::vector<int32_t>> ids = [&]() -> Result<std::vector<int32_t>> {
    // A base model has no chat template, and a prompt alone needs none.
    const bool base_model = session->chat_template.status().code() == StatusCode::kNotFound;
    if (options.raw || (base_model && options.system.empty())) {
      return session->text.tokenizer->encode(prompt);
    }
    nlohmann::ordered_json messages = nlohmann::ordered_json::array();
    if (!options.system.empty())
      messages.push_back({{"role", "system"}, {"content", options.system}});
    messages.push_back({{"role", "user"}, {"content", prompt}});
    return session->encode_chat(messages);
  }();
  if (!ids.ok()) return fail(ids.status());

  GenerationRequest request;
  request.prompt = std::move(*ids);
  request.sampling = options.sampling;
  const InterruptScope interrupt;
  auto result = generate(
      *session, std::move(request), {},
      [](const std::string& text) {
        std::fwrite(text.data(), 1, text.size(), stdout);
        std::fflush(stdout);
      },
      &interrupt.flag());
  if (!result.ok()) return fail(result.status());
  std::printf("\n");
  if (::isatty(STDERR_FILENO) != 0) std::fprintf(stderr, "\n%s\n", describe(*result).c_str());
  return result->finish_reason == FinishReason::kAbort ? 130 : 0;
}

}  // namespace tenon::cli
