// Methods of str.
//
// Thread safety: see native.h.
#pragma once

#include <string_view>

#include "text/jinja/native.h"

namespace tenon::jinja {

// Null if str has no such method.
[[nodiscard]] Native find_string_method(std::string_view name);

// str.isupper, str.islower.
[[nodiscard]] bool is_upper_text(std::string_view text);
[[nodiscard]] bool is_lower_text(std::string_view text);

}  // namespace tenon::jinja
