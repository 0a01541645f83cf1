// Reading of literals: escapes in strings, digits of integers.
//
// Thread safety: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "text/jinja/value.h"

namespace tenon::jinja {

// Python's escapes; an unknown one stays as it is.
Result<std::string> unescape_string(std::string_view literal);

// Digits only, with an optional sign; empty if there is anything else or the value is too large.
std::optional<Integer> parse_integer(std::string_view digits, int base);

}  // namespace tenon::jinja
