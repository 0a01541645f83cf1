// Case TPL-04: raise_exception is the caller's mistake, and its message reaches the caller.
// Sources: vllm-project/vllm issue #16774 and PR #16769, ggml-org/llama.cpp issue #11402,
// gpustack/gpustack issue #565, withcatai/node-llama-cpp issue #263.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "text/chat_template.h"

namespace tenon {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kTurns =
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ "
    "raise_exception('roles must "
    "take turns, got ' ~ m['role'] ~ ' at ' ~ loop.index0) }}{% endif %}[{{ m['content'] }}]{% "
    "endfor %}";

Json message(const char* role, const char* content) {
  return {{"role", role}, {"content", content}};
}

TEST(Tpl04RaiseException, MessageIsTheError) {
  const auto turns = ChatTemplate::parse(kTurns);
  ASSERT_TRUE(turns.ok()) << turns.status().message();
  const auto good = turns.value()->render(
      Json::array({message("user", "uno"), message("assistant", "dos"), message("user", "tres")}),
      {}, {}, {});
  ASSERT_TRUE(good.ok()) << good.status().message();
  EXPECT_EQ(good.value().text, "[uno][dos][tres]");

  const auto bad = turns.value()->render(
      Json::array({message("user", "uno"), message("user", "dos")}), {}, {}, {});
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(bad.status().message(), "roles must take turns, got user at 1");
}

TEST(Tpl04RaiseException, OtherFailuresNameTheLine) {
  const auto broken = ChatTemplate::parse("a\n{{ nothing.at.all }}");
  ASSERT_TRUE(broken.ok());
  const auto result = broken.value()->render(Json::array({message("user", "uno")}), {}, {}, {});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(result.status().message(), "chat template, line 2: 'nothing' is undefined");
}

}  // namespace
}  // namespace tenon
