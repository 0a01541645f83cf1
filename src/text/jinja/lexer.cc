#include "text/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "text/jinja/string_literal.h"
#include "text/jinja/unicode.h"

namespace tenon::jinja {
namespace {

// Longest first, so that "//" is not read as "/" twice.
constexpr std::array<std::string_view, 26> kOperators = {
    "**", "//", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
    "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::string normalise_newlines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
      continue;
    }
    text += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (text.ends_with('\n')) text.pop_back();  // keep_trailing_newline is off
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  Result<std::vector<Token>> run() {
    while (position_ < source_.size()) TENON_RETURN_IF_ERROR(lex_data());
    emit(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  // ---- text outside of tags

  Status lex_data() {
    const size_t tag = find_tag(position_);
    if (tag == std::string::npos) {
      emit_data(rest(position_));
      move_to(source_.size());
      return ok_status();
    }
    const char type = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    const bool has_sign = sign == '-' || sign == '+';
    emit_data(strip_before_tag(between(position_, tag), has_sign ? sign : '\0', type == '{'));
    move_to(tag);
    if (type == '%') {
      if (const auto raw_end = match_raw_begin(tag)) return lex_raw(*raw_end);
    }
    const size_t inside = tag + (has_sign ? 3 : 2);
    if (type == '#') return lex_comment(inside);
    emit(type == '{' ? TokenKind::kExpressionBegin : TokenKind::kBlockBegin, "");
    move_to(inside);
    return lex_tag(type == '{' ? '}' : '%');
  }

  [[nodiscard]] size_t find_tag(size_t from) const {
    for (size_t at = source_.find('{', from); at != std::string::npos;
         at = source_.find('{', at + 1)) {
      if (at + 1 >= source_.size()) break;
      const char next = source_[at + 1];
      if (next == '{' || next == '%' || next == '#') return at;
    }
    return std::string::npos;
  }

  // The text before a tag, cut as the tag's sign or lstrip_blocks want it.
  [[nodiscard]] std::string_view strip_before_tag(std::string_view text,
                                                  char sign,
                                                  bool is_expression) const {
    if (sign == '-') return strip_space_right(text);
    if (sign == '+' || is_expression) return text;
    const size_t newline = text.rfind('\n');
    const bool at_line_start = position_ == 0 || source_[position_ - 1] == '\n';
    if (newline == std::string_view::npos && !at_line_start) return text;
    const size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
    const std::string_view stripped = strip_space_right(text);
    return stripped.size() <= line_begin ? text.substr(0, line_begin) : text;
  }

  Status lex_comment(size_t inside) {
    const size_t end = source_.find("#}", inside);
    if (end == std::string::npos) return template_error(line_, "missing end of comment tag");
    const char sign = end > inside ? source_[end - 1] : '\0';
    move_to(after_tag(end + 2, sign));
    return ok_status();
  }

  // Position behind a tag that ends at `end`: trim_blocks takes one newline, '-' all white space.
  [[nodiscard]] size_t after_tag(size_t end, char sign) const {
    if (sign == '-') return skip_space(end);
    if (sign != '+' && end < source_.size() && source_[end] == '\n') return end + 1;
    return end;
  }

  // Whether `{% raw %}` stands here; the position behind it if so.
  [[nodiscard]] std::optional<size_t> match_raw_begin(size_t tag) const {
    size_t at = tag + 2;
    if (at < source_.size() && (source_[at] == '-' || source_[at] == '+')) ++at;
    at = skip_space(at);
    if (rest(at).substr(0, 3) != "raw") return std::nullopt;
    at = skip_space(at + 3);
    if (rest(at).starts_with("-%}")) return skip_space(at + 3);
    if (rest(at).starts_with("%}")) return at + 2;
    return std::nullopt;
  }

  Status lex_raw(size_t body) {
    move_to(body);
    for (size_t tag = source_.find("{%", body); tag != std::string::npos;
         tag = source_.find("{%", tag + 1)) {
      size_t at = tag + 2;
      const char sign =
          at < source_.size() && (source_[at] == '-' || source_[at] == '+') ? source_[at] : '\0';
      at = skip_space(at + (sign != '\0' ? 1 : 0));
      if (!rest(at).starts_with("endraw")) continue;
      at = skip_space(at + 6);
      char end_sign = '\0';
      if (at < source_.size() && (source_[at] == '-' || source_[at] == '+'))
        end_sign = source_[at++];
      if (!rest(at).starts_with("%}")) continue;
      emit_data(strip_before_tag(between(body, tag), sign, false));
      move_to(after_tag(at + 2, end_sign));
      return ok_status();
    }
    return template_error(line_, "missing end of raw directive");
  }

  // ---- inside of tags

  Status lex_tag(char end_character) {
    brackets_.clear();
    while (true) {
      if (position_ >= source_.size()) return ok_status();  // the parser says what is missing
      const CodePoint c = decode_code_point(source_, position_);
      if (is_space(c.value)) {
        move_to(position_ + c.size);
      } else if (brackets_.empty() && lex_tag_end(end_character)) {
        return ok_status();
      } else {
        TENON_RETURN_IF_ERROR(lex_token(c));
      }
    }
  }

  bool lex_tag_end(char end_character) {
    const std::array<char, 2> end = {end_character, '}'};
    const char first = source_[position_];
    // "+%}" keeps the newline; "+}}" does not exist.
    const char sign = first == '-' || (first == '+' && end_character == '%') ? first : '\0';
    const size_t at = position_ + (sign != '\0' ? 1 : 0);
    if (!rest(at).starts_with(std::string_view(end.data(), end.size()))) return false;
    const bool is_block = end_character == '%';
    emit(is_block ? TokenKind::kBlockEnd : TokenKind::kExpressionEnd, "");
    move_to(is_block || sign == '-' ? after_tag(at + 2, sign) : at + 2);
    return true;
  }

  Status lex_token(const CodePoint& c) {
    const char first = source_[position_];
    if (is_digit(first)) return lex_number();
    if (first == '\'' || first == '"') return lex_string(first);
    if (first == '_' || is_alphabetic(c.value)) return lex_name();
    for (const std::string_view op : kOperators) {
      if (rest(position_).starts_with(op)) return lex_operator(op);
    }
    return template_error(
        line_, std::string("unexpected character '") + source_.substr(position_, c.size) + "'");
  }

  Status lex_operator(std::string_view op) {
    if (op == "(" || op == "[" || op == "{") {
      brackets_ += op == "(" ? ')' : op == "[" ? ']' : '}';
    } else if (op == ")" || op == "]" || op == "}") {
      if (brackets_.empty()) return template_error(line_, "unexpected '" + std::string(op) + "'");
      if (brackets_.back() != op[0]) {
        return template_error(
            line_, std::string("unexpected '") + op[0] + "', expected '" + brackets_.back() + "'");
      }
      brackets_.pop_back();
    }
    emit(TokenKind::kOperator, op);
    move_to(position_ + op.size());
    return ok_status();
  }

  Status lex_name() {
    size_t end = position_;
    while (end < source_.size()) {
      const CodePoint c = decode_code_point(source_, end);
      if (!is_word(c.value)) break;
      end += c.size;
    }
    emit(TokenKind::kName, between(position_, end));
    move_to(end);
    return ok_status();
  }

  Status lex_string(char quote) {
    size_t end = position_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) return template_error(line_, "a string is not closed");
    Result<std::string> value = unescape_string(between(position_ + 1, end));
    if (!value.ok()) return template_error(line_, value.status().message());
    emit(TokenKind::kString, value.value());
    move_to(end + 1);
    return ok_status();
  }

  // Digits with single underscores between them, from `at`; returns the position behind them.
  size_t take_digits(size_t at, std::string& digits) const {
    while (at < source_.size()) {
      if (is_digit(source_[at])) {
        digits += source_[at++];
      } else if (source_[at] == '_' && !digits.empty() && at + 1 < source_.size() &&
                 is_digit(source_[at + 1])) {
        ++at;
      } else {
        break;
      }
    }
    return at;
  }

  Status lex_number() {
    if (const int base = prefixed_base(); base != 0) return lex_prefixed_integer(base);
    std::string digits;
    size_t at = take_digits(position_, digits);
    const bool after_dot = position_ > 0 && source_[position_ - 1] == '.';  // x.0.1: two indices
    bool is_float = false;
    if (!after_dot && at + 1 < source_.size() && source_[at] == '.' && is_digit(source_[at + 1])) {
      is_float = true;
      digits += '.';
      std::string fraction;
      at = take_digits(at + 1, fraction);
      digits += fraction;
    }
    if (!after_dot && at < source_.size() && (source_[at] == 'e' || source_[at] == 'E')) {
      size_t exponent = at + 1;
      const bool has_sign =
          exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-');
      if (exponent + (has_sign ? 1 : 0) < source_.size() &&
          is_digit(source_[exponent + (has_sign ? 1 : 0)])) {
        is_float = true;
        digits += 'e';
        if (has_sign) digits += source_[exponent++];
        std::string power;
        at = take_digits(exponent, power);
        digits += power;
      }
    }
    Token& token = emit(is_float ? TokenKind::kFloat : TokenKind::kInteger, digits);
    if (is_float) {
      token.number = Value::real(std::strtod(digits.c_str(), nullptr));
    } else {
      if (digits.size() > 1 && digits[0] == '0' &&
          digits.find_first_not_of('0') != std::string::npos) {
        return template_error(line_, "a number may not begin with 0");
      }
      TENON_RETURN_IF_ERROR(read_integer(digits, 10, token));
    }
    move_to(at);
    return ok_status();
  }

  [[nodiscard]] int prefixed_base() const {
    if (source_[position_] != '0' || position_ + 1 >= source_.size()) return 0;
    switch (source_[position_ + 1]) {
      case 'x':
      case 'X': return 16;
      case 'o':
      case 'O': return 8;
      case 'b':
      case 'B': return 2;
      default: return 0;
    }
  }

  Status lex_prefixed_integer(int base) {
    size_t at = position_ + 2;
    std::string digits;
    while (at < source_.size() &&
           (source_[at] == '_' || std::isxdigit(static_cast<unsigned char>(source_[at])) != 0)) {
      if (source_[at] != '_') digits += source_[at];
      ++at;
    }
    Token& token = emit(TokenKind::kInteger, digits);
    TENON_RETURN_IF_ERROR(read_integer(digits, base, token));
    move_to(at);
    return ok_status();
  }

  Status read_integer(const std::string& digits, int base, Token& token) const {
    const auto value = parse_integer(digits, base);
    if (!value) return template_error(line_, "not an integer that can be represented: " + digits);
    token.number = Value::integer(*value);
    return ok_status();
  }

  // ---- the source

  [[nodiscard]] std::string_view rest(size_t at) const {
    return at < source_.size() ? std::string_view(source_).substr(at) : std::string_view();
  }
  [[nodiscard]] std::string_view between(size_t begin, size_t end) const {
    return std::string_view(source_).substr(begin, end - begin);
  }
  [[nodiscard]] size_t skip_space(size_t at) const {
    while (at < source_.size()) {
      const CodePoint c = decode_code_point(source_, at);
      if (!is_space(c.value)) break;
      at += c.size;
    }
    return at;
  }
  void move_to(size_t position) {
    position = std::min(position, source_.size());
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(position_),
                                         source_.begin() + static_cast<ptrdiff_t>(position), '\n'));
    position_ = position;
  }
  Token& emit(TokenKind kind, std::string_view text) {
    tokens_.push_back({kind, line_, std::string(text), Value()});
    return tokens_.back();
  }
  void emit_data(std::string_view text) {
    if (!text.empty()) emit(TokenKind::kData, text);
  }

  std::string source_;
  size_t position_ = 0;
  int line_ = 1;
  std::string brackets_;  // the closing ones still to come
  std::vector<Token> tokens_;
};

}  // namespace

Status template_error(int line, std::string_view message) {
  return invalid_argument("chat template, line {}: {}", line, message);
}

Result<std::vector<Token>> tokenize(std::string_view source) {
  return Lexer(normalise_newlines(source)).run();
}

}  // namespace tenon::jinja
