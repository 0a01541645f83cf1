// UTF-8 and the few character classes that added-token matching needs. Pure functions over bytes.
// Thread safety: no state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tenon {

struct Utf8Char {
  char32_t code = 0xFFFD;
  // Bytes of the character; for an invalid sequence the length of its maximal subpart (Unicode 3.9,
  // D93b), at least 1.
  uint32_t length = 1;
  bool valid = false;
  bool cut = false;  // not valid only because the text ends: more bytes could complete it
};

// Requires: position < text.size().
[[nodiscard]] Utf8Char decode_utf8(std::string_view text, size_t position);
// The character that ends at `end` (> 0); an invalid one is a single byte.
[[nodiscard]] Utf8Char decode_utf8_before(std::string_view text, size_t end);
void append_utf8(char32_t code, std::string& out);
[[nodiscard]] bool is_valid_utf8(std::string_view text);

// Unicode White_Space.
[[nodiscard]] bool is_white_space(char32_t code);
// Unicode's recommended \w (UTS #18): Alphabetic, M, Nd, Pc, Join_Control.
[[nodiscard]] bool is_word_character(char32_t code);

}  // namespace tenon
