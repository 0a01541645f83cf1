#include "text/jinja/text_operations.h"

#include <algorithm>
#include <string>

#include "text/jinja/unicode.h"

namespace tenon::jinja {
namespace {

bool is_cased(int32_t c) {
  return is_upper(c) || is_lower(c) || is_title(c);
}

constexpr int32_t kCapitalSigma = 0x3A3;
constexpr int32_t kFinalSigma = 0x3C2;

// A capital sigma at the end of a word has a lower case of its own.
// `word` is where the text begins that Python looks at.
bool is_final_sigma(std::string_view text, size_t word, size_t begin, size_t end) {
  const bool letter_before =
      begin > word && is_cased(decode_code_point(text, previous_code_point(text, begin)).value);
  return letter_before && (end >= text.size() || !is_cased(decode_code_point(text, end).value));
}

bool starts_word_of_title_filter(int32_t before) {
  return is_space(before) || before == '-' || before == '(' || before == '{' || before == '[' ||
         before == '<';
}

enum class Change { kNone, kUpper, kLower, kTitle };

Change change_for(CaseMapping mapping, int32_t c, int32_t before, bool first) {
  switch (mapping) {
    case CaseMapping::kUpper: return Change::kUpper;
    case CaseMapping::kLower: return Change::kLower;
    case CaseMapping::kSwap:
      return is_upper(c) ? Change::kLower : is_lower(c) ? Change::kUpper : Change::kNone;
    case CaseMapping::kCapitalize: return first ? Change::kTitle : Change::kLower;
    case CaseMapping::kTitle: return !first && is_cased(before) ? Change::kLower : Change::kTitle;
    case CaseMapping::kTitleFilter:
      return first || starts_word_of_title_filter(before) ? Change::kUpper : Change::kLower;
  }
  return Change::kNone;
}

std::vector<int32_t> code_points(std::string_view text) {
  std::vector<int32_t> values;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = decode_code_point(text, at);
    values.push_back(c.value);
    at += c.size;
  }
  return values;
}

class StripSet {
 public:
  explicit StripSet(const MarkedText* characters) : spaces_(characters == nullptr) {
    if (characters != nullptr) values_ = code_points(characters->view());
    std::sort(values_.begin(), values_.end());
  }
  [[nodiscard]] bool has(int32_t c) const {
    return spaces_ ? is_space(c) : std::binary_search(values_.begin(), values_.end(), c);
  }

 private:
  bool spaces_;
  std::vector<int32_t> values_;
};

size_t skip_spaces(std::string_view text, size_t at) {
  while (at < text.size()) {
    const CodePoint c = decode_code_point(text, at);
    if (!is_space(c.value)) break;
    at += c.size;
  }
  return at;
}

size_t skip_non_spaces(std::string_view text, size_t at) {
  while (at < text.size()) {
    const CodePoint c = decode_code_point(text, at);
    if (is_space(c.value)) break;
    at += c.size;
  }
  return at;
}

size_t skip_back(std::string_view text, size_t at, bool over_spaces) {
  while (at > 0) {
    const size_t before = previous_code_point(text, at);
    if (is_space(decode_code_point(text, before).value) != over_spaces) break;
    at = before;
  }
  return at;
}

Result<MarkedText> insert_between(Budget& budget,
                                  const MarkedText& text,
                                  const MarkedText& inserted,
                                  int64_t count) {
  const size_t places = text.length() + 1;
  const size_t used = count < 0 ? places : std::min(places, static_cast<size_t>(count));
  TENON_RETURN_IF_ERROR(budget.reserve_text(
      inserted.size() > kMaxTextBytes / used ? kMaxTextBytes + 1 : inserted.size() * used));
  MarkedText result;
  size_t at = 0;
  for (size_t i = 0; i < used; ++i) {
    result.append(inserted);
    if (at >= text.size()) break;
    const size_t size = decode_code_point(text.view(), at).size;
    result.append(text, at, at + size);
    at += size;
  }
  result.append(text, at, text.size());
  return result;
}

}  // namespace

MarkedText strip(const MarkedText& text, const MarkedText* characters, Side side) {
  const StripSet set(characters);
  const std::string_view view = text.view();
  size_t begin = 0;
  size_t end = view.size();
  while (side != Side::kRight && begin < end) {
    const CodePoint c = decode_code_point(view, begin);
    if (!set.has(c.value)) break;
    begin += c.size;
  }
  while (side != Side::kLeft && end > begin) {
    const size_t before = previous_code_point(view, end);
    if (!set.has(decode_code_point(view, before).value)) break;
    end = before;
  }
  return text.slice(begin, end);
}

MarkedText map_case(const MarkedText& text, CaseMapping mapping) {
  MarkedText result;
  result.reserve(text.size());
  MarkCursor marks(text);
  std::string piece;
  int32_t before = 0;
  size_t word = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = decode_code_point(text.view(), at);
    const Change change =
        c.value < 0 ? Change::kNone : change_for(mapping, c.value, before, at == 0);
    if (mapping == CaseMapping::kTitleFilter && change == Change::kUpper) word = at + c.size;
    piece.clear();
    switch (change) {
      case Change::kNone: piece = text.view().substr(at, c.size); break;
      case Change::kUpper: append_upper(piece, c.value); break;
      case Change::kTitle: append_title(piece, c.value); break;
      case Change::kLower:
        if (c.value == kCapitalSigma && is_final_sigma(text.view(), word, at, at + c.size)) {
          append_code_point(piece, kFinalSigma);
        } else {
          append_lower(piece, c.value);
        }
        break;
    }
    result.append(piece, marks.at(at));
    before = c.value;
    at += c.size;
  }
  return result;
}

