#include "text/jinja/string_methods.h"

#include <algorithm>
#include <limits>

#include "text/jinja/formatting.h"
#include "text/jinja/printing.h"
#include "text/jinja/runtime.h"
#include "text/jinja/text_operations.h"
#include "text/jinja/unicode.h"

namespace tenon::jinja {
namespace {

Result<Value> strip_side(Runtime& runtime,
                         const Value& self,
                         const Arguments& arguments,
                         Side side) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters, Parameters::bind(arguments, {"chars"}));
  TENON_RETURN_IF_ERROR(runtime.budget().charge_bytes(self.as_text().size()));
  if (parameters.get_unless_none(0) == nullptr)
    return Value::text(strip(self.as_text(), nullptr, side));
  TENON_ASSIGN_OR_RETURN(const TextPtr characters, parameters.text(0));
  return Value::text(strip(self.as_text(), characters.get(), side));
}

Result<Value> strip_both(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return strip_side(runtime, self, arguments, Side::kBoth);
}
Result<Value> strip_left(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return strip_side(runtime, self, arguments, Side::kLeft);
}
Result<Value> strip_right(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return strip_side(runtime, self, arguments, Side::kRight);
}

template <CaseMapping mapping>
Result<Value> change_case(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_RETURN_IF_ERROR(Parameters::bind(arguments, {}).status());
  TENON_RETURN_IF_ERROR(runtime.budget().charge_bytes(self.as_text().size() * 4));
  return Value::text(map_case(self.as_text(), mapping));
}

Value list_of_texts(std::vector<MarkedText> texts) {
  std::vector<Value> items;
  items.reserve(texts.size());
  for (MarkedText& text : texts) items.push_back(Value::text(std::move(text)));
  return Value::list(std::move(items));
}

Result<Value> split_either(Runtime& runtime,
                           const Value& self,
                           const Arguments& arguments,
                           bool from_right) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters,
                         Parameters::bind(arguments, {"sep", "maxsplit"}));
  TENON_ASSIGN_OR_RETURN(const int64_t limit, parameters.integer(1, -1));
  TENON_RETURN_IF_ERROR(runtime.budget().charge_bytes(self.as_text().size() * 4));
  const MarkedText& text = self.as_text();
  std::vector<MarkedText> parts;
  if (parameters.get_unless_none(0) == nullptr) {
    parts = from_right ? split_words_from_right(text, limit) : split_words(text, limit);
  } else {
    TENON_ASSIGN_OR_RETURN(const TextPtr separator, parameters.text(0));
    if (separator->empty()) return invalid_argument("empty separator");
    parts = from_right ? split_from_right(text, separator->view(), limit)
                       : split(text, separator->view(), limit);
  }
  TENON_RETURN_IF_ERROR(runtime.budget().charge_items(parts.size() * 2));
  return list_of_texts(std::move(parts));
}

Result<Value> split_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return split_either(runtime, self, arguments, false);
}
Result<Value> rsplit(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return split_either(runtime, self, arguments, true);
}

Result<Value> splitlines(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters, Parameters::bind(arguments, {"keepends"}));
  TENON_RETURN_IF_ERROR(runtime.budget().charge_bytes(self.as_text().size() * 4));
  std::vector<MarkedText> lines = split_lines(self.as_text(), parameters.flag(0));
  TENON_RETURN_IF_ERROR(runtime.budget().charge_items(lines.size() * 2));
  return list_of_texts(std::move(lines));
}

// The part of self between the code point indices of parameters `first` and `first + 1`.
struct Part {
  size_t begin = 0;
  size_t end = 0;
  bool valid = true;  // false: it begins behind the end of the string
};

