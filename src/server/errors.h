// The error envelope of the OpenAI API: {"error": {"message", "type", "param", "code"}}. Thread
// safe.
#pragma once

#include <string>
#include <string_view>

#include "server/http_server.h"
#include "server/json_input.h"
#include "tenon/status.h"

namespace tenon {

// HTTP status for a Status that is not ok.
[[nodiscard]] int http_status(const Status& status);

// `code` may be empty (null in the answer).
[[nodiscard]] OrderedJson error_json(int http_status,
                                     std::string_view message,
                                     std::string_view param,
                                     std::string_view code);
[[nodiscard]] OrderedJson error_json(const Status& status);

[[nodiscard]] HttpResponse json_response(int http_status, const OrderedJson& body);
[[nodiscard]] HttpResponse error_response(const Status& status);
[[nodiscard]] HttpResponse error_response(int http_status,
                                          std::string_view message,
                                          std::string_view code = {});

}  // namespace tenon
