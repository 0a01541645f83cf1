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

void expect_text(const Result<RenderedPrompt>& result, const std::string& expected) {
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_TRUE(result.value().text == expected) << first_difference(result.value().text, expected);
}

void expect_failure(const Result<RenderedPrompt>& result, const Json& test) {
  ASSERT_FALSE(result.ok()) << "must fail: " << test.value("error", "")
                            << "\nbut gives: " << result.value().text;
  const std::string message = result.status().message();
  if (test.contains("raised")) {
    EXPECT_EQ(message, test["raised"].get<std::string>());
  } else {
    EXPECT_TRUE(message.find(", line ") != std::string::npos || !result.status().param().empty())
        << message;
  }
}

TEST(TemplatesGolden, RenderAsTransformersDoes) {
  setenv("TZ", "UTC", 1);
  const Json golden = read_golden();
  ASSERT_GT(golden["cases"].size(), 800U);
  for (const Json& test : golden["cases"]) {
    const auto name = test["template"].get<std::string>();
    const std::string detail =
        name.starts_with("snippet") ? golden["templates"][name].get<std::string>() : test.dump();
    SCOPED_TRACE(name + " with " + test["messages"].get<std::string>() + "\n" +
                 detail.substr(0, 600));
    const auto result = render(golden, test);
    if (test.contains("expected")) {
      expect_text(result, test["expected"].get<std::string>());
    } else {
      expect_failure(result, test);
    }
  }
}

}  // namespace
}  // namespace tenon