Result<Part> part_of(const MarkedText& text, const Parameters& parameters, size_t first) {
  Part part{0, text.size()};
  const bool has_start = parameters.get_unless_none(first) != nullptr;
  const bool has_end = parameters.get_unless_none(first + 1) != nullptr;
  if (!has_start && !has_end) return part;
  const auto length = static_cast<int64_t>(text.length());
  const auto clamp = [&](int64_t index) {
    return std::max<int64_t>(index < 0 ? index + length : index, 0);
  };
  if (has_start) {
    TENON_ASSIGN_OR_RETURN(const int64_t start, parameters.integer(first));
    part.valid = clamp(start) <= length;
    part.begin = code_point_offset(text.view(), static_cast<size_t>(clamp(start)));
  }
  if (has_end) {
    TENON_ASSIGN_OR_RETURN(const int64_t end, parameters.integer(first + 1));
    part.end = code_point_offset(text.view(), static_cast<size_t>(std::min(clamp(end), length)));
  }
  if (part.end < part.begin) part.valid = false;
  return part;
}

Result<bool> matches(std::string_view text, const Value& affix, bool at_start) {
  if (!affix.is_string()) return invalid_argument("a string is needed, not {}", affix.type_name());
  return at_start ? text.starts_with(affix.as_text().view())
                  : text.ends_with(affix.as_text().view());
}

Result<Value> has_affix(const Value& self, const Arguments& arguments, bool at_start) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters,
                         Parameters::bind(arguments, {"prefix", "start", "end"}, 1));
  TENON_ASSIGN_OR_RETURN(const Part part, part_of(self.as_text(), parameters, 1));
  if (!part.valid) return Value::boolean(false);
  const std::string_view text = self.as_text().view().substr(part.begin, part.end - part.begin);
  const Value& affix = *parameters.get(0);
  if (!affix.is_tuple()) {
    TENON_ASSIGN_OR_RETURN(const bool found, matches(text, affix, at_start));
    return Value::boolean(found);
  }
  for (const Value& candidate : affix.as_sequence()->items) {
    TENON_ASSIGN_OR_RETURN(const bool found, matches(text, candidate, at_start));
    if (found) return Value::boolean(true);
  }
  return Value::boolean(false);
}

Result<Value> startswith(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  return has_affix(self, arguments, true);
}
Result<Value> endswith(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  return has_affix(self, arguments, false);
}

Result<Value> without_affix(const Value& self, const Arguments& arguments, bool at_start) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters, Parameters::bind(arguments, {"affix"}, 1));
  TENON_ASSIGN_OR_RETURN(const bool found,
                         matches(self.as_text().view(), *parameters.get(0), at_start));
  if (!found) return self;
  const size_t size = parameters.get(0)->as_text().size();
  const MarkedText& text = self.as_text();
  return Value::text(at_start ? text.slice(size, text.size()) : text.slice(0, text.size() - size));
}

Result<Value> removeprefix(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  return without_affix(self, arguments, true);
}
Result<Value> removesuffix(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  return without_affix(self, arguments, false);
}

// The code point index of a substring, or -1.
Result<int64_t> locate(Runtime& runtime,
                       const Value& self,
                       const Arguments& arguments,
                       bool from_right) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters,
                         Parameters::bind(arguments, {"sub", "start", "end"}, 1));
  TENON_ASSIGN_OR_RETURN(const TextPtr needle, parameters.text(0));
  TENON_RETURN_IF_ERROR(runtime.budget().charge_bytes(self.as_text().size()));
  TENON_ASSIGN_OR_RETURN(const Part part, part_of(self.as_text(), parameters, 1));
  if (!part.valid) return int64_t{-1};
  const std::string_view text = self.as_text().view().substr(0, part.end);
  const size_t found =
      from_right ? text.rfind(needle->view()) : text.find(needle->view(), part.begin);
  if (found == std::string_view::npos || found < part.begin) return int64_t{-1};
  return static_cast<int64_t>(count_code_points(text.substr(0, found)));
}

template <bool from_right, bool must_exist>
Result<Value> find_method_of_text(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const int64_t index, locate(runtime, self, arguments, from_right));
  if (must_exist && index < 0) return invalid_argument("substring not found");
  return Value::integer(index);
}

