#include "text/jinja/formatting.h"

#include <cmath>

#include "text/jinja/format_spec.h"
#include "text/jinja/operators.h"
#include "text/jinja/printing.h"
#include "text/jinja/runtime.h"
#include "text/jinja/string_literal.h"

namespace tenon::jinja {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// "%(name)-5.2f" % values
class PercentFormatter {
 public:
  PercentFormatter(Budget& budget, const MarkedText& format, const Value& values)
      : budget_(budget), format_(format), view_(format.view()), values_(values) {}

  Result<MarkedText> run() {
    while (at_ < view_.size()) {
      const size_t percent = std::min(view_.find('%', at_), view_.size());
      out_.append(format_, at_, percent);
      at_ = percent;
      if (at_ < view_.size()) TENON_RETURN_IF_ERROR(field());
    }
    if (!used_name_ && !values_.is_dict() && used_ < count()) {
      return invalid_argument("not all arguments converted during string formatting");
    }
    return std::move(out_);
  }

 private:
  [[nodiscard]] size_t count() const {
    return values_.is_tuple() ? values_.as_sequence()->items.size() : 1;
  }

  Result<Value> next_value() {
    if (used_ >= count()) return invalid_argument("not enough arguments for format string");
    const size_t index = used_++;
    return values_.is_tuple() ? values_.as_sequence()->items[index] : values_;
  }

  Result<Value> named_value() {
    const size_t close = view_.find(')', at_);
    if (close == std::string_view::npos) return invalid_argument("incomplete format key");
    if (!values_.is_dict()) return invalid_argument("format requires a mapping");
    const std::string_view name = view_.substr(at_, close - at_);
    at_ = close + 1;
    used_name_ = true;
    const Value* found = values_.as_dict().find(name);
    if (found == nullptr) return invalid_argument("there is no value for '{}' in a format", name);
    return *found;
  }

  Result<int64_t> number() {
    int64_t result = 0;
    for (; at_ < view_.size() && is_digit(view_[at_]); ++at_) {
      result = result * 10 + (view_[at_] - '0');
      if (result > static_cast<int64_t>(kMaxTextBytes))
        return invalid_argument("a width in a format is too large");
    }
    return result;
  }

  Status field() {
    ++at_;  // the percent sign
    std::optional<Value> value;
    if (at_ < view_.size() && view_[at_] == '(') {
      ++at_;
      TENON_ASSIGN_OR_RETURN(value, named_value());
    }
    FormatSpec spec;
    spec.align = '>';
    for (;
         at_ < view_.size() && std::string_view("-+ #0").find(view_[at_]) != std::string_view::npos;
         ++at_) {
      const char flag = view_[at_];
      if (flag == '-') spec.align = '<';
      if (flag == '+' || (flag == ' ' && spec.sign != '+')) spec.sign = flag;
      if (flag == '#') spec.alternate = true;
      if (flag == '0' && spec.align != '<') {
        spec.align = '=';
        spec.fill = MarkedText("0");
      }
    }
    TENON_ASSIGN_OR_RETURN(spec.width, number());
    if (at_ < view_.size() && view_[at_] == '.') {
      ++at_;
      TENON_ASSIGN_OR_RETURN(spec.precision, number());
    }
    if (at_ >= view_.size()) return invalid_argument("incomplete format");
    const char type = view_[at_++];
    if (type == '%') {
      out_.append("%", false);
      return ok_status();
    }
    if (!value) {
      TENON_ASSIGN_OR_RETURN(value, next_value());
    }
    return convert(*value, type, spec);
  }

  Status convert(const Value& value, char type, FormatSpec spec) {
    if (type == 's' || type == 'r' || type == 'a') {
      spec.type = 's';
      if (spec.align == '=') {
        spec.align = '>';
        spec.fill = MarkedText(" ");
      }
      if (type == 's') return append_formatted(budget_, out_, value, spec);
      TENON_ASSIGN_OR_RETURN(MarkedText text, to_repr(budget_, value));
      return append_formatted(budget_, out_, Value::text(std::move(text)), spec);
    }
    if (!value.is_number())
      return invalid_argument("%{} format: a number is required, not {}", type, value.type_name());
    spec.type = type;
    const bool is_integer_type = std::string_view("diuxXo").find(type) != std::string_view::npos;
    if (!is_integer_type)
      return append_formatted(budget_, out_, Value::real(value.as_real()), spec);
    spec.precision = -1;
    if (value.is_integral())
      return append_formatted(budget_, out_, Value::integer(value.as_integer()), spec);
    if (type == 'x' || type == 'X' || type == 'o' || !(std::abs(value.as_real()) < 0x1p100)) {
      return invalid_argument("%{} format: an integer is required, not {}", type,
                              value.type_name());
    }
    return append_formatted(budget_, out_, Value::integer(static_cast<Integer>(value.as_real())),
                            spec);
  }

