#include "text/jinja/string_literal.h"

#include "text/jinja/unicode.h"

namespace tenon::jinja {
namespace {

int digit_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'z') return c - 'a' + 10;
  if (c >= 'A' && c <= 'Z') return c - 'A' + 10;
  return 99;
}

class Unescaper {
 public:
  explicit Unescaper(std::string_view literal) : literal_(literal) {}

  Result<std::string> run() {
    while (position_ < literal_.size()) {
      const char c = literal_[position_++];
      if (c != '\\' || position_ >= literal_.size()) {
        out_ += c;
      } else {
        TENON_RETURN_IF_ERROR(escape(literal_[position_++]));
      }
    }
    return std::move(out_);
  }

 private:
  Status escape(char c) {
    switch (c) {
      case '\n': return ok_status();
      case 'n': out_ += '\n'; return ok_status();
      case 't': out_ += '\t'; return ok_status();
      case 'r': out_ += '\r'; return ok_status();
      case 'a': out_ += '\a'; return ok_status();
      case 'b': out_ += '\b'; return ok_status();
      case 'f': out_ += '\f'; return ok_status();
      case 'v': out_ += '\v'; return ok_status();
      case '\\':
      case '\'':
      case '"': out_ += c; return ok_status();
      case 'x': return code_point(2);
      case 'u': return code_point(4);
      case 'U': return code_point(8);
      case 'N': return invalid_argument("\\N escapes are not supported in strings");
      default: break;
    }
    if (c >= '0' && c <= '7') return octal();
    out_ += '\\';
    out_ += c;
    return ok_status();
  }

  Status code_point(size_t digits) {
    const auto value = parse_integer(literal_.substr(position_, digits), 16);
    if (literal_.size() - position_ < digits || !value) {
      return invalid_argument("an escape in a string lacks digits");
    }
    position_ += digits;
    return append(static_cast<int64_t>(*value));
  }

  Status octal() {
    int64_t value = 0;
    size_t at = position_ - 1;
    for (; at < literal_.size() && at < position_ + 2 && literal_[at] >= '0' && literal_[at] <= '7';
         ++at) {
      value = value * 8 + (literal_[at] - '0');
    }
    position_ = at;
    return append(value);
  }

  Status append(int64_t value) {
    if (value < 0 || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
      return invalid_argument("an escape in a string names no character");
    }
    append_code_point(out_, static_cast<int32_t>(value));
    return ok_status();
  }

  std::string_view literal_;
  size_t position_ = 0;
  std::string out_;
};

}  // namespace

Result<std::string> unescape_string(std::string_view literal) {
  return Unescaper(literal).run();
}

std::optional<Integer> parse_integer(std::string_view digits, int base) {
  bool negative = false;
  if (!digits.empty() && (digits[0] == '-' || digits[0] == '+')) {
    negative = digits[0] == '-';
    digits.remove_prefix(1);
  }
  if (digits.empty()) return std::nullopt;
  Integer value = 0;
  for (const char c : digits) {
    const int digit = digit_value(c);
    if (digit >= base || __builtin_mul_overflow(value, Integer{base}, &value) ||
        __builtin_add_overflow(value, Integer{digit}, &value)) {
      return std::nullopt;
    }
  }
  return negative ? -value : value;
}

}  // namespace tenon::jinja
