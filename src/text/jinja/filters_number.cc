#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>

#include "text/jinja/filters.h"
#include "text/jinja/operators.h"
#include "text/jinja/runtime.h"
#include "text/jinja/string_literal.h"
#include "text/jinja/text_operations.h"

namespace tenon::jinja {
namespace {

Result<Value> abs_filter(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  TENON_RETURN_IF_ERROR(Parameters::bind(arguments, {}).status());
  if (self.is_undefined()) return invalid_argument("{}", self.undefined_reason());
  if (!self.is_number())
    return invalid_argument("bad operand type for abs(): '{}'", self.type_name());
  if (self.kind() == Kind::kFloat) return Value::real(std::abs(self.as_real()));
  return self.as_integer() < 0 ? negate(self) : Value::integer(self.as_integer());
}

// Digits with single underscores between them allowed, as Python reads numbers.
std::optional<std::string> plain_number(const MarkedText& text) {
  const std::string bytes = strip(text, nullptr, Side::kBoth).bytes();
  std::string result;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != '_') {
      result += bytes[i];
    } else if (i == 0 || i + 1 == bytes.size() || bytes[i - 1] == '_') {
      return std::nullopt;
    }
  }
  return result;
}

std::optional<double> read_float(const MarkedText& text) {
  const auto plain = plain_number(text);
  // strtod knows more forms than Python: hexadecimal ones and nan(...).
  if (!plain || plain->empty() || plain->find_first_of("xX(") != std::string::npos)
    return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(plain->c_str(), &end);
  if (end != plain->c_str() + plain->size()) return std::nullopt;
  return value;
}

std::optional<Integer> read_integer(const MarkedText& text, int64_t base) {
  auto plain = plain_number(text);
  if (!plain || base < 2 || base > 36) return std::nullopt;
  std::string& digits = *plain;
  const size_t sign = !digits.empty() && (digits[0] == '-' || digits[0] == '+') ? 1 : 0;
  if (digits.size() > sign + 1 && digits[sign] == '0') {
    const char prefix = static_cast<char>(digits[sign + 1] | 0x20);
    if ((base == 16 && prefix == 'x') || (base == 8 && prefix == 'o') ||
        (base == 2 && prefix == 'b')) {
      digits.erase(sign, 2);
    }
  }
  return parse_integer(digits, static_cast<int>(base));
}

std::optional<Integer> truncate_float(double value) {
  if (!(std::abs(value) < 0x1p126)) return std::nullopt;
  return static_cast<Integer>(value);
}

Result<Value> int_filter(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters,
                         Parameters::bind(arguments, {"default", "base"}));
  TENON_ASSIGN_OR_RETURN(const int64_t base, parameters.integer(1, 10));
  if (self.is_undefined()) return invalid_argument("{}", self.undefined_reason());
  std::optional<Integer> result;
  if (self.is_integral()) {
    result = self.as_integer();
  } else if (self.kind() == Kind::kFloat) {
    result = truncate_float(self.as_real());
  } else if (self.is_string()) {
    result = read_integer(self.as_text(), base);
    if (!result) {
      if (const auto real = read_float(self.as_text())) result = truncate_float(*real);
    }
  }
  if (result) return Value::integer(*result);
  return parameters.get(0) == nullptr ? Value::integer(0) : *parameters.get(0);
}

Result<Value> float_filter(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters, Parameters::bind(arguments, {"default"}));
  if (self.is_undefined()) return invalid_argument("{}", self.undefined_reason());
  if (self.is_number()) return Value::real(self.as_real());
  if (self.is_string()) {
    if (const auto value = read_float(self.as_text())) return Value::real(*value);
  }
  return parameters.get(0) == nullptr ? Value::real(0.0) : *parameters.get(0);
}

// Python's round(): the decimal text nearest to the exact value, ties to even.
double round_to(double value, int64_t digits) {
  if (!std::isfinite(value) || digits > 300) return value;
  if (digits >= 0) return std::strtod(fmt::format("{:.{}f}", value, digits).c_str(), nullptr);
  if (digits < -308) return std::copysign(0.0, value);
  const double unit = std::pow(10.0, static_cast<double>(-digits));
  return std::nearbyint(value / unit) * unit;
}

