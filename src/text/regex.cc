#include "text/regex.h"

#include <cstdint>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "text/utf8.h"

namespace tenon {
namespace {

// Bounds on one match. The patterns in use need a few steps a character and almost no backtracking
// memory.
constexpr uint32_t kMatchLimit = 50'000'000;
constexpr uint32_t kHeapLimitKib = 64 * 1024;
constexpr size_t kJitStackStart = 32 * 1024;
constexpr size_t kJitStackMax = 8 * 1024 * 1024;

std::string error_text(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

}  // namespace

struct Regex::Code {
  pcre2_code* compiled = nullptr;
  ~Code() { pcre2_code_free(compiled); }
};

struct Regex::Matcher::State {
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  ~State() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

Regex::Matcher::Matcher() : state_(std::make_unique<State>()) {
  state_->data = pcre2_match_data_create(1, nullptr);
  state_->context = pcre2_match_context_create(nullptr);
  pcre2_set_match_limit(state_->context, kMatchLimit);
  pcre2_set_heap_limit(state_->context, kHeapLimitKib);
  state_->stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr);
  if (state_->stack != nullptr) pcre2_jit_stack_assign(state_->context, nullptr, state_->stack);
}

Regex::Matcher::~Matcher() = default;

Result<std::shared_ptr<const Regex>> Regex::build(std::string_view source,
                                                  const std::string& pattern,
                                                  uint32_t flags) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_shared<Code>();
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  code->compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                 flags, &error, &offset, context);
  pcre2_compile_context_free(context);
  if (code->compiled == nullptr) {
    return unsupported("regular expression '{}': {}", source, error_text(error));
  }
  // Without JIT (a kernel that forbids executable pages) the interpreter gives the same matches,
  // slower.
  pcre2_jit_compile(code->compiled, PCRE2_JIT_COMPLETE);
  auto regex = std::shared_ptr<Regex>(new Regex());
  regex->code_ = std::move(code);
  regex->source_ = source;
  return std::shared_ptr<const Regex>(std::move(regex));
}

Result<std::shared_ptr<const Regex>> Regex::compile(std::string_view pattern) {
  TENON_ASSIGN_OR_RETURN(const std::string translated, translate_regex(pattern));
  return build(pattern, translated,
               PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
}

Result<std::shared_ptr<const Regex>> Regex::literal(std::string_view text) {
  if (text.empty() || !is_valid_utf8(text))
    return unsupported("an empty or invalid literal pattern");
  return build(text, std::string(text), PCRE2_UTF | PCRE2_LITERAL);
}

Status Regex::find_all(std::string_view subject,
                       Matcher& matcher,
                       std::vector<TextRange>& matches) const {
  matches.clear();
  const auto* text = reinterpret_cast<PCRE2_SPTR>(subject.data());
  Matcher::State& state = *matcher.state_;
  size_t position = 0;
  while (position <= subject.size() && !subject.empty()) {
    const int count = pcre2_match(code_->compiled, text, subject.size(), position,
                                  PCRE2_NO_UTF_CHECK, state.data, state.context);
    if (count == PCRE2_ERROR_NOMATCH) break;
    if (count < 0) {
      return invalid_argument("the tokenizer's regular expression '{}' gave up on this text: {}",
                              source_, error_text(count));
    }
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(state.data);
    const TextRange match{ends[0], ends[1]};
    // An empty match directly behind the one before does not count.
    if (match.end > match.begin || matches.empty() || matches.back().end != match.begin)
      matches.push_back(match);
    position = match.end;
    if (match.end == match.begin) {
      if (position >= subject.size()) break;
      position += decode_utf8(subject, position).length;
    }
  }
  return ok_status();
}

}  // namespace tenon
