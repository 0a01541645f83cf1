// Oniguruma (Ruby syntax, UTF-8) to PCRE2. Where the two differ:
//   \s      Onig: White_Space. PCRE2 with UCP adds U+180E.       -> spelt out
//   \d      Nd in both                                           -> as \p{Nd}
//   \w, \b  differ in letters-like symbols and marks             -> refused
//   \p{L}... PCRE2 has older Unicode tables                     -> the later members are added
//   \p{Han} PCRE2 means script extensions                        -> refused
//   \v, \h  other meanings                                       -> \v spelt out, \h refused
//   x{,n}   PCRE2 10.42 reads it literally                       -> x{0,n}
//   x{n}+, x{n}?  Onig: a repeat of the repeat, not possessive or lazy -> refused
//   nested classes, &&                                           -> refused
#include <algorithm>
#include <array>

#include "text/regex.h"
#include "text/unicode_differences.h"
#include "text/utf8.h"

namespace tenon {
namespace {

constexpr std::string_view kWhiteSpace =
    R"(\x{09}-\x{0D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

// Properties with the same meaning in both. Not C and Cn, whose members change with every Unicode
// version. Nor Mn and Mc, between which a character has moved, nor scripts, for the same reason.
constexpr std::array<std::string_view, 29> kProperties = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps",
    "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "Cc"};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_hex(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  Result<std::string> run() {
    if (!is_valid_utf8(pattern_))
      return unsupported("a regular expression that is not valid UTF-8");
    // At the very beginning an option group covers the whole pattern in both syntaxes.
    if (pattern_.starts_with("(?i)")) copy(4);
    while (!done()) {
      const char c = peek();
      if (c == '\\') {
        TENON_RETURN_IF_ERROR(escape(false));
      } else if (c == '[') {
        TENON_RETURN_IF_ERROR(character_class());
      } else if (c == '(') {
        TENON_RETURN_IF_ERROR(group());
      } else if (c == '{') {
        TENON_RETURN_IF_ERROR(interval());
      } else if (c == ']' || c == '}') {
        return refuse(std::string("a bare '") + c + "'");
      } else {
        copy(1);  // ordinary characters, . ^ $ | ) * + ? and the lazy and possessive forms of the
                  // last three
      }
    }
    return std::move(out_);
  }

