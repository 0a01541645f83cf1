// Added tokens: texts that become one id before anything else looks at them.
//
// Matching is Hugging Face's: leftmost, longest at a place; first the tokens that are looked for in
// the text as it is, then, in what is left and normalised, the others. Ownership: value. Thread
// safety: immutable after filling.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "text/flat_map.h"
#include "text/tokenizer.h"

namespace tenon {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool single_word = false;  // not inside a word
  bool lstrip = false;       // takes the white space in front of it
  bool rstrip = false;       // and behind it
  bool normalized = false;   // looked for in the normalised text
  bool special = false;      // control token
};

// A set of added tokens that are looked for together.
class AddedTokenMatcher {
 public:
  struct Match {
    TextRange range;  // with the white space that the token takes
    int32_t id = -1;
  };
  // Whether a token may stand at [begin, end) of the text.
  using Allowed = std::function<bool(size_t begin, size_t end)>;

  // `text`: what to look for (the content, normalised where that applies). Not empty; a text that
  // comes twice keeps its first token.
  void add(AddedToken token, std::string_view text);
  [[nodiscard]] bool empty() const { return tokens_.empty(); }
  // All matches in order. Time is linear in the text times the longest token.
  void find_all(std::string_view text, const Allowed& allowed, std::vector<Match>& matches) const;

 private:
  std::vector<AddedToken> tokens_;
  FlatMap children_;                      // (node, byte) -> node
  std::vector<int32_t> token_at_ = {-1};  // by node: index in tokens_, or -1
  std::array<bool, 256> begins_{};
};

}  // namespace tenon
