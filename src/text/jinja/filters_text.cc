#include <fmt/format.h>

#include "text/jinja/filters.h"
#include "text/jinja/formatting.h"
#include "text/jinja/json.h"
#include "text/jinja/printing.h"
#include "text/jinja/runtime.h"
#include "text/jinja/text_operations.h"
#include "text/jinja/unicode.h"

namespace tenon::jinja {
namespace {

Result<Value> string_filter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_RETURN_IF_ERROR(Parameters::bind(arguments, {}).status());
  if (self.is_string()) return self;
  TENON_ASSIGN_OR_RETURN(MarkedText text, to_text(runtime.budget(), self));
  return Value::text(std::move(text));
}

template <CaseMapping mapping>
Result<Value> case_filter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_RETURN_IF_ERROR(Parameters::bind(arguments, {}).status());
  TENON_ASSIGN_OR_RETURN(const MarkedText text, to_text(runtime.budget(), self));
  TENON_RETURN_IF_ERROR(runtime.budget().charge_bytes(text.size() * 4));
  return Value::text(map_case(text, mapping));
}

Result<Value> trim(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters, Parameters::bind(arguments, {"chars"}));
  TENON_ASSIGN_OR_RETURN(const MarkedText text, to_text(runtime.budget(), self));
  if (parameters.get_unless_none(0) == nullptr)
    return Value::text(strip(text, nullptr, Side::kBoth));
  TENON_ASSIGN_OR_RETURN(const TextPtr characters, parameters.text(0));
  return Value::text(strip(text, characters.get(), Side::kBoth));
}

Result<Value> replace_filter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters,
                         Parameters::bind(arguments, {"old", "new", "count"}, 2));
  TENON_ASSIGN_OR_RETURN(const MarkedText text, to_text(runtime.budget(), self));
  TENON_ASSIGN_OR_RETURN(const MarkedText from, to_text(runtime.budget(), *parameters.get(0)));
  TENON_ASSIGN_OR_RETURN(const MarkedText to, to_text(runtime.budget(), *parameters.get(1)));
  int64_t count = -1;
  if (parameters.get_unless_none(2) != nullptr) {
    TENON_ASSIGN_OR_RETURN(count, parameters.integer(2));
  }
  TENON_ASSIGN_OR_RETURN(MarkedText result, replace(runtime.budget(), text, from, to, count));
  return Value::text(std::move(result));
}

Result<Value> join_filter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters,
                         Parameters::bind(arguments, {"d", "attribute"}));
  TENON_ASSIGN_OR_RETURN(const SequencePtr items, iterate(runtime.budget(), self));
  MarkedText separator;
  if (parameters.get(0) != nullptr) {
    TENON_ASSIGN_OR_RETURN(separator, to_text(runtime.budget(), *parameters.get(0)));
  }
  const Value* attribute = parameters.get_unless_none(1);
  const AttributePath path(attribute == nullptr ? Value::none() : *attribute, nullptr);
  MarkedText result;
  bool first = true;
  for (const Value& item : items->items) {
    if (!first) {
      TENON_RETURN_IF_ERROR(runtime.budget().reserve_text(
          result.size() + separator.size() > kMaxTextBytes ? kMaxTextBytes + 1 : separator.size()));
      result.append(separator);
    }
    first = false;
    TENON_ASSIGN_OR_RETURN(const Value part, path.get(runtime, item));
    TENON_RETURN_IF_ERROR(append_text(runtime.budget(), result, part));
  }
  return Value::text(std::move(result));
}

Result<Value> indent(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters,
                         Parameters::bind(arguments, {"width", "first", "blank"}));
  if (!self.is_string()) return invalid_argument("a string is needed, not {}", self.type_name());
  MarkedText indentation("    ");
  if (parameters.get(0) != nullptr && parameters.get(0)->is_string()) {
    indentation = parameters.get(0)->as_text();
  } else {
    TENON_ASSIGN_OR_RETURN(const int64_t width, parameters.integer(0, 4));
    TENON_ASSIGN_OR_RETURN(
        indentation, pad(runtime.budget(), MarkedText(), width, MarkedText(" "), Side::kLeft));
  }
  MarkedText text = self.as_text();
  text.append("\n", false);  // so that an empty last line counts as one
  const std::vector<MarkedText> lines = split_lines(text, false);
  TENON_RETURN_IF_ERROR(runtime.budget().charge_items(lines.size() * 2));
  TENON_RETURN_IF_ERROR(
      runtime.budget().reserve_text(indentation.size() > kMaxTextBytes / lines.size()
                                        ? kMaxTextBytes + 1
                                        : text.size() + lines.size() * indentation.size()));
  MarkedText result;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) result.append("\n", false);
    const bool indented = i == 0 ? parameters.flag(1) : parameters.flag(2) || !lines[i].empty();
    if (indented) result.append(indentation);
    result.append(lines[i]);
  }
  return Value::text(std::move(result));
}