  Budget& budget_;
  const MarkedText& format_;
  std::string_view view_;
  const Value& values_;
  size_t at_ = 0;
  size_t used_ = 0;
  bool used_name_ = false;
  MarkedText out_;
};

// "{0.name[key]!r:>5}".format(...)
class BraceFormatter {
 public:
  BraceFormatter(Runtime& runtime, const MarkedText& format, const Arguments& arguments)
      : runtime_(runtime), format_(format), view_(format.view()), arguments_(arguments) {}

  Result<MarkedText> run() {
    size_t at = 0;
    while (at < view_.size()) {
      const size_t brace = std::min(view_.find_first_of("{}", at), view_.size());
      out_.append(format_, at, brace);
      if (brace == view_.size()) break;
      if (brace + 1 < view_.size() && view_[brace + 1] == view_[brace]) {
        out_.append(format_, brace, brace + 1);
        at = brace + 2;
        continue;
      }
      if (view_[brace] == '}') return invalid_argument("Single '}}' encountered in format string");
      const size_t close = view_.find_first_of("{}", brace + 1);
      if (close == std::string_view::npos)
        return invalid_argument("expected '}}' before end of string");
      if (view_[close] == '{') return invalid_argument("a format inside a format is not supported");
      TENON_RETURN_IF_ERROR(field(brace + 1, close));
      at = close + 1;
    }
    return std::move(out_);
  }

 private:
  Status field(size_t begin, size_t end) {
    const size_t name_end = std::min(view_.substr(0, end).find_first_of("!:", begin), end);
    TENON_ASSIGN_OR_RETURN(Value value, resolve(view_.substr(begin, name_end - begin)));
    size_t at = name_end;
    if (at < end && view_[at] == '!') {
      if (at + 1 >= end) return invalid_argument("a conversion is missing in a format");
      TENON_ASSIGN_OR_RETURN(MarkedText text, view_[at + 1] == 's'
                                                  ? to_text(runtime_.budget(), value)
                                                  : to_repr(runtime_.budget(), value));
      value = Value::text(std::move(text));
      at += 2;
    }
    FormatSpec spec;
    if (at < end && view_[at] == ':') {
      TENON_ASSIGN_OR_RETURN(spec, parse_format_spec(format_.slice(at + 1, end)));
    }
    return append_formatted(runtime_.budget(), out_, value, spec);
  }

  Result<Value> resolve(std::string_view path) {
    const size_t root_end = std::min(path.find_first_of(".["), path.size());
    const std::string_view root = path.substr(0, root_end);
    TENON_ASSIGN_OR_RETURN(Value value, argument(root));
    size_t at = root_end;
    while (at < path.size()) {
      const bool is_item = path[at] == '[';
      const size_t end =
          std::min(is_item ? path.find(']', at) : path.find_first_of(".[", at + 1), path.size());
      const std::string_view name = path.substr(at + 1, end - at - 1);
      if (is_item) {
        const auto index = parse_integer(name, 10);
        TENON_ASSIGN_OR_RETURN(
            value, get_item(runtime_, value, index ? Value::integer(*index) : Value::text(name)));
      } else {
        TENON_ASSIGN_OR_RETURN(value, get_attribute(runtime_, value, name));
      }
      at = end + (is_item ? 1 : 0);
    }
    return value;
  }

  Result<Value> argument(std::string_view name) {
    size_t index = next_;
    if (name.empty()) {
      ++next_;
    } else if (const auto number = parse_integer(name, 10)) {
      index = static_cast<size_t>(*number);
    } else {
      for (const auto& [key, value] : arguments_.named) {
        if (key == name) return value;
      }
      return invalid_argument("there is no value for '{}' in a format", name);
    }
    if (index >= arguments_.positional.size())
      return invalid_argument("Replacement index {} out of range", index);
    return arguments_.positional[index];
  }

  Runtime& runtime_;
  const MarkedText& format_;
  std::string_view view_;
  const Arguments& arguments_;
  size_t next_ = 0;
  MarkedText out_;
};

}  // namespace

Result<Value> format_percent(Budget& budget, const MarkedText& format, const Value& values) {
  TENON_ASSIGN_OR_RETURN(MarkedText result, PercentFormatter(budget, format, values).run());
  if (format.has_untrusted()) result.mark_all();
  return Value::text(std::move(result));
}

Result<MarkedText> format_braces(Runtime& runtime,
                                 const MarkedText& format,
                                 const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(MarkedText result, BraceFormatter(runtime, format, arguments).run());
  if (format.has_untrusted()) result.mark_all();
  return result;
}

}  // namespace tenon::jinja
