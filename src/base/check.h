// TENON_CHECK: programming errors. Prints both operands and ends the process; never for anything
// that input, a file or a request can cause (that is a Status).
#pragma once

#include <fmt/format.h>

#include <string>

namespace tenon {
[[noreturn]] void check_failed(const char* file,
                               int line,
                               const char* expression,
                               const std::string& detail);
}  // namespace tenon

#define TENON_CHECK(condition)                                              \
  do {                                                                      \
    if (!(condition)) [[unlikely]]                                          \
      ::tenon::check_failed(__FILE__, __LINE__, #condition, std::string()); \
  } while (false)

#define TENON_CHECK_OP(a, b, op)                                            \
  do {                                                                      \
    const auto& tenon_a_ = (a);                                             \
    const auto& tenon_b_ = (b);                                             \
    if (!(tenon_a_ op tenon_b_)) [[unlikely]]                               \
      ::tenon::check_failed(__FILE__, __LINE__, #a " " #op " " #b,          \
                            fmt::format("({} vs {})", tenon_a_, tenon_b_)); \
  } while (false)

#define TENON_CHECK_EQ(a, b) TENON_CHECK_OP(a, b, ==)
#define TENON_CHECK_NE(a, b) TENON_CHECK_OP(a, b, !=)
#define TENON_CHECK_LT(a, b) TENON_CHECK_OP(a, b, <)
#define TENON_CHECK_LE(a, b) TENON_CHECK_OP(a, b, <=)
#define TENON_CHECK_GT(a, b) TENON_CHECK_OP(a, b, >)
#define TENON_CHECK_GE(a, b) TENON_CHECK_OP(a, b, >=)
