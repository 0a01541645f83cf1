// Python's two ways to format: "%s: %d" % values and "{}: {:>5}".format(values).
//
// A format that holds untrusted characters makes the whole result untrusted, padding included.
// Thread safety: pure functions of their arguments.
#pragma once

#include "base/status.h"
#include "text/jinja/value.h"

namespace tenon::jinja {

// `values`: a tuple, a dict for %(name)s, or a single value.
Result<Value> format_percent(Budget& budget, const MarkedText& format, const Value& values);
Result<MarkedText> format_braces(Runtime& runtime,
                                 const MarkedText& format,
                                 const Arguments& arguments);

}  // namespace tenon::jinja
