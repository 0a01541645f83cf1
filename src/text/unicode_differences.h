// Where the Unicode data of the reference tokenizers (Hugging Face) and of the libraries used here
// differ. Thread safety: no state.
#pragma once

#include <string>
#include <string_view>

namespace tenon {

// The reference's regular expressions know Unicode 16, PCRE2 10.42 Unicode 14: the members of a
// general category
// ("L", "Nd") that came later, as class ranges "\x{1C89}\x{10D40}-\x{10D49}"; empty if there are
// none.
[[nodiscard]] std::string later_members(std::string_view property);

// The reference's normal forms are older than utf8proc's: true for characters that they leave alone
// and that neither combine nor decompose there.
[[nodiscard]] bool has_later_normalization(char32_t code);

}  // namespace tenon