 private:
  [[nodiscard]] bool done() const { return at_ >= pattern_.size(); }
  [[nodiscard]] char peek(size_t ahead = 0) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }
  void copy(size_t count) {
    out_ += pattern_.substr(at_, count);
    at_ += count;
  }
  [[nodiscard]] Status refuse(const std::string& what) const {
    return unsupported(
        "regular expression '{}': {} at offset {} is not known to mean the same here", pattern_,
        what, at_);
  }

  Status property(std::string_view name, bool negated, bool in_class) {
    if (std::find(kProperties.begin(), kProperties.end(), name) == kProperties.end()) {
      return refuse("the property '" + std::string(name) + "'");
    }
    const std::string later = later_members(name);
    if (in_class) {
      if (negated && !later.empty()) return refuse("\\P inside a class");
      out_ += (negated ? "\\P{" : "\\p{") + std::string(name) + "}" + later;
    } else {
      out_ += (negated ? "[^\\p{" : "[\\p{") + std::string(name) + "}" + later + "]";
    }
    return ok_status();
  }

  Status named_property(bool in_class) {
    const size_t close = pattern_.find('}', at_);
    if (peek(2) != '{' || close == std::string_view::npos) return refuse("a malformed \\p");
    TENON_RETURN_IF_ERROR(
        property(pattern_.substr(at_ + 3, close - at_ - 3), peek(1) == 'P', in_class));
    at_ = close + 1;
    return ok_status();
  }

  // \xHH, \x{H...}, \uHHHH
  Status code_point() {
    size_t begin = at_ + 2;
    size_t end = begin;
    const bool braces = peek(1) == 'x' && peek(2) == '{';
    if (braces) ++begin, ++end;
    const size_t most = braces ? 6 : (peek(1) == 'u' ? 4 : 2);
    while (end < pattern_.size() && end - begin < most && is_hex(pattern_[end])) ++end;
    const bool closed = !braces || (end < pattern_.size() && pattern_[end] == '}');
    const bool complete = peek(1) == 'u' ? end - begin == 4 : end > begin;
    // \x80 and up without braces is a byte in Onig.
    const bool byte =
        peek(1) == 'x' && !braces && complete && (end - begin == 2 && pattern_[begin] > '7');
    if (!closed || !complete || byte) return refuse("a numeric escape");
    out_ += "\\x{" + std::string(pattern_.substr(begin, end - begin)) + "}";
    at_ = end + (braces ? 1 : 0);
    return ok_status();
  }

  Status escape(bool in_class) {
    const char c = peek(1);
    const auto put = [&](std::string_view text) {
      out_ += text;
      at_ += 2;
      return ok_status();
    };
    switch (c) {
      case 's':
        return put(in_class ? std::string(kWhiteSpace) : "[" + std::string(kWhiteSpace) + "]");
      case 'S':
        if (in_class) return refuse("\\S inside a class");
        return put("[^" + std::string(kWhiteSpace) + "]");
      case 'd':
      case 'D':
        TENON_RETURN_IF_ERROR(property("Nd", c == 'D', in_class));
        at_ += 2;
        return ok_status();
      case 'p':
      case 'P': return named_property(in_class);
      case 'x':
      case 'u': return code_point();
      case 'v': return put("\\x{0B}");
      case 'n':
      case 'r':
      case 't':
      case 'f': copy(2); return ok_status();
      case 'A':
      case 'z':
        if (in_class) return refuse("an anchor inside a class");
        copy(2);
        return ok_status();
      default: break;
    }
    const bool punctuation =
        c > ' ' && c < 0x7F && !is_digit(c) && !((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
    if (!punctuation && c != ' ') return refuse(std::string("the escape \\") + c);
    copy(2);
    return ok_status();
  }

  Status character_class() {
    copy(1);
    if (peek() == '^') copy(1);
    if (peek() == ']') return refuse("an empty class");
    while (!done() && peek() != ']') {
      if (peek() == '[') return refuse("a nested class");
      if (peek() == '&' && peek(1) == '&') return refuse("a class intersection");
      if (peek() == '\\') {
        TENON_RETURN_IF_ERROR(escape(true));
      } else {
        copy(1);
      }
    }
    if (done()) return refuse("a class without end");
    copy(1);
    return ok_status();
  }

  Status group() {
    if (peek(1) != '?') {
      copy(1);
      return ok_status();
    }
    for (const std::string_view known : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (!pattern_.substr(at_).starts_with(known)) continue;
      copy(known.size());
      return ok_status();
    }
    return refuse("this kind of group");
  }

  Status interval() {
    const size_t close = pattern_.find('}', at_);
    if (close == std::string_view::npos) return refuse("a bare '{'");
    std::string_view body = pattern_.substr(at_ + 1, close - at_ - 1);
    const size_t comma = body.find(',');
    const std::string_view low = body.substr(0, comma);
    const std::string_view high =
        comma == std::string_view::npos ? std::string_view() : body.substr(comma + 1);
    const auto number = [](std::string_view s) {
      return s.size() <= 4 && std::all_of(s.begin(), s.end(), is_digit);
    };
    if (!number(low) || !number(high) || (low.empty() && high.empty())) return refuse("a bare '{'");
    at_ = close + 1;
    if (peek() == '+' || (peek() == '?' && comma == std::string_view::npos))
      return refuse("a repeated interval");
    out_ += '{';
    out_ += low.empty() ? "0" : low;
    if (comma != std::string_view::npos) out_ += ',';
    out_ += high;
    out_ += '}';
    return ok_status();
  }

  std::string_view pattern_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

Result<std::string> translate_regex(std::string_view pattern) {
  return Translator(pattern).run();
}

}  // namespace tenon
