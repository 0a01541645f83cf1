// One field of a formatted text: how it is aligned, filled and how its number is written.
//
// Thread safety: pure functions of their arguments.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.h"
#include "text/jinja/value.h"

namespace tenon::jinja {

struct FormatSpec {
  MarkedText fill{" "};
  char align = '\0';  // < > ^ =; \0: the type's own
  char sign = '-';    // - + space
  bool alternate = false;
  bool group_thousands = false;
  int64_t width = 0;
  int64_t precision = -1;
  char type = '\0';
};

// [[fill]align][sign][#][0][width][,][.precision][type]
Result<FormatSpec> parse_format_spec(const MarkedText& spec);

// Appends the value. Fails for a type the value does not have.
Status append_formatted(Budget& budget,
                        MarkedText& out,
                        const Value& value,
                        const FormatSpec& spec);

}  // namespace tenon::jinja
