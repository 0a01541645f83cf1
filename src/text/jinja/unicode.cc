#include "text/jinja/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <span>

#include "text/jinja/case_exceptions.h"
#include "text/utf8.h"

namespace tenon::jinja {
namespace {

bool is_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U;
}

utf8proc_category_t category(int32_t c) {
  return c < 0 ? UTF8PROC_CATEGORY_CS : utf8proc_category(c);
}

const CaseException* find_case_exception(int32_t c) {
  const auto* found = std::lower_bound(
      std::begin(kCaseExceptions), std::end(kCaseExceptions), c,
      [](const CaseException& entry, int32_t value) { return entry.from < value; });
  return found != std::end(kCaseExceptions) && found->from == c ? found : nullptr;
}

void append_all(std::string& out, std::span<const int32_t> values) {
  for (const int32_t value : values) {
    if (value == 0) break;
    append_code_point(out, value);
  }
}

}  // namespace

CodePoint decode_code_point(std::string_view text, size_t position) {
  const Utf8Char c = decode_utf8(text, position);
  return {c.valid ? static_cast<int32_t>(c.code) : -1, c.valid ? c.length : 1U};
}

size_t previous_code_point(std::string_view text, size_t position) {
  return position - decode_utf8_before(text, position).length;
}

size_t count_code_points(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !is_continuation(c); }));
}

size_t code_point_offset(std::string_view text, size_t index) {
  size_t position = 0;
  for (; index > 0 && position < text.size(); --index) {
    ++position;
    while (position < text.size() && is_continuation(text[position])) ++position;
  }
  return position;
}

void append_code_point(std::string& out, int32_t value) {
  append_utf8(static_cast<char32_t>(value), out);
}

bool is_space(int32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool is_line_break(int32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool is_alphabetic(int32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return true;
    default: return false;
  }
}

bool is_numeric(int32_t c) {
  const auto kind = category(c);
  return kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_NL ||
         kind == UTF8PROC_CATEGORY_NO;
}

bool is_decimal_digit(int32_t c) {
  return category(c) == UTF8PROC_CATEGORY_ND;
}

bool is_word(int32_t c) {
  return c == '_' || is_alphabetic(c) || is_numeric(c);
}

bool is_upper(int32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LU;
}

bool is_lower(int32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LL || c == 0xAA || c == 0xBA;
}

bool is_title(int32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LT;
}

bool is_printable(int32_t c) {
  if (c == ' ') return true;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    default: return true;
  }
}

void append_upper(std::string& out, int32_t c) {
  if (c < 0x80) {
    out.push_back(static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c));
  } else if (const CaseException* exception = find_case_exception(c)) {
    append_all(out, exception->upper);
  } else {
    append_code_point(out, utf8proc_toupper(c));
  }
}

void append_lower(std::string& out, int32_t c) {
  if (c < 0x80) {
    out.push_back(static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c));
  } else if (c == 0x130) {  // capital I with a dot above: the only lower case of two characters
    out.append("i\xCC\x87");
  } else {
    append_code_point(out, utf8proc_tolower(c));
  }
}

void append_title(std::string& out, int32_t c) {
  if (const CaseException* exception = find_case_exception(c)) {
    append_all(out, exception->title);
  } else {
    append_code_point(out, utf8proc_totitle(c));
  }
}

std::string_view strip_space_right(std::string_view text) {
  while (!text.empty()) {
    const size_t begin = previous_code_point(text, text.size());
    if (!is_space(decode_code_point(text, begin).value)) break;
    text = text.substr(0, begin);
  }
  return text;
}

}  // namespace tenon::jinja
