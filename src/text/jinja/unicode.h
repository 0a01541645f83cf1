// The Unicode facts that Python's str methods need, on UTF-8.
//
// Bytes that are not valid UTF-8 count as one character each and are kept as they are. Thread
// safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tenon::jinja {

struct CodePoint {
  int32_t value = 0;  // -1: an invalid byte
  size_t size = 0;    // bytes it takes
};

// Requires: position < text.size().
CodePoint decode_code_point(std::string_view text, size_t position);
// Start of the code point that ends at `position`. Requires: position > 0.
size_t previous_code_point(std::string_view text, size_t position);
size_t count_code_points(std::string_view text);
// Byte offset of the code point with the given index, or text.size() behind the end.
size_t code_point_offset(std::string_view text, size_t index);
void append_code_point(std::string& out, int32_t value);

bool is_space(int32_t c);       // str.isspace
bool is_line_break(int32_t c);  // str.splitlines
bool is_alphabetic(int32_t c);
bool is_numeric(int32_t c);
bool is_decimal_digit(int32_t c);
bool is_word(int32_t c);  // \w
bool is_upper(int32_t c);
bool is_lower(int32_t c);
bool is_title(int32_t c);
bool is_printable(int32_t c);  // str.isprintable: what repr() leaves unescaped

// Full case mappings: one character may become several.
void append_upper(std::string& out, int32_t c);
void append_lower(std::string& out, int32_t c);
void append_title(std::string& out, int32_t c);

std::string_view strip_space_right(std::string_view text);

}  // namespace tenon::jinja
