// Case TPL-02: trim_blocks and lstrip_blocks are on, one trailing newline goes, CRLF is LF.
// Sources: smg-project/smg PR #685, huggingface/swift-transformers issue #322, mitsuhiko/minijinja
// issue #446, jinja2cpp/Jinja2Cpp issue #159.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "text/chat_template.h"

namespace tenon {
namespace {

std::string render(std::string_view source) {
  const nlohmann::ordered_json messages = {{{"role", "user"}, {"content", "uno"}},
                                           {{"role", "assistant"}, {"content", "dos"}}};
  const auto parsed = ChatTemplate::parse(source);
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  const auto result = parsed.value()->render(messages, {}, {}, {});
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.value().text;
}

constexpr std::string_view kLoop =
    "{% for m in messages %}\n    {% if m.role == 'user' %}\nU: {{ m.content }}\n    {% else "
    "%}\nA: {{ m.content }}\n"
    "    {% endif %}\n{% endfor %}\nEND\n";

TEST(Tpl02WhiteSpace, BlocksLeaveNoLinesBehind) {
  EXPECT_EQ(render(kLoop), "U: uno\nA: dos\nEND");
  EXPECT_EQ(render("a {{ 1 }}\n  {{ 2 }}\n{# note #}\nb\n"), "a 1\n  2\nb");
  EXPECT_EQ(render("{%- if true -%}\n  x  \n{%- endif -%}\n  y"), "xy");
  EXPECT_EQ(render("  {%+ if true %}x{% endif +%}\ny"), "  x\ny");
  EXPECT_EQ(render("X\n\n"), "X\n");
}

TEST(Tpl02WhiteSpace, CrLfBehavesAsLf) {
  std::string source;
  for (const char c : kLoop) source += c == '\n' ? std::string("\r\n") : std::string(1, c);
  EXPECT_EQ(render(source), "U: uno\nA: dos\nEND");
}

}  // namespace
}  // namespace tenon
