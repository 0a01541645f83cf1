// Regular expressions of tokenizer files (Oniguruma syntax, as Hugging Face tokenizers reads them),
// run by PCRE2.
//
// A pattern is translated construct by construct into a PCRE2 pattern of the same meaning; a
// construct whose meaning could differ is refused, so that what compiles splits text exactly as the
// original does. Ownership:     Regex owns the compiled code. Thread safety: a Regex is immutable;
// a Matcher is one thread's.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/tokenizer.h"

namespace tenon {

// The PCRE2 pattern (UTF, UCP, MULTILINE) that means what `pattern` means in Oniguruma's Ruby
// syntax with UTF-8. Errors: kUnsupported naming the construct and its place.
Result<std::string> translate_regex(std::string_view pattern);

class Regex {
 public:
  static Result<std::shared_ptr<const Regex>> compile(std::string_view pattern);
  // Matches exactly `text`.
  static Result<std::shared_ptr<const Regex>> literal(std::string_view text);

  // Scratch of one thread, usable with any Regex; carries the heap stack that JIT code runs on.
  class Matcher {
   public:
    Matcher();
    ~Matcher();
    Matcher(const Matcher&) = delete;
    Matcher& operator=(const Matcher&) = delete;

   private:
    friend class Regex;
    struct State;
    std::unique_ptr<State> state_;
  };

  // Replaces `matches` by all matches in `subject`, in order, not overlapping. Requires: valid
  // UTF-8. Errors: kInvalidArgument when a match needs more than a fixed amount of work or
  // memory.
  Status find_all(std::string_view subject,
                  Matcher& matcher,
                  std::vector<TextRange>& matches) const;

 private:
  struct Code;
  Regex() = default;
  static Result<std::shared_ptr<const Regex>> build(std::string_view source,
                                                    const std::string& pattern,
                                                    uint32_t flags);
  std::shared_ptr<Code> code_;
  std::string source_;
};

}  // namespace tenon
