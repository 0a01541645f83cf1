#include "text/jinja/format_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/jinja/printing.h"
#include "text/jinja/text_operations.h"
#include "text/jinja/unicode.h"

namespace tenon::jinja {
namespace {

constexpr int64_t kMaxPrecision = 300;

bool is_align(char c) {
  return c == '<' || c == '>' || c == '^' || c == '=';
}

std::string group_thousands(std::string digits) {
  const size_t end = std::min(digits.find_first_not_of("0123456789"), digits.size());
  for (auto at = static_cast<ptrdiff_t>(end) - 3; at > 0; at -= 3)
    digits.insert(static_cast<size_t>(at), 1, ',');
  return digits;
}

Result<std::string> integer_digits(Integer magnitude, const FormatSpec& spec) {
  switch (spec.type) {
    case '\0':
    case 'd':
    case 'i':
    case 'u': return fmt::format("{}", magnitude);
    case 'x':
      return spec.alternate ? fmt::format("{:#x}", magnitude) : fmt::format("{:x}", magnitude);
    case 'X':
      return spec.alternate ? fmt::format("{:#X}", magnitude) : fmt::format("{:X}", magnitude);
    case 'o': return (spec.alternate ? "0o" : "") + fmt::format("{:o}", magnitude);
    case 'b':
      return spec.alternate ? fmt::format("{:#b}", magnitude) : fmt::format("{:b}", magnitude);
    default: return invalid_argument("unknown format '{}' for an integer", spec.type);
  }
}

Result<std::string> float_digits(double magnitude, const FormatSpec& spec) {
  const auto precision = static_cast<int>(spec.precision < 0 ? 6 : spec.precision);
  switch (spec.type) {
    case '\0':
      if (spec.precision < 0) return print_float(magnitude);
      return fmt::format("{:.{}g}", magnitude, precision);
    case 'f':
    case 'F': return fmt::format("{:.{}f}", magnitude, precision);
    case 'e': return fmt::format("{:.{}e}", magnitude, precision);
    case 'E': return fmt::format("{:.{}E}", magnitude, precision);
    case 'g': return fmt::format("{:.{}g}", magnitude, precision);
    case 'G': return fmt::format("{:.{}G}", magnitude, precision);
    case '%': return fmt::format("{:.{}f}%", magnitude * 100, precision);
    default: return invalid_argument("unknown format '{}' for a float", spec.type);
  }
}

bool is_float_type(char type) {
  return std::string_view("fFeEgG%").find(type) != std::string_view::npos;
}

Status append_number(Budget& budget, MarkedText& out, const Value& value, const FormatSpec& spec) {
  const bool as_float =
      value.kind() == Kind::kFloat || (spec.type != '\0' && is_float_type(spec.type));
  const bool negative = as_float ? std::signbit(value.as_real()) : value.as_integer() < 0;
  Result<std::string> digits =
      as_float ? float_digits(std::abs(value.as_real()), spec)
               : integer_digits(negative ? -value.as_integer() : value.as_integer(), spec);
  if (!digits.ok()) return digits.status();
  const MarkedText body(spec.group_thousands ? group_thousands(digits.value()) : digits.value());
  const std::string_view sign = negative           ? "-"
                                : spec.sign == '+' ? "+"
                                : spec.sign == ' ' ? " "
                                                   : "";
  if (spec.align == '=') {
    out.append(sign, false);
    TENON_ASSIGN_OR_RETURN(
        const MarkedText padded,
        pad(budget, body, spec.width - static_cast<int64_t>(sign.size()), spec.fill, Side::kRight));
    out.append(padded);
    return ok_status();
  }
  MarkedText signed_body{std::string(sign)};
  signed_body.append(body);
  const Side side = spec.align == '<'   ? Side::kLeft
                    : spec.align == '^' ? Side::kBoth
                                        : Side::kRight;
  TENON_ASSIGN_OR_RETURN(const MarkedText padded,
                         pad(budget, signed_body, spec.width, spec.fill, side));
  out.append(padded);
  return ok_status();
}

Result<int64_t> take_number(std::string_view text, size_t& at, int64_t limit) {
  int64_t number = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
    number = number * 10 + (text[at] - '0');
    if (number > limit) return invalid_argument("a width or precision in a format is too large");
  }
  return number;
}

}  // namespace

Result<FormatSpec> parse_format_spec(const MarkedText& text) {
  FormatSpec spec;
  const std::string_view view = text.view();
  size_t at = 0;
  if (!view.empty()) {
    const size_t first = decode_code_point(view, 0).size;
    if (first < view.size() && is_align(view[first])) {
      spec.fill = text.slice(0, first);
      spec.align = view[first];
      at = first + 1;
    } else if (is_align(view[0])) {
      spec.align = view[0];
      at = 1;
    }
  }
  const auto take = [&](char c) {
    return at < view.size() && view[at] == c ? (++at, true) : false;
  };
  for (const char sign : {'+', '-', ' '}) {
    if (take(sign)) {
      spec.sign = sign;
      break;
    }
  }
  spec.alternate = take('#');
  if (take('0') && spec.align == '\0') {
    spec.fill = MarkedText("0");
    spec.align = '=';
  }
  TENON_ASSIGN_OR_RETURN(spec.width, take_number(view, at, static_cast<int64_t>(kMaxTextBytes)));
  spec.group_thousands = take(',');
  if (take('.')) {
    TENON_ASSIGN_OR_RETURN(spec.precision, take_number(view, at, kMaxPrecision));
  }
  if (at < view.size()) spec.type = view[at++];
  if (at != view.size()) return invalid_argument("invalid format specifier '{}'", view);
  return spec;
}

Status append_formatted(Budget& budget,
                        MarkedText& out,
                        const Value& value,
                        const FormatSpec& spec) {
  const bool is_text = spec.type == 's' || spec.type == '\0';
  if (value.is_number() && !(value.kind() == Kind::kBool && is_text) && spec.type != 's') {
    return append_number(budget, out, value, spec);
  }
  if (!is_text)
    return invalid_argument("unknown format '{}' for an object of type {}", spec.type,
                            value.type_name());
  TENON_ASSIGN_OR_RETURN(MarkedText text, to_text(budget, value));
  if (spec.precision >= 0)
    text = text.slice(0, code_point_offset(text.view(), static_cast<size_t>(spec.precision)));
  const Side side = spec.align == '>'   ? Side::kRight
                    : spec.align == '^' ? Side::kBoth
                                        : Side::kLeft;
  TENON_ASSIGN_OR_RETURN(const MarkedText padded, pad(budget, text, spec.width, spec.fill, side));
  TENON_RETURN_IF_ERROR(budget.reserve_text(out.size() + padded.size()));
  out.append(padded);
  return ok_status();
}

}  // namespace tenon::jinja
