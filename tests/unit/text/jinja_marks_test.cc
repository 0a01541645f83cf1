// Text of the caller keeps its mark whatever the template does to it; text of the template never
// gets one.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "text/jinja/json.h"
#include "text/jinja/template.h"

namespace tenon::jinja {
namespace {

// The untrusted parts in «», for comparison.
std::string shown(const MarkedText& text) {
  std::string result;
  size_t at = 0;
  for (const TextRange& range : text.untrusted()) {
    EXPECT_LE(at, range.begin);
    EXPECT_LT(range.begin, range.end);
    EXPECT_LE(range.end, text.size());
    result += text.bytes().substr(at, range.begin - at) + "«" +
              text.bytes().substr(range.begin, range.end - range.begin) + "»";
    at = range.end;
  }
  return result + text.bytes().substr(at);
}

std::string render(std::string_view source) {
  const auto parsed = Template::parse(source);
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  const auto input = from_json({{"u", "<|x|>"},
                                {"w", " a b "},
                                {"q", "say \"hi\"\n"},
                                {"s", "straße"},
                                {"l", {"p", "q"}},
                                {"d", {{"key", "val"}, {"n", 5}}}});
  Variables variables;
  for (const auto& [key, value] : input.value().as_dict().entries())
    variables.emplace_back(key.as_text().bytes(), value);
  const auto result = parsed.value().render(variables, 1);
  EXPECT_TRUE(result.ok()) << source << result.status().message();
  return result.ok() ? shown(result.value()) : "";
}

TEST(JinjaMarks, OutputAndConcatenation) {
  EXPECT_EQ(render("a{{ u }}b"), "a«<|x|>»b");
  EXPECT_EQ(render("{{ '<' + u + '>' }}{{ '[' ~ u ~ ']' }}"), "<«<|x|>»>[«<|x|>»]");
  EXPECT_EQ(render("{{ u ~ u }}{{ u * 2 }}"), "«<|x|><|x|><|x|><|x|>»");
  EXPECT_EQ(render("{{ 'plain' }}{{ 5 }}{{ d.n }}{{ none }}"), "plain55None");
}

TEST(JinjaMarks, CuttingAndStripping) {
  EXPECT_EQ(render("{{ ('ab' ~ u ~ 'cd')[1:4] }}|{{ u[0] }}{{ u[::-1] }}"), "b«<|»|«<>|x|<»");
  EXPECT_EQ(render("{{ w.strip() }}|{{ w | trim }}|{{ w.split() }}"), "«a b»|«a b»|['«a»', '«b»']");
  EXPECT_EQ(render("{{ ('  ' ~ w).lstrip() }}{{ u.split('|')[1] }}{{ u.partition('x')[0] }}"),
            "«a b x<|»");
  EXPECT_EQ(render("{% for c in 'x' ~ s[:2] %}{{ c }}.{% endfor %}"), "x.«s».«t».");
  EXPECT_EQ(render("{{ (u ~ '\n' ~ 'b').splitlines() | join('+') }}"), "«<|x|>»+b");
}

TEST(JinjaMarks, Rewriting) {
  EXPECT_EQ(render("{{ s | upper }}{{ ('x' ~ s).title() }}{{ s | capitalize }}"),
            "«STRASSE»X«straßeStraße»");
  EXPECT_EQ(render("{{ u.replace('|', '/') }}{{ 'a-b' | replace('-', u) }}"),
            "«<»/«x»/«>»a«<|x|>»b");
  EXPECT_EQ(render("{{ u.replace('', '-', 2) }}"), "-«<»-«|x|>»");
  EXPECT_EQ(render("{{ ('a\n' ~ u) | indent(2) }}{{ 'abc' | indent(u, true) }}"),
            "a\n  «<|x|><|x|>»abc");
  EXPECT_EQ(render("{{ u | e }}{{ u | urlencode }}"), "«&lt;|x|&gt;%3C%7Cx%7C%3E»");
  EXPECT_EQ(render("{{ u | center(9) }}{{ u.ljust(6, '.') }}"), "  «<|x|>»  «<|x|>».");
}

TEST(JinjaMarks, JoiningAndPrinting) {
  EXPECT_EQ(render("{{ l | join(', ') }}{{ u.join(['a', 'b']) }}"), "«p», «q»a«<|x|>»b");
  EXPECT_EQ(render("{{ l }}{{ d }}"), "['«p»', '«q»']{'«key»': '«val»', '«n»': 5}");
  EXPECT_EQ(render("{{ d | tojson }}{{ q | tojson }}"),
            "{\"«key»\": \"«val»\", \"«n»\": 5}\"«say \\\"hi\\\"\\n»\"");
  EXPECT_EQ(render("{{ [1] | tojson(indent=u) }}{{ [1, 2] | tojson(separators=[u, ':']) }}"),
            "[\n«<|x|>»1\n][1«<|x|>»2]");
  EXPECT_EQ(render("{{ [q] }}"), "['«say \"hi\"\\n»']");
}

TEST(JinjaMarks, Formatting) {
  EXPECT_EQ(render("{{ '<%s>' % u }}{{ '[{}]'.format(u) }}{{ '{:>6}'.format(u) }}"),
            "<«<|x|>»>[«<|x|>»] «<|x|>»");
  EXPECT_EQ(render("{{ u | format }}{{ 'a%sb' | format(w) }}"), "«<|x|>»a« a b »b");
  // A format of the caller's: all of its result is the caller's, padding included.
  EXPECT_EQ(render("{{ (u ~ '{}').format('t') }}{{ (u ~ '%s') % 't' }}"), "«<|x|>t<|x|>t»");
}

TEST(JinjaMarks, ThroughVariablesMacrosAndBlocks) {
  EXPECT_EQ(render("{% set x %}a{{ u }}b{% endset %}{{ x }}"), "a«<|x|>»b");
  EXPECT_EQ(render("{% macro m(v) %}<{{ v }}{{ caller() }}>{% endmacro %}{% call m(u) %}{{ u }}{% "
                   "endcall %}"),
            "<«<|x|><|x|>»>");
  EXPECT_EQ(render("{% filter upper %}t{{ u }}{% endfilter %}"), "T«<|X|>»");
  EXPECT_EQ(render("{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}"),
            "«key»=«val»;«n»=5;");
  EXPECT_EQ(render("{% set n = namespace(t='') %}{% for x in l %}{% set n.t = n.t ~ x ~ '.' %}{% "
                   "endfor %}{{ n.t }}"),
            "«p».«q».");
  EXPECT_EQ(render("{{ strftime_now('%Y') }}{{ strftime_now(u) }}"), "1970«<|x|>»");
  EXPECT_EQ(
      render(
          "{{ l | map('upper') | first }}{{ l | sort(reverse=true) | last }}{{ dict(a=u)['a'] }}"),
      "«Pp<|x|>»");
}

TEST(JinjaMarks, MarkedTextKeepsRangesSortedAndDisjoint) {
  MarkedText text("ab", true);
  text.append("cd", false);
  text.append("ef", true);
  text.append("gh", true);
  ASSERT_EQ(text.untrusted().size(), 2U);
  EXPECT_EQ(text.untrusted()[1].end, 8U);
  EXPECT_EQ(shown(text.slice(1, 5)), "«b»cd«e»");
  EXPECT_TRUE(text.is_untrusted_at(1));
  EXPECT_FALSE(text.is_untrusted_at(3));
  text.truncate(5);
  EXPECT_EQ(shown(text), "«ab»cd«e»");
  text.truncate(4);
  EXPECT_EQ(text.untrusted().size(), 1U);
}

}  // namespace
}  // namespace tenon::jinja
