#include "text/jinja/json.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "text/jinja/printing.h"
#include "text/jinja/unicode.h"

namespace tenon::jinja {
namespace {

using Json = nlohmann::ordered_json;

Result<Value> convert(const Json& json, int depth) {
  if (depth > kMaxValueDepth) {
    return invalid_argument("JSON is nested more than {} levels deep", kMaxValueDepth);
  }
  switch (json.type()) {
    case Json::value_t::boolean: return Value::boolean(json.get<bool>());
    case Json::value_t::number_integer: return Value::integer(json.get<int64_t>());
    case Json::value_t::number_unsigned: return Value::integer(json.get<uint64_t>());
    case Json::value_t::number_float: return Value::real(json.get<double>());
    case Json::value_t::string:
      return Value::text(MarkedText(json.get_ref<const std::string&>(), true));
    case Json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const Json& element : json) {
        TENON_ASSIGN_OR_RETURN(Value item, convert(element, depth + 1));
        items.push_back(std::move(item));
      }
      return Value::list(std::move(items));
    }
    case Json::value_t::object: {
      Dict dict;
      for (const auto& [key, element] : json.items()) {
        TENON_ASSIGN_OR_RETURN(Value item, convert(element, depth + 1));
        dict.set(Value::text(MarkedText(key, true)), std::move(item));
      }
      return Value::dict(std::move(dict));
    }
    default: return Value::none();
  }
}

class JsonWriter {
 public:
  JsonWriter(Budget& budget, const JsonStyle& style) : budget_(budget), style_(style) {}

  Status write(const Value& value) {
    if (!budget_.spend(1)) return Budget::exhausted();
    if (out_.size() > kMaxTextBytes) return budget_.reserve_text(out_.size());
    switch (value.kind()) {
      case Kind::kString: return write_string(value.as_text());
      case Kind::kSequence:
        if (value.is_tuple() || value.is_sequence(SequenceKind::kList)) {
          return write_array(value.as_sequence()->items);
        }
        break;
      case Kind::kDict: return write_object(value.as_dict());
      case Kind::kUndefined:
      case Kind::kObject: break;
      default: put(scalar(value)); return ok_status();
    }
    return invalid_argument("Object of type {} is not JSON serializable", value.type_name());
  }

  MarkedText take() { return std::move(out_); }

 private:
  void put(std::string_view text) { out_.append(text, false); }

  static std::string scalar(const Value& value) {
    switch (value.kind()) {
      case Kind::kBool: return value.as_bool() ? "true" : "false";
      case Kind::kInteger: return print_integer(value.as_integer());
      case Kind::kFloat:
        if (std::isnan(value.as_real())) return "NaN";
        if (std::isinf(value.as_real())) return value.as_real() < 0 ? "-Infinity" : "Infinity";
        return print_float(value.as_real());
      default: return "null";
    }
  }

  Status write_string(const MarkedText& text) {
    TENON_RETURN_IF_ERROR(budget_.charge_bytes(text.size()));
    put("\"");
    size_t plain = 0;  // start of what has not been copied yet
    std::string escaped;
    for (size_t at = 0; at < text.size();) {
      const auto byte = static_cast<unsigned char>(text.view()[at]);
      if (byte >= 0x20 && byte < 0x7F && byte != '"' && byte != '\\') {
        ++at;
        continue;
      }
      const CodePoint c = decode_code_point(text.view(), at);
      escaped.clear();
      escape(escaped, c.value);
      if (!escaped.empty()) {
        out_.append(text, plain, at);
        out_.append(escaped, text.is_untrusted_at(at));
        plain = at + c.size;
      }
      at += c.size;
    }
    out_.append(text, plain, text.size());
    put("\"");
    return ok_status();
  }

  // Leaves `out` empty when the character needs no escape.
  void escape(std::string& out, int32_t c) const {
    switch (c) {
      case '"': out = "\\\""; return;
      case '\\': out = "\\\\"; return;
      case '\n': out = "\\n"; return;
      case '\r': out = "\\r"; return;
      case '\t': out = "\\t"; return;
      case '\f': out = "\\f"; return;
      case '\b': out = "\\b"; return;
      default: break;
    }
    if (c < 0 || (c >= 0x20 && (c < 0x7F || !style_.ensure_ascii))) return;
    if (c < 0x10000) {
      out = fmt::format("\\u{:04x}", c);
    } else {
      const int32_t rest = c - 0x10000;
      out = fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
    }
  }

  Status open(std::string_view bracket) {
    if (++depth_ > kMaxValueDepth)
      return invalid_argument("JSON is nested more than {} levels deep", kMaxValueDepth);
    put(bracket);
    return ok_status();
  }

  void start_item(bool first) {
    if (!first) out_.append(style_.item_separator);
    new_line();
  }

  void close(std::string_view bracket, bool had_items) {
    --depth_;
    if (had_items) new_line();
    put(bracket);
  }

  void new_line() {
    if (!style_.indent) return;
    put("\n");
    for (int i = 0; i < depth_; ++i) out_.append(*style_.indent);
  }

  Status write_array(const std::vector<Value>& items) {
    TENON_RETURN_IF_ERROR(open("["));
    for (size_t i = 0; i < items.size(); ++i) {
      start_item(i == 0);
      TENON_RETURN_IF_ERROR(write(items[i]));
    }
    close("]", !items.empty());
    return ok_status();
  }

  Status write_object(const Dict& dict) {
    TENON_RETURN_IF_ERROR(open("{"));
    TENON_ASSIGN_OR_RETURN(const std::vector<Dict::Entry> entries, ordered(dict));
    for (size_t i = 0; i < entries.size(); ++i) {
      start_item(i == 0);
      TENON_RETURN_IF_ERROR(write_key(entries[i].first));
      out_.append(style_.key_separator);
      TENON_RETURN_IF_ERROR(write(entries[i].second));
    }
    close("}", !entries.empty());
    return ok_status();
  }

  Status write_key(const Value& key) {
    if (key.is_string()) return write_string(key.as_text());
    if (!key.is_number() && !key.is_none()) {
      return invalid_argument("keys must be str, int, float, bool or None, not {}",
                              key.type_name());
    }
    put("\"" + scalar(key) + "\"");
    return ok_status();
  }

  Result<std::vector<Dict::Entry>> ordered(const Dict& dict) {
    if (!style_.sort_keys) return dict.entries();
    std::vector<Value> keys;
    for (const auto& entry : dict.entries()) keys.push_back(entry.first);
    TENON_ASSIGN_OR_RETURN(const std::vector<size_t> order, sorted_order(budget_, keys, false));
    std::vector<Dict::Entry> entries;
    for (const size_t index : order) entries.push_back(dict.entries()[index]);
    return entries;
  }

  Budget& budget_;
  const JsonStyle& style_;
  MarkedText out_;
  int depth_ = 0;
};

}  // namespace

Result<Value> from_json(const Json& json) {
  return convert(json, 0);
}

Result<MarkedText> to_json(Budget& budget, const Value& value, const JsonStyle& style) {
  JsonWriter writer(budget, style);
  TENON_RETURN_IF_ERROR(writer.write(value));
  return writer.take();
}

}  // namespace tenon::jinja
