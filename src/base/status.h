// Helpers around tenon::Status for code inside Tenon: formatted construction and early return.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "tenon/status.h"

namespace tenon {

template <typename... Args>
Status make_status(StatusCode code, fmt::format_string<Args...> format, Args&&... args) {
  return {code, fmt::format(format, std::forward<Args>(args)...)};
}
template <typename... Args>
Status invalid_argument(fmt::format_string<Args...> format, Args&&... args) {
  return {StatusCode::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...)};
}
template <typename... Args>
Status data_loss(fmt::format_string<Args...> format, Args&&... args) {
  return {StatusCode::kDataLoss, fmt::format(format, std::forward<Args>(args)...)};
}
template <typename... Args>
Status unsupported(fmt::format_string<Args...> format, Args&&... args) {
  return {StatusCode::kUnsupported, fmt::format(format, std::forward<Args>(args)...)};
}
template <typename... Args>
Status not_found(fmt::format_string<Args...> format, Args&&... args) {
  return {StatusCode::kNotFound, fmt::format(format, std::forward<Args>(args)...)};
}
template <typename... Args>
Status resource_exhausted(fmt::format_string<Args...> format, Args&&... args) {
  return {StatusCode::kResourceExhausted, fmt::format(format, std::forward<Args>(args)...)};
}
template <typename... Args>
Status internal_error(fmt::format_string<Args...> format, Args&&... args) {
  return {StatusCode::kInternal, fmt::format(format, std::forward<Args>(args)...)};
}

}  // namespace tenon

#define TENON_CONCAT_INNER(a, b) a##b
#define TENON_CONCAT(a, b) TENON_CONCAT_INNER(a, b)

#define TENON_RETURN_IF_ERROR(expr)                \
  do {                                             \
    ::tenon::Status tenon_status_ = (expr);        \
    if (!tenon_status_.ok()) return tenon_status_; \
  } while (false)

// TENON_ASSIGN_OR_RETURN(auto x, fallible());
#define TENON_ASSIGN_OR_RETURN(lhs, expr) \
  TENON_ASSIGN_OR_RETURN_IMPL(TENON_CONCAT(tenon_result_, __LINE__), lhs, expr)
#define TENON_ASSIGN_OR_RETURN_IMPL(result, lhs, expr) \
  auto result = (expr);                                \
  if (!result.ok()) return result.status();            \
  lhs = std::move(result).value()
