// Status and Result<T>: how Tenon reports what input, files or requests can cause.
//
// Purpose:       every fallible call returns Status or Result<T>; programming errors are
// TENON_CHECKs
//                (base/check.h); exceptions never cross a Tenon interface.
// Ownership:     values; a Status owns its message.
// Thread safety: immutable after construction, so safe to read from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace tenon {

enum class StatusCode : int32_t {
  kOk = 0,
  kInvalidArgument,     // the caller's input is wrong (HTTP 400)
  kNotFound,            // a named thing does not exist (HTTP 404)
  kUnsupported,         // understood, but this build, backend or model cannot do it
  kDataLoss,            // a file is truncated or corrupt
  kResourceExhausted,   // queue full, out of memory or blocks (HTTP 429)
  kUnavailable,         // loading or draining; try again later (HTTP 503)
  kFailedPrecondition,  // cannot be done this way; the caller has another
  kAborted,             // cancelled by the caller
  kInternal,            // a failure inside Tenon (HTTP 500)
};

[[nodiscard]] std::string_view status_code_name(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  [[nodiscard]] bool ok() const { return code_ == StatusCode::kOk; }
  [[nodiscard]] StatusCode code() const { return code_; }
  [[nodiscard]] const std::string& message() const { return message_; }

  // Name of the request field the error is about ("temperature"), empty if none.
  [[nodiscard]] const std::string& param() const { return param_; }
  Status& with_param(std::string param) {
    param_ = std::move(param);
    return *this;
  }
  // Puts `where` in front of the message, e.g. a file name: "model.gguf: tensor 'w': ...".
  Status& with_context(std::string_view where) {
    message_ = std::string(where) + ": " + message_;
    return *this;
  }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
  std::string param_;
};

inline Status ok_status() {
  return {};
}

// A value or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value)
      : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Status status)
      : state_(std::in_place_index<1>, std::move(status)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool ok() const { return state_.index() == 0; }
  [[nodiscard]] Status status() const { return ok() ? Status() : std::get<1>(state_); }

  // Requires: ok(). Throws std::bad_variant_access otherwise, which is a bug in the caller.
  [[nodiscard]] T& value() & { return std::get<0>(state_); }
  [[nodiscard]] const T& value() const& { return std::get<0>(state_); }
  [[nodiscard]] T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace tenon