std::vector<size_t> find_all(std::string_view text, std::string_view needle) {
  std::vector<size_t> positions;
  for (size_t at = text.find(needle); at != std::string_view::npos;
       at = text.find(needle, at + needle.size())) {
    positions.push_back(at);
  }
  return positions;
}

Result<MarkedText> replace(Budget& budget,
                           const MarkedText& text,
                           const MarkedText& from,
                           const MarkedText& to,
                           int64_t count) {
  TENON_RETURN_IF_ERROR(budget.charge_bytes(text.size()));
  if (from.empty()) return insert_between(budget, text, to, count);
  std::vector<size_t> positions = find_all(text.view(), from.view());
  if (count >= 0 && positions.size() > static_cast<size_t>(count))
    positions.resize(static_cast<size_t>(count));
  if (positions.empty()) return text;
  const size_t kept = text.size() - positions.size() * from.size();
  TENON_RETURN_IF_ERROR(budget.reserve_text(to.size() > kMaxTextBytes / positions.size()
                                                ? kMaxTextBytes + 1
                                                : kept + positions.size() * to.size()));
  MarkedText result;
  size_t copied = 0;
  for (const size_t position : positions) {
    result.append(text, copied, position);
    result.append(to);
    copied = position + from.size();
  }
  result.append(text, copied, text.size());
  return result;
}

std::vector<MarkedText> split(const MarkedText& text, std::string_view separator, int64_t limit) {
  std::vector<MarkedText> parts;
  size_t begin = 0;
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    const size_t end = text.view().find(separator, begin);
    if (end == std::string_view::npos) break;
    parts.push_back(text.slice(begin, end));
    begin = end + separator.size();
  }
  parts.push_back(text.slice(begin, text.size()));
  return parts;
}

std::vector<MarkedText> split_from_right(const MarkedText& text,
                                         std::string_view separator,
                                         int64_t limit) {
  std::vector<MarkedText> parts;
  size_t end = text.size();
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    if (end < separator.size()) break;
    const size_t begin = text.view().rfind(separator, end - separator.size());
    if (begin == std::string_view::npos) break;
    parts.push_back(text.slice(begin + separator.size(), end));
    end = begin;
  }
  parts.push_back(text.slice(0, end));
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<MarkedText> split_words(const MarkedText& text, int64_t limit) {
  std::vector<MarkedText> parts;
  size_t at = skip_spaces(text.view(), 0);
  while (at < text.size()) {
    if (limit >= 0 && static_cast<int64_t>(parts.size()) == limit) {
      parts.push_back(text.slice(at, text.size()));
      break;
    }
    const size_t end = skip_non_spaces(text.view(), at);
    parts.push_back(text.slice(at, end));
    at = skip_spaces(text.view(), end);
  }
  return parts;
}

std::vector<MarkedText> split_words_from_right(const MarkedText& text, int64_t limit) {
  std::vector<MarkedText> parts;
  size_t end = skip_back(text.view(), text.size(), true);
  while (end > 0) {
    if (limit >= 0 && static_cast<int64_t>(parts.size()) == limit) {
      parts.push_back(text.slice(0, end));
      break;
    }
    const size_t begin = skip_back(text.view(), end, false);
    parts.push_back(text.slice(begin, end));
    end = skip_back(text.view(), begin, true);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<MarkedText> split_lines(const MarkedText& text, bool keep_ends) {
  std::vector<MarkedText> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = decode_code_point(text.view(), at);
    size_t end = at + c.size;
    if (is_line_break(c.value)) {
      if (c.value == '\r' && end < text.size() && text.view()[end] == '\n') ++end;
      lines.push_back(text.slice(begin, keep_ends ? end : at));
      begin = end;
    }
    at = end;
  }
  if (begin < text.size()) lines.push_back(text.slice(begin, text.size()));
  return lines;
}

Result<MarkedText> pad(
    Budget& budget, const MarkedText& text, int64_t width, const MarkedText& fill, Side side) {
  const auto length = static_cast<int64_t>(text.length());
  if (width <= length) return text;
  if (width > static_cast<int64_t>(kMaxTextBytes)) return budget.reserve_text(kMaxTextBytes + 1);
  const int64_t missing = width - length;
  TENON_RETURN_IF_ERROR(
      budget.reserve_text(static_cast<size_t>(missing) * fill.size() + text.size()));
  int64_t left = 0;
  if (side == Side::kRight) left = missing;
  if (side == Side::kBoth) left = missing / 2 + (missing & width & 1);  // as str.center rounds
  MarkedText result;
  for (int64_t i = 0; i < left; ++i) result.append(fill);
  result.append(text);
  for (int64_t i = left; i < missing; ++i) result.append(fill);
  return result;
}

}  // namespace tenon::jinja