Result<Value> truncate(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters,
                         Parameters::bind(arguments, {"length", "killwords", "end", "leeway"}));
  if (!self.is_string()) return invalid_argument("a string is needed, not {}", self.type_name());
  TENON_ASSIGN_OR_RETURN(const int64_t length, parameters.integer(0, 255));
  int64_t leeway = 5;
  if (parameters.get_unless_none(3) != nullptr) {
    TENON_ASSIGN_OR_RETURN(leeway, parameters.integer(3));
  }
  MarkedText end("...");
  if (parameters.get(2) != nullptr) {
    TENON_ASSIGN_OR_RETURN(const TextPtr given, parameters.text(2));
    end = *given;
  }
  const auto end_length = static_cast<int64_t>(end.length());
  if (length < end_length || leeway < 0)
    return invalid_argument("expected length >= {} and leeway >= 0", end_length);
  const MarkedText& text = self.as_text();
  TENON_RETURN_IF_ERROR(runtime.budget().charge_bytes(text.size()));
  if (static_cast<int64_t>(text.length()) <= length + leeway) return self;
  size_t cut = code_point_offset(text.view(), static_cast<size_t>(length - end_length));
  if (!parameters.flag(1)) {
    const size_t space = text.view().substr(0, cut).rfind(' ');
    if (space != std::string_view::npos) cut = space;
  }
  MarkedText result = text.slice(0, cut);
  result.append(end);
  return Value::text(std::move(result));
}

Result<Value> center(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters, Parameters::bind(arguments, {"width"}));
  TENON_ASSIGN_OR_RETURN(const int64_t width, parameters.integer(0, 80));
  TENON_ASSIGN_OR_RETURN(const MarkedText text, to_text(runtime.budget(), self));
  TENON_ASSIGN_OR_RETURN(MarkedText result,
                         pad(runtime.budget(), text, width, MarkedText(" "), Side::kBoth));
  return Value::text(std::move(result));
}

Result<Value> wordcount(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_RETURN_IF_ERROR(Parameters::bind(arguments, {}).status());
  TENON_ASSIGN_OR_RETURN(const MarkedText text, to_text(runtime.budget(), self));
  Integer words = 0;
  bool in_word = false;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = decode_code_point(text.view(), at);
    const bool is_part = is_word(c.value);
    if (is_part && !in_word) ++words;
    in_word = is_part;
    at += c.size;
  }
  return Value::integer(words);
}

// A copy in which `rewrite` puts its own text in place of some bytes.
template <typename Rewrite>
Result<Value> rewrite_bytes(Runtime& runtime, const Value& self, Rewrite rewrite) {
  TENON_ASSIGN_OR_RETURN(const MarkedText text, to_text(runtime.budget(), self));
  TENON_RETURN_IF_ERROR(runtime.budget().reserve_text(text.size() * 4));
  MarkedText result;
  MarkCursor marks(text);
  std::string piece;
  for (size_t at = 0; at < text.size(); ++at) {
    piece.clear();
    rewrite(piece, text.view()[at]);
    result.append(piece, marks.at(at));
  }
  return Value::text(std::move(result));
}

Result<Value> escape(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_RETURN_IF_ERROR(Parameters::bind(arguments, {}).status());
  return rewrite_bytes(runtime, self, [](std::string& out, char c) {
    switch (c) {
      case '&': out = "&amp;"; break;
      case '<': out = "&lt;"; break;
      case '>': out = "&gt;"; break;
      case '\'': out = "&#39;"; break;
      case '"': out = "&#34;"; break;
      default: out = c;
    }
  });
}