Result<Value> round_integer(Integer value, int64_t digits) {
  if (digits >= 0) return Value::integer(value);
  if (digits < -37) return Value::integer(0);
  Integer unit = 1;
  for (int64_t i = digits; i < 0; ++i) unit *= 10;
  Integer quotient = value / unit;
  const Integer remainder = value % unit;
  const Integer twice = (remainder < 0 ? -remainder : remainder) * 2;
  if (twice > unit || (twice == unit && quotient % 2 != 0)) quotient += value < 0 ? -1 : 1;
  return Value::integer(quotient * unit);
}

Result<Value> round_filter(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters,
                         Parameters::bind(arguments, {"precision", "method"}));
  TENON_ASSIGN_OR_RETURN(const int64_t digits, parameters.integer(0, 0));
  std::string method = "common";
  if (parameters.get(1) != nullptr) {
    TENON_ASSIGN_OR_RETURN(const TextPtr given, parameters.text(1));
    method = given->bytes();
  }
  if (method != "common" && method != "ceil" && method != "floor") {
    return invalid_argument("method must be common, ceil or floor");
  }
  if (self.is_undefined()) return invalid_argument("{}", self.undefined_reason());
  if (!self.is_number()) return invalid_argument("a number is needed, not {}", self.type_name());
  if (method == "common") {
    if (self.is_integral()) return round_integer(self.as_integer(), digits);
    return Value::real(round_to(self.as_real(), digits));
  }
  if (digits < -300 || digits > 300) return invalid_argument("the precision is out of range");
  const double unit = std::pow(10.0, static_cast<double>(digits));
  const double scaled = self.as_real() * unit;
  return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / unit);
}

Result<Value> sum_filter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters,
                         Parameters::bind(arguments, {"attribute", "start"}));
  TENON_ASSIGN_OR_RETURN(const SequencePtr items, iterate(runtime.budget(), self));
  const Value* attribute = parameters.get_unless_none(0);
  const AttributePath path(attribute == nullptr ? Value::none() : *attribute, nullptr);
  Value total = parameters.get(1) == nullptr ? Value::integer(0) : *parameters.get(1);
  if (total.is_string()) return invalid_argument("sum() can't sum strings");
  for (const Value& item : items->items) {
    TENON_ASSIGN_OR_RETURN(const Value addend, path.get(runtime, item));
    TENON_ASSIGN_OR_RETURN(total, apply(runtime.budget(), BinaryOperator::kAdd, total, addend));
  }
  return total;
}

Result<Value> filesizeformat(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters, Parameters::bind(arguments, {"binary"}));
  std::optional<double> bytes;
  if (self.is_number()) bytes = self.as_real();
  if (self.is_string()) bytes = read_float(self.as_text());
  if (!bytes) return invalid_argument("a number is needed, not {}", self.type_name());
  static constexpr std::string_view kPrefixes = "kMGTPEZY";
  const bool binary = parameters.flag(0);
  const double base = binary ? 1024 : 1000;
  if (*bytes == 1) return Value::text("1 Byte");
  if (*bytes < base) return Value::text(fmt::format("{} Bytes", static_cast<int64_t>(*bytes)));
  double unit = base;
  size_t prefix = 0;
  while (prefix + 1 < kPrefixes.size() && *bytes >= unit * base) {
    unit *= base;
    ++prefix;
  }
  const char letter = binary && prefix == 0 ? 'K' : kPrefixes[prefix];
  return Value::text(fmt::format("{:.1f} {}{}", *bytes / unit, letter, binary ? "iB" : "B"));
}

constexpr NativeEntry kFilters[] = {
    {"abs", abs_filter},     {"int", int_filter}, {"float", float_filter},
    {"round", round_filter}, {"sum", sum_filter}, {"filesizeformat", filesizeformat},
};

}  // namespace

std::span<const NativeEntry> number_filters() {
  return kFilters;
}

}  // namespace tenon::jinja
