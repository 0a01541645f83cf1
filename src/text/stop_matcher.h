// Finds stop strings in a text that arrives piece by piece.
// One object per sequence, used from one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tenon {

class StopMatcher {
 public:
  // Empty strings are ignored.
  explicit StopMatcher(std::vector<std::string> stops);

  struct Hit {
    const std::string* stop;
    size_t end;  // bytes of the fed piece up to the end of the stop string
  };
  // Reads `text` up to the first completed stop string: the one that ends first; of those that end
  // there, the longest. Feed nothing after a hit. The result does not depend on how a text is cut
  // into pieces.
  std::optional<Hit> feed(std::string_view text);
  // Length of the longest suffix of everything fed so far that a stop string may begin with.
  [[nodiscard]] size_t open_length() const;

 private:
  // Knuth-Morris-Pratt automaton.
  struct Stop {
    std::string text;
    std::vector<uint32_t> failure;  // longest proper border of each prefix
    size_t matched = 0;
  };
  std::vector<Stop> stops_;
};

}  // namespace tenon
