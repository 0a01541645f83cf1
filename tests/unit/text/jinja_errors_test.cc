// Errors name the line they come from; raise_exception's message arrives as it is.
#include <gtest/gtest.h>

#include <string>

#include "text/jinja/template.h"

namespace tenon::jinja {
namespace {

std::string error_of(std::string_view source) {
  const auto parsed = Template::parse(source);
  if (!parsed.ok()) return "parse: " + parsed.status().message();
  const auto result = parsed.value().render({}, 1);
  return result.ok() ? "(no error)" : result.status().message();
}

TEST(JinjaErrors, CarryTheLine) {
  EXPECT_EQ(error_of("a\nb\n{{ x.y }}"), "chat template, line 3: 'x' is undefined");
  EXPECT_EQ(error_of("{# 1\n2 #}\n\n{{ 1 +\n'a' }}"),
            "chat template, line 4: unsupported operand types for +: 'int' and 'str'");
  EXPECT_EQ(error_of("{% macro m() %}\n{{ none.a.b }}\n{% endmacro %}\n{{ m() }}"),
            "chat template, line 2: 'None' has no attribute 'a'");
  EXPECT_EQ(error_of("\n{{ {'a': 1}.b.c }}"),
            "chat template, line 2: 'dict object' has no attribute 'b'");
  EXPECT_EQ(error_of("{%- raw %}\n\n{% endraw %}\n{{ [1][5].x }}"),
            "chat template, line 4: list object has no element 5");
  EXPECT_EQ(error_of("\n{{ 'a' | int(1, 2, 3) }}"),
            "chat template, line 2: filter 'int': takes at most 2 arguments, 3 given");
}

TEST(JinjaErrors, OfSyntaxCarryTheLine) {
  EXPECT_EQ(error_of("x\n{% if a %}\n"),
            "parse: chat template, line 2: expected 'endif', got the end of the template");
  EXPECT_EQ(error_of("x\n\n{{ a b }}"), "parse: chat template, line 3: expected '}}', got 'b'");
  EXPECT_EQ(error_of("\n{{ a | nope }}"),
            "parse: chat template, line 2: there is no filter named 'nope'");
  EXPECT_EQ(error_of("\r\n\r{% nope %}"), "parse: chat template, line 3: unknown tag 'nope'");
  EXPECT_EQ(error_of("{{ 'a\nb' }}{{ 'x }}"),
            "parse: chat template, line 2: a string is not closed");
}

TEST(JinjaErrors, RaiseExceptionIsVerbatim) {
  EXPECT_EQ(error_of("\n{{ raise_exception('a: \"b\" ' ~ 1) }}"), "a: \"b\" 1");
  EXPECT_EQ(error_of("{% macro m() %}{{ raise_exception('deep') }}{% endmacro %}{% for i in [1] "
                     "%}{{ [m()] | first | upper }}{% endfor %}"),
            "deep");
}

TEST(JinjaErrors, UnknownFilterInAConditionIsAnErrorOnlyWhenUsed) {
  EXPECT_EQ(error_of("{% if false %}{{ 1 | nope }}{% endif %}"), "(no error)");
  EXPECT_EQ(error_of("{% if true %}{{ 1 | nope }}{% endif %}"),
            "chat template, line 1: there is no filter named 'nope'");
}

}  // namespace
}  // namespace tenon::jinja
