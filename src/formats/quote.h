// Names read from a file, made fit for a one-line message. Thread safe.
#pragma once

#include <string>
#include <string_view>

namespace tenon {

// 'name' in quotes: control and non-ASCII bytes as \xNN, shortened after 80 bytes.
[[nodiscard]] std::string quote_name(std::string_view name);

}  // namespace tenon
