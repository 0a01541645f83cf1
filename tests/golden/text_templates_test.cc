// Every template of text_templates.json must render as transformers renders it, or fail where that
// fails. text_templates.py makes the file.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "text/chat_template.h"

namespace tenon {
namespace {

using Json = nlohmann::ordered_json;

Json read_golden() {
  std::ifstream file(TENON_SOURCE_DIR "/tests/golden/text_templates.json");
  EXPECT_TRUE(file.is_open());
  return Json::parse(file);
}

std::string first_difference(const std::string& actual, const std::string& expected) {
  size_t at = 0;
  while (at < actual.size() && at < expected.size() && actual[at] == expected[at]) ++at;
  const size_t from = at > 60 ? at - 60 : 0;
  return "differs at byte " + std::to_string(at) + "\n  expected ..." +
         Json(expected.substr(from, 120)).dump(-1, ' ', false, Json::error_handler_t::replace) +
         "\n  actual   ..." +
         Json(actual.substr(from, 120)).dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<RenderedPrompt> render(const Json& golden, const Json& test) {
  const auto source = golden["templates"][test["template"].get<std::string>()].get<std::string>();
  auto parsed = ChatTemplate::parse(source);
  if (!parsed.ok()) return parsed.status();
  ChatTemplateOptions options;
  options.add_generation_prompt = test.value("add_generation_prompt", false);
  options.continue_final_message = test.value("continue_final_message", false);
  options.bos_token = "<s>";
  options.eos_token = "</s>";
  options.now_unix = golden["now"].get<int64_t>();
  Json extra = Json::object();
  if (test.contains("kwargs"))
    extra = test["kwargs"].is_object() ? test["kwargs"] : golden["snippet_variables"];
  const Json tools = test.value("tools", false) ? golden["tools"] : Json();
  return parsed.value()->render(golden["messages"][test["messages"].get<std::string>()], tools,
                                extra, options);
}

TEST(TemplatesGolden, RenderAsTransformersDoes) {
  setenv("TZ", "UTC", 1);
  const Json golden = read_golden();
  size_t failures = 0;
  for (const Json& test : golden["cases"]) {
    const auto name = test["template"].get<std::string>();
    const std::string label =
        name + " with " + test["messages"].get<std::string>() + "\n" +
        (name.starts_with("snippet") ? golden["templates"][name].get<std::string>()
                                     : test.value("kwargs", Json()).dump());
    const auto result = render(golden, test);
    if (test.contains("expected")) {
      const auto expected = test["expected"].get<std::string>();
      EXPECT_TRUE(result.ok()) << label << "\n" << result.status().message();
      if (result.ok())
        EXPECT_TRUE(result.value().text == expected)
            << label << "\n"
            << first_difference(result.value().text, expected);
    } else {
      EXPECT_FALSE(result.ok()) << label << "\nmust fail: " << test.value("error", "")
                                << "\nbut gives: " << (result.ok() ? result.value().text : "");
      if (test.contains("raised"))
        EXPECT_EQ(result.status().message(), test["raised"].get<std::string>()) << label;
      else
        EXPECT_NE(result.status().message().find(
                      result.status().param().empty() ? "line " : "continue_final_message"),
                  std::string::npos)
            << result.status().message();
    }
    if (HasFailure() && ++failures > 200) break;
  }
}

}  // namespace
}  // namespace tenon
