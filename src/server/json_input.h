// JSON from the network: parsed with limits, without recursion and without exceptions. And the way
// back. Thread safe.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tenon {

using OrderedJson = nlohmann::ordered_json;

struct JsonLimits {
  int32_t max_depth = 128;              // nested arrays and objects
  size_t max_values = size_t{4} << 20;  // a value takes 16 bytes or more, however short its text is
};

// Keys keep their order; the last of several equal keys wins. kInvalidArgument, with the place but
// without the text, for anything else than JSON in valid UTF-8, lone surrogates, numbers outside
// double's range and beyond the limits.
Result<OrderedJson> parse_json(std::string_view text, const JsonLimits& limits);

// One line; bytes that are not UTF-8 become U+FFFD.
[[nodiscard]] std::string dump_json(const OrderedJson& value);

}  // namespace tenon
