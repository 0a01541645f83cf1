// Text read from a file, made fit for a message or a terminal. Thread safe.
#pragma once

#include <string>
#include <string_view>

namespace tenon {

// Valid UTF-8 stays; control characters become \n, \t or \xNN, and so do bytes that are no UTF-8.
// Shortened to about `max_bytes` with "..." at the end.
[[nodiscard]] std::string printable_text(std::string_view text, size_t max_bytes);

// 'name' in quotes, for messages.
[[nodiscard]] std::string quote_name(std::string_view name);

}  // namespace tenon
