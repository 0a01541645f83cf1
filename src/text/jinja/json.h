// JSON in and out of template values.
//
// Thread safety: pure functions of their arguments.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "base/status.h"
#include "text/jinja/value.h"

namespace tenon::jinja {

// All strings, keys too, become untrusted.
Result<Value> from_json(const nlohmann::ordered_json& json);

// As Python's json.dumps has them; the defaults are those of the tojson filter in chat templates.
struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<MarkedText> indent;  // one level of it; none: everything on one line
  MarkedText item_separator;
  MarkedText key_separator;
};

Result<MarkedText> to_json(Budget& budget, const Value& value, const JsonStyle& style);

}  // namespace tenon::jinja