void quote_url_byte(std::string& out, char c, bool in_query) {
  const bool is_plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                        (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || c == '.' || c == '~' ||
                        (c == '/' && !in_query);
  if (is_plain) {
    out = c;
  } else if (c == ' ' && in_query) {
    out = '+';
  } else {
    out = fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
}

Result<Value> quote_url(Runtime& runtime, const Value& value, bool in_query) {
  return rewrite_bytes(runtime, value,
                       [in_query](std::string& out, char c) { quote_url_byte(out, c, in_query); });
}

Result<Value> urlencode(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_RETURN_IF_ERROR(Parameters::bind(arguments, {}).status());
  if (!self.is_dict() && !self.is_sequence()) return quote_url(runtime, self, false);
  Value pairs = self;
  if (self.is_dict()) {
    TENON_ASSIGN_OR_RETURN(pairs, find_method(self, "items")(runtime, self, {}));
  }
  TENON_ASSIGN_OR_RETURN(const SequencePtr items, iterate(runtime.budget(), pairs));
  MarkedText result;
  for (const Value& pair : items->items) {
    if (!pair.is_sequence() || pair.as_sequence()->items.size() != 2)
      return invalid_argument("pairs are needed");
    TENON_ASSIGN_OR_RETURN(const Value key, quote_url(runtime, pair.as_sequence()->items[0], true));
    TENON_ASSIGN_OR_RETURN(const Value value,
                           quote_url(runtime, pair.as_sequence()->items[1], true));
    if (!result.empty()) result.append("&", false);
    TENON_RETURN_IF_ERROR(append_text(runtime.budget(), result, key));
    result.append("=", false);
    TENON_RETURN_IF_ERROR(append_text(runtime.budget(), result, value));
  }
  return Value::text(std::move(result));
}

Result<Value> format_filter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty()) {
    return invalid_argument("positional and named arguments cannot be used together");
  }
  TENON_ASSIGN_OR_RETURN(const MarkedText text, to_text(runtime.budget(), self));
  if (arguments.named.empty())
    return format_percent(runtime.budget(), text, Value::tuple(arguments.positional));
  Dict named;
  for (const auto& [name, value] : arguments.named) named.set(name, value);
  return format_percent(runtime.budget(), text, Value::dict(std::move(named)));
}

Result<MarkedText> json_indent(Runtime& runtime, const Value& indent_value) {
  if (indent_value.is_string()) return indent_value.as_text();
  TENON_ASSIGN_OR_RETURN(const int64_t width, to_int64(indent_value, "indent"));
  return pad(runtime.budget(), MarkedText(), width, MarkedText(" "), Side::kLeft);
}

Result<Value> tojson(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(
      const Parameters parameters,
      Parameters::bind(arguments, {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonStyle style;
  style.ensure_ascii = parameters.flag(0);
  style.sort_keys = parameters.flag(3);
  style.item_separator = MarkedText(", ");
  style.key_separator = MarkedText(": ");
  if (parameters.get_unless_none(1) != nullptr) {
    TENON_ASSIGN_OR_RETURN(style.indent, json_indent(runtime, *parameters.get(1)));
    style.item_separator = MarkedText(",");
  }
  if (const Value* separators = parameters.get_unless_none(2)) {
    TENON_ASSIGN_OR_RETURN(const SequencePtr pair, iterate(runtime.budget(), *separators));
    if (pair->items.size() != 2 || !pair->items[0].is_string() || !pair->items[1].is_string()) {
      return invalid_argument("separators must be two strings");
    }
    style.item_separator = pair->items[0].as_text();
    style.key_separator = pair->items[1].as_text();
  }
  TENON_ASSIGN_OR_RETURN(MarkedText json, to_json(runtime.budget(), self, style));
  return Value::text(std::move(json));
}

Result<Value> striptags(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_RETURN_IF_ERROR(Parameters::bind(arguments, {}).status());
  TENON_ASSIGN_OR_RETURN(const MarkedText text, to_text(runtime.budget(), self));
  MarkedText kept;
  size_t at = 0;
  while (at < text.size()) {
    const size_t open = std::min(text.view().find('<', at), text.size());
    const size_t close = text.view().find('>', open);
    if (close == std::string_view::npos) break;
    kept.append(text, at, open);
    at = close + 1;
  }
  kept.append(text, at, text.size());
  MarkedText result;
  for (const MarkedText& word : split_words(kept, -1)) {
    if (!result.empty()) result.append(" ", false);
    result.append(word);
  }
  return Value::text(std::move(result));
}

constexpr NativeEntry kFilters[] = {
    {"string", string_filter},
    {"safe", string_filter},  // nothing is escaped by itself
    {"upper", case_filter<CaseMapping::kUpper>},
    {"lower", case_filter<CaseMapping::kLower>},
    {"capitalize", case_filter<CaseMapping::kCapitalize>},
    {"title", case_filter<CaseMapping::kTitleFilter>},
    {"trim", trim},
    {"replace", replace_filter},
    {"join", join_filter},
    {"indent", indent},
    {"truncate", truncate},
    {"center", center},
    {"wordcount", wordcount},
    {"escape", escape},
    {"e", escape},
    {"forceescape", escape},
    {"urlencode", urlencode},
    {"format", format_filter},
    {"tojson", tojson},
    {"striptags", striptags},
};

}  // namespace

std::span<const NativeEntry> text_filters() {
  return kFilters;
}

}  // namespace tenon::jinja
