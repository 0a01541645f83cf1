// GPT-2's byte alphabet: every byte has a printable character, so that byte sequences can be
// written as text
// ("Ġthe" is " the"). Printable Latin-1 characters stand for themselves, the other bytes for U+0100
// and up. Thread safety: no state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tenon {

// The character of each byte, as UTF-8.
[[nodiscard]] std::string_view byte_to_alphabet(uint8_t byte);
// Writes `bytes` in the alphabet.
void append_in_alphabet(std::string_view bytes, std::string& out);
// The bytes that `text` spells; nullopt if one of its characters is not in the alphabet.
[[nodiscard]] std::optional<std::string> bytes_from_alphabet(std::string_view text);

}  // namespace tenon
