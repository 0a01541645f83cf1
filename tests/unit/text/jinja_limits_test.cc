// Hostile templates: each must end soon, with an error or a result, on a small stack.
#include <gtest/gtest.h>
#include <pthread.h>

#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "text/jinja/json.h"
#include "text/jinja/template.h"

namespace tenon::jinja {
namespace {

std::string repeat(std::string_view text, size_t count) {
  std::string result;
  for (size_t i = 0; i < count; ++i) result += text;
  return result;
}

Result<MarkedText> render(std::string_view source, const Variables& variables = {}) {
  TENON_ASSIGN_OR_RETURN(const Template parsed, Template::parse(source));
  return parsed.render(variables, 1);
}

std::string error_of(std::string_view source) {
  const auto result = render(source);
  return result.ok() ? "(no error)" : result.status().message();
}

// Sanitizers make frames several times larger.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kStackBytes = size_t{8} << 20;
#else
constexpr size_t kStackBytes = size_t{1} << 20;
#endif

void run_on_small_stack(const std::function<void()>& body) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_t thread{};
  const auto start = [](void* argument) -> void* {
    (*static_cast<const std::function<void()>*>(argument))();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, start, const_cast<std::function<void()>*>(&body)),
            0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

TEST(JinjaLimits, DeepNestingInTheSourceIsAnErrorNotACrash) {
  constexpr size_t kDepth = 100'000;
  const std::pair<std::string, std::string> sources[] = {
      {"brackets", "{{ " + repeat("(", kDepth) + "1" + repeat(")", kDepth) + " }}"},
      {"open brackets", "{{ " + repeat("[", kDepth)},
      {"dicts", "{{ " + repeat("{1:", kDepth) + "1" + repeat("}", kDepth) + " }}"},
      {"subscripts", "{{ " + repeat("a[", kDepth) + "1" + repeat("]", kDepth) + " }}"},
      {"minus", "{{ " + repeat("-", kDepth) + "1 }}"},
      {"not", "{{ " + repeat("not ", kDepth) + "1 }}"},
      {"inline if", "{{ " + repeat("1 if 0 else ", kDepth) + "1 }}"},
      {"sum", "{{ 1" + repeat(" + 1", kDepth) + " }}"},
      {"or", "{{ 1" + repeat(" or 1", kDepth) + " }}"},
      {"attributes", "{{ a" + repeat(".a", kDepth) + " }}"},
      {"calls", "{{ a" + repeat("()", kDepth) + " }}"},
      {"filters", "{{ a" + repeat("|trim", kDepth) + " }}"},
      {"tests", "{{ a" + repeat(" is defined", kDepth) + " }}"},
      {"blocks", repeat("{% if 1 %}", kDepth) + "x" + repeat("{% endif %}", kDepth)},
      {"loops", repeat("{% for a in b %}", kDepth)},
      {"targets", "{% set " + repeat("(", kDepth) + "a" + repeat(")", kDepth) + " = 1 %}"},
      {"arguments", "{{ " + repeat("a(", kDepth) + " }}"},
  };
  run_on_small_stack([&] {
    for (const auto& [name, source] : sources) {
      const auto result = Template::parse(source);
      ASSERT_FALSE(result.ok()) << name;
      EXPECT_NE(result.status().message().find("line 1"), std::string::npos)
          << name << result.status().message();
    }
  });
}

TEST(JinjaLimits, FlatButLongSourcesArePlainWork) {
  EXPECT_EQ(render("{{ 'a'" + repeat(" ~ 'a'", 10'000) + " }}").value().size(), 10'001U);
  EXPECT_EQ(render("{% if 0 %}" + repeat("{% elif 0 %}", 10'000) + "{% else %}x{% endif %}")
                .value()
                .view(),
            "x");
  EXPECT_EQ(render("{{ 1" + repeat(" + 1", 300) + " }}").value().view(), "301");
}

TEST(JinjaLimits, EndlessWorkIsStopped) {
  const auto start = std::chrono::steady_clock::now();
  run_on_small_stack([] {
    EXPECT_NE(error_of("{% for i in range(10**9) %}{% endfor %}").find("range"), std::string::npos);
    EXPECT_NE(
        error_of("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}")
            .find("steps"),
        std::string::npos);
    EXPECT_NE(error_of("\n{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}").find("line 2"),
              std::string::npos);
    EXPECT_NE(error_of("{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}").find("recurses"),
              std::string::npos);
    EXPECT_NE(error_of("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}").find("line 1"),
              std::string::npos);
    EXPECT_NE(error_of("{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{{ caller() }}{% "
                       "endmacro %}{{ m() }}"),
              "(no error)");
  });
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  EXPECT_LT(elapsed.count(), 30.0);
}

TEST(JinjaLimits, HugeValuesAreRefusedBeforeTheyAreMade) {
  for (const char* source : {
           "{{ 'a' * 10**9 }}",
           "{{ 10**9 * 'a' }}",
           "{{ 'a' * 10**30 }}",
           "{{ [1] * 10**9 }}",
           "{{ 'x'.ljust(10**9) }}",
           "{{ 'x'.zfill(10**12) }}",
           "{{ 'x' | center(10**9) }}",
           "{{ '%1000000000d' % 1 }}",
           "{{ '{:1000000000}'.format(1) }}",
           "{{ '%.99999999f' % 1 }}",
           "{{ [1] | tojson(indent=10**9) }}",
           "{{ ('a' * 10**7).replace('a', 'b' * 10**7) }}",
           "{{ ('a' * 10**7).replace('', 'b' * 10**7) }}",
           "{{ ('b' * 10**7).join('a' * 10**5) }}",
           "{{ ('a\\n' * 10**6) | indent(10**6) }}",
           "{{ [1] | batch(10**12, 1) | list }}",
           "{{ [1] | slice(10**12) | list }}",
           "{{ 10 ** 10 ** 10 }}",
           "{{ 9**99 }}",
           "{{ 2.0 ** 9999 }}",
           "{% set n = namespace(s='ab') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% "
           "endfor %}",
           "{% set n = namespace(s=[1]) %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% "
           "endfor %}",
           "{% for i in range(99999) %}{{ 'a' * 10**5 }}{% endfor %}",
           "{{ [1, 2] | map('center', 10**9) | list }}",
       }) {
    EXPECT_NE(error_of(source).find("line 1"), std::string::npos)
        << source << ": " << error_of(source);
  }
}

TEST(JinjaLimits, ValuesThatContainEachOtherDoNotHurt) {
  run_on_small_stack([] {
    // A namespace inside itself: printing ends, and nothing leaks (the address sanitizer looks).
    EXPECT_NE(error_of("{% set n = namespace() %}{% set n.n = n %}{{ n }}").find("recursion"),
              std::string::npos);
    EXPECT_TRUE(render("{% set n = namespace() %}{% set n.n = [n] %}{% set n.m = n.n %}ok").ok());
    EXPECT_TRUE(
        render("{% set n = namespace() %}{% macro m() %}{% endmacro %}{% set n.m = m %}ok").ok());
    EXPECT_TRUE(render("{% set n = namespace() %}{% for x in [1] %}{% set n.l = loop %}{% endfor "
                       "%}{{ n.l.index }}")
                    .ok());
    // Lists in lists, growing in a loop.
    EXPECT_NE(error_of("{% set n = namespace(x=[]) %}{% for i in range(9999) %}{% set n.x = [n.x] "
                       "%}{% endfor %}")
                  .find("nested"),
              std::string::npos);
    // A chain of namespaces is freed without recursion.
    EXPECT_TRUE(
        render("{% set n = namespace() %}{% for i in range(90000) %}{% set t = namespace(p=n.p) %}"
               "{% set n.p = t %}{% endfor %}ok")
            .ok());
    // Functions that keep the scope of the function they were made in.
    EXPECT_TRUE(render("{% set n = namespace() %}{% macro make() %}{% macro f() %}{% endmacro %}{% "
                       "set n.f = f %}"
                       "{% endmacro %}{% for i in range(5000) %}{{ make() }}{% endfor %}ok")
                    .ok());
  });
}

TEST(JinjaLimits, DeepInputIsRefused) {
  nlohmann::ordered_json deep = 1;
  for (int i = 0; i < 300; ++i) deep = nlohmann::ordered_json::array({deep});
  EXPECT_FALSE(from_json(deep).ok());
}

TEST(JinjaLimits, AMegabyteOfContentIsCheap) {
  const std::string content = repeat("h\xC3\xA9llo <think> w\xC3\xB6rld\n", 50'000);
  const Variables variables = {{"c", Value::text(MarkedText(content, true))}};
  const auto start = std::chrono::steady_clock::now();
  const auto result = render(
      "{{ c.strip() }}{{ c.split('</think>')[-1].lstrip('\\n') }}{{ c | upper | lower | trim }}{{ "
      "c | tojson }}"
      "{{ c.replace('<think>', '[') }}{{ c[1:] }}{{ c | length }}{{ c.startswith('h') }}{{ '<' in "
      "c }}"
      "{{ c.split('\\n') | join('\\n') }}{{ c | indent(2) }}",
      variables);
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_GT(result.value().size(), content.size() * 7);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  EXPECT_LT(elapsed.count(), 5.0);
}

TEST(JinjaLimits, TimeGrowsWithTheInputAndNotFaster) {
  const auto seconds = [](size_t count) {
    const Variables variables = {
        {"c", Value::text(MarkedText(repeat("a<b>\xC3\xA9 ", count), true))}};
    const auto start = std::chrono::steady_clock::now();
    const auto result = render(
        "{{ c.replace('<', '[').replace('>', ']').split(' ') | join('_') | tojson | upper }}"
        "{{ c[:-1][1:][::-1] }}{% for i in range(100) %}{{ c[-3:] }}{% endfor %}",
        variables);
    EXPECT_TRUE(result.ok()) << result.status().message();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const double small = seconds(20'000);
  const double large = seconds(80'000);
  EXPECT_LT(
      large,
      small * 12 + 0.1);  // four times the input; quadratic work would take sixteen times as long
}

}  // namespace
}  // namespace tenon::jinja
