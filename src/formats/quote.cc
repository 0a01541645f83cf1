#include "formats/quote.h"

#include <fmt/format.h>

namespace tenon {
namespace {

// Bytes of the well-formed UTF-8 sequence of a printable non-ASCII character at `at`; 0 if there is
// none.
size_t utf8_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const size_t length = byte(0) < 0xC2   ? 0
                        : byte(0) < 0xE0 ? 2
                        : byte(0) < 0xF0 ? 3
                        : byte(0) < 0xF5 ? 4
                                         : 0;
  if (length == 0 || at + length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const unsigned char second = byte(1);
  const bool overlong = (byte(0) == 0xE0 && second < 0xA0) || (byte(0) == 0xF0 && second < 0x90);
  const bool too_high = (byte(0) == 0xED && second >= 0xA0) || (byte(0) == 0xF4 && second >= 0x90);
  const bool c1_control = byte(0) == 0xC2 && second < 0xA0;
  return overlong || too_high || c1_control ? 0 : length;
}

}  // namespace

std::string printable_text(std::string_view text, size_t max_bytes) {
  std::string out;
  size_t at = 0;
  while (at < text.size() && out.size() < max_bytes) {
    const char c = text[at];
    const size_t length = c >= 0x20 && c < 0x7F ? 1 : utf8_length(text, at);
    if (length > 0) {
      out += text.substr(at, length);
      at += length;
      continue;
    }
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
    ++at;
  }
  if (at < text.size()) out += "...";
  return out;
}

std::string quote_name(std::string_view name) {
  return "'" + printable_text(name, 80) + "'";
}

}  // namespace tenon
