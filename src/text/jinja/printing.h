// How Python prints values: str() and repr(), numbers included.
//
// Thread safety: pure functions of their arguments.
#pragma once

#include <string>

#include "base/status.h"
#include "text/jinja/value.h"

namespace tenon::jinja {

std::string print_integer(Integer value);
std::string print_float(double value);  // repr: the shortest text that reads back

// str(): strings as they are, with their marks.
Result<MarkedText> to_text(Budget& budget, const Value& value);
Result<MarkedText> to_repr(Budget& budget, const Value& value);
// str() appended to `out` without a copy in between.
Status append_text(Budget& budget, MarkedText& out, const Value& value);

}  // namespace tenon::jinja
