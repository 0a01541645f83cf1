// Text normalisation before pre-tokenisation: Unicode normal forms, replacement, prefix.
// Ownership: value. Thread safety: immutable.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "base/status.h"
#include "text/regex.h"

namespace tenon {

// Text whose bytes may be marked one by one; `marks` is empty (nothing is tracked) or as long as
// `text`. A byte that a step makes out of marked bytes is marked.
struct MarkedText {
  std::string text;
  std::string marks;
};

struct UnicodeForm {
  bool compose = false;        // NFC, NFKC
  bool compatibility = false;  // NFKC, NFKD
};
struct PrependText {
  std::string text;  // put in front of every text that is not empty
};
struct ReplaceMatches {
  std::shared_ptr<const Regex> pattern;
  std::string content;
};

class Normalizer {
 public:
  using Step = std::variant<UnicodeForm, PrependText, ReplaceMatches>;

  void add(Step step) { steps_.push_back(std::move(step)); }
  [[nodiscard]] bool empty() const { return steps_.empty(); }
  // Requires: valid UTF-8.
  Status apply(MarkedText& text, Regex::Matcher& matcher) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace tenon
