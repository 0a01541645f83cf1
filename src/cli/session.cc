#include "cli/session.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>

#include "base/bounded_queue.h"
#include "base/clock.h"
#include "text/chat_prompt.h"

namespace tenon::cli {

std::string default_model_path() {
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  std::filesystem::path base = xdg != nullptr && *xdg != '\0' ? std::filesystem::path(xdg)
                               : home != nullptr ? std::filesystem::path(home) / ".cache"
                                                 : std::filesystem::path();
  const auto path = base / "tenon" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf";
  std::error_code error;
  return std::filesystem::exists(path, error) ? path.string() : std::string();
}

LoadProgress terminal_progress() {
  if (::isatty(STDERR_FILENO) == 0) return {};
  return [](double done, const std::string& what) {
    constexpr int kWidth = 30;
    const int filled = static_cast<int>(done * kWidth);
    const std::string bar = std::string(static_cast<size_t>(filled), '#') +
                            std::string(static_cast<size_t>(kWidth - filled), '.');
    if (done >= 1.0) {
      std::fprintf(stderr, "\r\033[K");  // the bar has served its purpose
    } else {
      std::fprintf(stderr, "\r[%s] %3d %% %s\033[K", bar.c_str(), static_cast<int>(done * 100),
                   what.c_str());
    }
    std::fflush(stderr);
  };
}

Result<Session> Session::load(const EngineConfig& config) {
  // Text assets load beside the weights: both take tens of milliseconds and neither needs the
  // other.
  auto text = std::async(std::launch::async, [&] { return load_text_assets(config.model); });
  auto engine = Engine::create(config, terminal_progress());
  auto assets = text.get();
  if (!engine.ok()) return engine.status();
  if (!assets.ok()) return assets.status();
  Session session;
  session.engine = std::move(*engine);
  session.text = std::move(*assets);
  session.chat_template = choose_chat_template(session.text);
  return session;
}

Result<std::vector<int32_t>> Session::encode_chat(const nlohmann::ordered_json& messages) const {
  TENON_RETURN_IF_ERROR(chat_template.status());
  const ChatTemplateOptions options = chat_template_options(*text.tokenizer);
  TENON_ASSIGN_OR_RETURN(
      const RenderedPrompt prompt,
      (*chat_template)->render(messages, nullptr, nlohmann::ordered_json::object(), options));
  EncodeOptions encode;
  encode.add_special = false;  // the template prints BOS itself where the model wants one
  encode.untrusted = prompt.untrusted;
  return text.tokenizer->encode(prompt.text, encode);
}

Result<Generation> generate(const Session& session,
                            GenerationRequest request,
                            const DetokenizerOptions& options,
                            const std::function<void(const std::string&)>& on_text,
                            const std::atomic<bool>* cancel) {
  // The queue can hold every update of the request, so the engine thread never finds it full.
  auto updates = std::make_shared<BoundedQueue<RequestOutput>>(
      static_cast<size_t>(request.sampling.max_tokens) + 2);
  Generation result;
  result.prompt_tokens = static_cast<int64_t>(request.prompt.size());
  const double start = now_seconds();
  auto id = session.engine->submit(std::move(request), [updates](RequestOutput&& output) {
    (void)updates->try_push(std::move(output));
  });
  if (!id.ok()) return id.status();

  DetokenizerOptions text_options = options;
  text_options.continues_text = true;  // the answer goes on where the prompt ends
  Detokenizer detokenizer(session.text.tokenizer, text_options);
  const auto emit = [&](const Detokenizer::Delta& delta) {
    if (!delta.text.empty()) on_text(delta.text);
    return delta.stopped_by.has_value();
  };
  double first = 0, last = 0;
  bool aborted = false;
  std::vector<RequestOutput> batch;
  while (result.finish_reason == FinishReason::kNone) {
    if (cancel != nullptr && cancel->load() && !aborted) {
      session.engine->abort(*id);
      aborted = true;
    }
    batch.clear();
    updates->drain(batch, std::chrono::milliseconds(20));
    for (RequestOutput& output : batch) {
      if (!output.error.ok()) return output.error;
      if (!output.tokens.empty()) {
        last = now_seconds();
        if (first == 0) first = last;
      }
      result.cached_tokens = output.num_cached_tokens;
      for (const int32_t token : output.tokens) {
        if (aborted) break;
        ++result.output_tokens;
        const bool ends = output.stop_token == token && output.finish_reason == FinishReason::kStop;
        if (!ends && emit(detokenizer.push(token))) {
          session.engine->abort(*id);
          aborted = true;
          result.finish_reason = FinishReason::kStop;
        }
      }
      if (output.finish_reason != FinishReason::kNone &&
          result.finish_reason == FinishReason::kNone) {
        result.finish_reason = output.finish_reason;
      }
    }
  }
  emit(detokenizer.finish());
  result.text = detokenizer.text();
  result.ttft_seconds = first > 0 ? first - start : 0;
  result.decode_seconds = last - first;
  return result;
}

std::string describe(const Generation& generation) {
  const auto rate = [](double tokens, double seconds) {
    return seconds > 0 ? tokens / seconds : 0.0;
  };
  const double computed = static_cast<double>(generation.prompt_tokens - generation.cached_tokens);
  return fmt::format(
      "{} tokens in ({} cached), {} out | TTFT {:.0f} ms | input {:.0f} tok/s | output {:.1f} "
      "tok/s",
      generation.prompt_tokens, generation.cached_tokens, generation.output_tokens,
      generation.ttft_seconds * 1e3, rate(computed, generation.ttft_seconds),
      rate(static_cast<double>(generation.output_tokens - 1), generation.decode_seconds));
}

}  // namespace tenon::cli
