#include "text/byte_alphabet.h"

#include <array>

#include "text/utf8.h"

namespace tenon {
namespace {

struct Tables {
  std::array<std::string, 256> character;
  std::array<int16_t, 0x144> byte_of;  // by code point; -1: not in the alphabet
};

bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

Tables make_tables() {
  Tables tables;
  tables.byte_of.fill(-1);
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t code = stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
    append_utf8(code, tables.character[static_cast<size_t>(byte)]);
    tables.byte_of[code] = static_cast<int16_t>(byte);
  }
  return tables;
}

const Tables& tables() {
  static const Tables kTables = make_tables();
  return kTables;
}

}  // namespace

std::string_view byte_to_alphabet(uint8_t byte) {
  return tables().character[byte];
}

void append_in_alphabet(std::string_view bytes, std::string& out) {
  for (const char byte : bytes) out += tables().character[static_cast<uint8_t>(byte)];
}

std::optional<std::string> bytes_from_alphabet(std::string_view text) {
  const Tables& alphabet = tables();
  std::string bytes;
  bytes.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Utf8Char character = decode_utf8(text, i);
    if (!character.valid || character.code >= alphabet.byte_of.size()) return std::nullopt;
    const int16_t byte = alphabet.byte_of[character.code];
    if (byte < 0) return std::nullopt;
    bytes += static_cast<char>(byte);
    i += character.length;
  }
  return bytes;
}

}  // namespace tenon
