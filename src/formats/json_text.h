// JSON from files: parsed with limits and without exceptions. Thread safe.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tenon {

constexpr int kMaxJsonDepth = 64;

// Errors: kDataLoss for text that is not JSON (with the byte position), a key that appears twice in
// one object, or nesting deeper than kMaxJsonDepth.
Result<nlohmann::json> parse_json_text(std::string_view text);

// The same for a file of at most `max_bytes`; messages name the file. kNotFound when there is none.
Result<nlohmann::json> read_json_file(const std::string& path, size_t max_bytes);

}  // namespace tenon
