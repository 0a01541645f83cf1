// Functions every template can call: range, dict, namespace, cycler, joiner, raise_exception,
// strftime_now.
//
// Thread safety: see native.h.
#pragma once

#include "text/jinja/runtime.h"

namespace tenon::jinja {

// Defines them in the running scope.
void define_globals(Runtime& runtime);

}  // namespace tenon::jinja
