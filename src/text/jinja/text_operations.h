// Python's str operations on marked texts; every character keeps its mark.
//
// Thread safety: pure functions of their arguments.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "text/jinja/budget.h"
#include "text/jinja/marked_text.h"

namespace tenon::jinja {

enum class Side { kLeft, kRight, kBoth };
// `characters` null: white space.
MarkedText strip(const MarkedText& text, const MarkedText* characters, Side side);

enum class CaseMapping {
  kUpper,
  kLower,
  kSwap,
  kCapitalize,   // the first character
  kTitle,        // str.title: every run of letters
  kTitleFilter,  // Jinja's filter: behind white space, hyphens and opening brackets
};
MarkedText map_case(const MarkedText& text, CaseMapping mapping);

// count < 0: all.
Result<MarkedText> replace(Budget& budget,
                           const MarkedText& text,
                           const MarkedText& from,
                           const MarkedText& to,
                           int64_t count);

// Byte positions of non-overlapping occurrences. Requires: `needle` not empty.
std::vector<size_t> find_all(std::string_view text, std::string_view needle);

// limit < 0: all. Requires: `separator` not empty.
std::vector<MarkedText> split(const MarkedText& text, std::string_view separator, int64_t limit);
std::vector<MarkedText> split_from_right(const MarkedText& text,
                                         std::string_view separator,
                                         int64_t limit);
// At white space.
std::vector<MarkedText> split_words(const MarkedText& text, int64_t limit);
std::vector<MarkedText> split_words_from_right(const MarkedText& text, int64_t limit);
std::vector<MarkedText> split_lines(const MarkedText& text, bool keep_ends);

// Fills up to `width` code points; the text goes to `side`, kBoth centres it.
Result<MarkedText> pad(
    Budget& budget, const MarkedText& text, int64_t width, const MarkedText& fill, Side side);

}  // namespace tenon::jinja
