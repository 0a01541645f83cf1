#include "server/errors.h"

#include "base/check.h"

namespace tenon {
namespace {

std::string_view error_type(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 429: return "rate_limit_error";
    case 500: return "server_error";
    case 503: return "unavailable_error";
    default: return "invalid_request_error";
  }
}

std::string_view error_code(const Status& status) {
  if (status.code() == StatusCode::kInvalidArgument &&
      status.message().find("maximum context length is") != std::string::npos) {
    return "context_length_exceeded";
  }
  if (status.code() == StatusCode::kNotFound && status.param() == "model") return "model_not_found";
  return {};
}

OrderedJson string_or_null(std::string_view text) {
  return text.empty() ? OrderedJson() : OrderedJson(text);
}

}  // namespace

int http_status(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk: return 200;
    case StatusCode::kInvalidArgument:
    case StatusCode::kUnsupported: return 400;
    case StatusCode::kNotFound: return 404;
    case StatusCode::kResourceExhausted: return 429;
    case StatusCode::kUnavailable: return 503;
    case StatusCode::kAborted:  // by the server's own end: the client is still there
      return 503;
    case StatusCode::kDataLoss:
    case StatusCode::kFailedPrecondition:
    case StatusCode::kInternal: return 500;
  }
  return 500;
}

OrderedJson error_json(int status,
                       std::string_view message,
                       std::string_view param,
                       std::string_view code) {
  return {{"error",
           {{"message", message},
            {"type", error_type(status)},
            {"param", string_or_null(param)},
            {"code", string_or_null(code)}}}};
}

OrderedJson error_json(const Status& status) {
  TENON_CHECK(!status.ok());
  return error_json(http_status(status), status.message(), status.param(), error_code(status));
}

HttpResponse json_response(int status, const OrderedJson& body) {
  HttpResponse response;
  response.status = status;
  response.content_type = "application/json";
  response.body = dump_json(body);
  if (status == 429 || status == 503) response.headers.emplace_back("Retry-After", "1");
  return response;
}

HttpResponse error_response(const Status& status) {
  return json_response(http_status(status), error_json(status));
}

HttpResponse error_response(int status, std::string_view message, std::string_view code) {
  return json_response(status, error_json(status, message, {}, code));
}

}  // namespace tenon
