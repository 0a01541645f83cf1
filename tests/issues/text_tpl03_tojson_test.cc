// Case TPL-03: tojson keeps Unicode, HTML characters and the order of keys, and takes json.dumps'
// arguments. Sources: huggingface/transformers PR #31100, theroyallab/tabbyAPI PR #459 and issue
// #404, ochafik/minja PR #7.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "text/chat_template.h"

namespace tenon {
namespace {

using Json = nlohmann::ordered_json;

std::string render(std::string_view source, const Json& extra = Json::object()) {
  const auto parsed = ChatTemplate::parse(source);
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  const auto result = parsed.value()->render(Json::array(), {}, extra, {});
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.value().text;
}

TEST(Tpl03ToJson, KeepsCharactersAndOrder) {
  const Json value = Json::parse(
      R"({"name":"café_naïve","parameters":{"ключ":"<b>&'\"\\ \n\t\u2028 🦙","n":1.0,"t":true,"z":null,"e":[],"o":{}}})");
  EXPECT_EQ(render("{{ t | tojson }}", {{"t", value}}),
            "{\"name\": \"café_naïve\", \"parameters\": {\"ключ\": \"<b>&'\\\"\\\\ "
            "\\n\\t\xE2\x80\xA8 🦙\", \"n\": 1.0, "
            "\"t\": true, \"z\": null, \"e\": [], \"o\": {}}}");
  EXPECT_EQ(render("{{ t | tojson }}", {{"t", Json::parse(R"({"z":1,"a":2,"m":{"y":1,"b":2}})")}}),
            R"({"z": 1, "a": 2, "m": {"y": 1, "b": 2}})");
}

TEST(Tpl03ToJson, TakesTheArgumentsOfJsonDumps) {
  EXPECT_EQ(render("{{ {'a':[1,2],'b':{}} | tojson(indent=4) }}"),
            "{\n    \"a\": [\n        1,\n        2\n    ],\n    \"b\": {}\n}");
  EXPECT_EQ(render("{{ 'é🦙' | tojson(ensure_ascii=True) }}"), "\"\\u00e9\\ud83e\\udd99\"");
  EXPECT_EQ(render("{{ 'é🦙' | tojson(ensure_ascii=False) }}"), "\"é🦙\"");
}

}  // namespace
}  // namespace tenon