Result<Value> count_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters,
                         Parameters::bind(arguments, {"sub", "start", "end"}, 1));
  TENON_ASSIGN_OR_RETURN(const TextPtr needle, parameters.text(0));
  TENON_RETURN_IF_ERROR(runtime.budget().charge_bytes(self.as_text().size()));
  TENON_ASSIGN_OR_RETURN(const Part part, part_of(self.as_text(), parameters, 1));
  if (!part.valid) return Value::integer(0);
  const std::string_view text = self.as_text().view().substr(part.begin, part.end - part.begin);
  if (needle->empty()) return Value::integer(static_cast<Integer>(count_code_points(text)) + 1);
  return Value::integer(static_cast<Integer>(find_all(text, needle->view()).size()));
}

Result<Value> replace_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters,
                         Parameters::bind(arguments, {"old", "new", "count"}, 2));
  TENON_ASSIGN_OR_RETURN(const TextPtr from, parameters.text(0));
  TENON_ASSIGN_OR_RETURN(const TextPtr to, parameters.text(1));
  TENON_ASSIGN_OR_RETURN(const int64_t count, parameters.integer(2, -1));
  TENON_ASSIGN_OR_RETURN(MarkedText result,
                         replace(runtime.budget(), self.as_text(), *from, *to, count));
  return Value::text(std::move(result));
}

Result<Value> join_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters, Parameters::bind(arguments, {"iterable"}, 1));
  TENON_ASSIGN_OR_RETURN(const SequencePtr items, iterate(runtime.budget(), *parameters.get(0)));
  MarkedText result;
  for (size_t i = 0; i < items->items.size(); ++i) {
    const Value& item = items->items[i];
    if (!item.is_string()) {
      return invalid_argument("sequence item {}: expected str instance, {} found", i,
                              item.type_name());
    }
    if (i > 0) TENON_RETURN_IF_ERROR(append_text(runtime.budget(), result, self));
    TENON_RETURN_IF_ERROR(append_text(runtime.budget(), result, item));
  }
  return Value::text(std::move(result));
}

Result<Value> partition_at(Runtime& runtime,
                           const Value& self,
                           const Arguments& arguments,
                           bool from_right) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters, Parameters::bind(arguments, {"sep"}, 1));
  TENON_ASSIGN_OR_RETURN(const TextPtr separator, parameters.text(0));
  if (separator->empty()) return invalid_argument("empty separator");
  TENON_RETURN_IF_ERROR(runtime.budget().charge_bytes(self.as_text().size()));
  const MarkedText& text = self.as_text();
  const size_t at =
      from_right ? text.view().rfind(separator->view()) : text.view().find(separator->view());
  if (at == std::string_view::npos) {
    const Value empty = Value::text("");
    return Value::tuple(from_right ? std::vector<Value>{empty, empty, self}
                                   : std::vector<Value>{self, empty, empty});
  }
  const size_t behind = at + separator->size();
  return Value::tuple({Value::text(text.slice(0, at)), Value::text(text.slice(at, behind)),
                       Value::text(text.slice(behind, text.size()))});
}

Result<Value> partition(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return partition_at(runtime, self, arguments, false);
}
Result<Value> rpartition(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return partition_at(runtime, self, arguments, true);
}

template <Side side>
Result<Value> justify(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters,
                         Parameters::bind(arguments, {"width", "fillchar"}, 1));
  TENON_ASSIGN_OR_RETURN(const int64_t width, parameters.integer(0));
  MarkedText fill(" ");
  if (parameters.get(1) != nullptr) {
    TENON_ASSIGN_OR_RETURN(const TextPtr given, parameters.text(1));
    if (given->length() != 1)
      return invalid_argument("the fill character must be exactly one character long");
    fill = *given;
  }
  TENON_ASSIGN_OR_RETURN(MarkedText result,
                         pad(runtime.budget(), self.as_text(), width, fill, side));
  return Value::text(std::move(result));
}

Result<Value> zfill(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters, Parameters::bind(arguments, {"width"}, 1));
  TENON_ASSIGN_OR_RETURN(const int64_t width, parameters.integer(0));
  const MarkedText& text = self.as_text();
  const size_t sign = text.view().starts_with('+') || text.view().starts_with('-') ? 1 : 0;
  TENON_ASSIGN_OR_RETURN(const MarkedText digits,
                         pad(runtime.budget(), text.slice(sign, text.size()),
                             width - static_cast<int64_t>(sign), MarkedText("0"), Side::kRight));
  MarkedText result = text.slice(0, sign);
  result.append(digits);
  return Value::text(std::move(result));
}

