// Streaming text output of one sequence: token ids in, valid UTF-8 deltas out, stop strings
// honoured. One object per sequence, used from one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/stop_matcher.h"
#include "text/tokenizer.h"

namespace tenon {

// Collects bytes and releases whole characters. Bytes that can never become a character are
// replaced by U+FFFD (one for each maximal subpart) as soon as that is known.
class Utf8Assembler {
 public:
  // Appends the text that is now complete to `out`.
  void push(std::string_view bytes, std::string& out);
  // What is left is incomplete for good: one U+FFFD if anything is pending.
  void finish(std::string& out);
  [[nodiscard]] size_t pending() const { return pending_.size(); }

 private:
  std::string pending_;
};

struct DetokenizerOptions {
  bool skip_special = true;
  std::vector<std::string> stop = {};  // stop strings, each not empty
  bool include_stop_string = false;    // keep the stop string in the text
  int32_t min_tokens = 0;  // stop strings are not looked for in the text of this many first tokens
  // The ids continue a text instead of beginning one, so a leading space belongs to them even where
  // the tokenizer would drop its own (Tokenizer::strips_leading_space).
  bool continues_text = false;
};

class Detokenizer {
 public:
  Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, DetokenizerOptions options);

  struct Delta {
    std::string text;  // valid UTF-8, safe to send: cannot turn out to be part of a stop string
    std::optional<std::string>
        stopped_by;  // the stop string that ended the sequence; feed nothing more
  };
  // After a stop string, push() and finish() give nothing.
  Delta push(int32_t token);
  // Ends the sequence: releases held text and a replacement for a cut character.
  Delta finish();
  // Everything sent so far.
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  Delta release(std::string_view added, bool final);

  std::shared_ptr<const Tokenizer> tokenizer_;
  DetokenizerOptions options_;
  StopMatcher stops_;
  Utf8Assembler assembler_;
  std::string held_;  // complete characters that may still be the head of a stop string
  std::string text_;
  int32_t tokens_ = 0;  // pushed so far
  bool strip_space_;    // the next byte is the first one, and a space there is dropped
  bool ended_ = false;
};

}  // namespace tenon
