// Server-sent events as OpenAI clients read them: "data: " + one line + empty line. Thread safe.
#pragma once

#include <string>
#include <string_view>

#include "server/http_server.h"
#include "server/json_input.h"

namespace tenon {

constexpr std::string_view kSseDone = "data: [DONE]\n\n";
constexpr std::string_view kSsePing = ": keep-alive\n\n";  // a comment; clients skip it

[[nodiscard]] std::string sse_event(const OrderedJson& data);
[[nodiscard]] HttpResponse sse_head();

}  // namespace tenon