using CharacterTest = bool (*)(int32_t c);

bool all_characters(std::string_view text, CharacterTest test) {
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = decode_code_point(text, at);
    if (!test(c.value)) return false;
    at += c.size;
  }
  return !text.empty();
}

bool is_alphanumeric(int32_t c) {
  return is_alphabetic(c) || is_numeric(c);
}
bool is_ascii(int32_t c) {
  return c >= 0 && c < 0x80;
}

template <CharacterTest test>
Result<Value> all_are(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_RETURN_IF_ERROR(Parameters::bind(arguments, {}).status());
  TENON_RETURN_IF_ERROR(runtime.budget().charge_bytes(self.as_text().size()));
  return Value::boolean(all_characters(self.as_text().view(), test));
}

template <bool upper>
Result<Value> is_in_case(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_RETURN_IF_ERROR(Parameters::bind(arguments, {}).status());
  TENON_RETURN_IF_ERROR(runtime.budget().charge_bytes(self.as_text().size()));
  return Value::boolean(upper ? is_upper_text(self.as_text().view())
                              : is_lower_text(self.as_text().view()));
}

Result<Value> format_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(MarkedText result, format_braces(runtime, self.as_text(), arguments));
  return Value::text(std::move(result));
}

constexpr NativeEntry kMethods[] = {
    {"strip", strip_both},
    {"lstrip", strip_left},
    {"rstrip", strip_right},
    {"upper", change_case<CaseMapping::kUpper>},
    {"lower", change_case<CaseMapping::kLower>},
    {"casefold", change_case<CaseMapping::kLower>},
    {"swapcase", change_case<CaseMapping::kSwap>},
    {"title", change_case<CaseMapping::kTitle>},
    {"capitalize", change_case<CaseMapping::kCapitalize>},
    {"split", split_method},
    {"rsplit", rsplit},
    {"splitlines", splitlines},
    {"startswith", startswith},
    {"endswith", endswith},
    {"removeprefix", removeprefix},
    {"removesuffix", removesuffix},
    {"find", find_method_of_text<false, false>},
    {"rfind", find_method_of_text<true, false>},
    {"index", find_method_of_text<false, true>},
    {"rindex", find_method_of_text<true, true>},
    {"count", count_method},
    {"replace", replace_method},
    {"join", join_method},
    {"partition", partition},
    {"rpartition", rpartition},
    {"ljust", justify<Side::kLeft>},
    {"rjust", justify<Side::kRight>},
    {"center", justify<Side::kBoth>},
    {"zfill", zfill},
    {"isdigit", all_are<is_decimal_digit>},
    {"isdecimal", all_are<is_decimal_digit>},
    {"isnumeric", all_are<is_numeric>},
    {"isalpha", all_are<is_alphabetic>},
    {"isalnum", all_are<is_alphanumeric>},
    {"isspace", all_are<is_space>},
    {"isascii", all_are<is_ascii>},
    {"isupper", is_in_case<true>},
    {"islower", is_in_case<false>},
    {"format", format_method},
};

bool is_in_one_case(std::string_view text, CharacterTest wanted, CharacterTest refused) {
  bool any = false;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = decode_code_point(text, at);
    if (refused(c.value) || is_title(c.value)) return false;
    any |= wanted(c.value);
    at += c.size;
  }
  return any;
}

}  // namespace

Native find_string_method(std::string_view name) {
  for (const auto& [method, function] : kMethods) {
    if (method == name) return function;
  }
  return nullptr;
}

bool is_upper_text(std::string_view text) {
  return is_in_one_case(text, is_upper, is_lower);
}
bool is_lower_text(std::string_view text) {
  return is_in_one_case(text, is_lower, is_upper);
}

}  // namespace tenon::jinja
