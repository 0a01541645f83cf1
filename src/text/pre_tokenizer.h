// Pre-tokenisation: cuts a text into the words that BPE works on.
// Ownership: value. Thread safety: immutable.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "text/regex.h"

namespace tenon {

// A text on its way through the steps: pieces are ranges of `text`, which is the caller's or
// `storage`. Not movable: `text` may point into `storage`.
struct WordCuts {
  WordCuts() = default;
  WordCuts(const WordCuts&) = delete;
  WordCuts& operator=(const WordCuts&) = delete;

  std::string_view text;
  std::vector<TextRange> pieces;
  bool begins_input = false;  // offset 0 of `text` is the beginning of everything that is encoded
  std::string storage;
};

enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct SplitStep {
  std::shared_ptr<const Regex> pattern;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;
};
enum class PrefixScheme { kNever, kFirst, kAlways };
// Spaces become `mark`; pieces may get one in front.
struct MetaspaceStep {
  std::string mark;
  PrefixScheme prefix = PrefixScheme::kAlways;
  bool split = true;
};
// A space in front of every piece that does not begin with one.
struct PrefixSpaceStep {};

class PreTokenizer {
 public:
  using Step = std::variant<SplitStep, MetaspaceStep, PrefixSpaceStep>;

  void add(Step step) { steps_.push_back(std::move(step)); }
  [[nodiscard]] bool empty() const { return steps_.empty(); }
  // Requires: valid UTF-8 in cuts.text, one piece that covers it.
  Status apply(WordCuts& cuts, Regex::Matcher& matcher) const;

 private:
  std::vector<Step> steps_;
};

// GPT-2's word pattern, which ByteLevel pre-tokenizers use.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace tenon
