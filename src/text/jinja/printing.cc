#include "text/jinja/printing.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "text/jinja/namespace.h"
#include "text/jinja/unicode.h"

namespace tenon::jinja {
namespace {

class Printer {
 public:
  Printer(Budget& budget, MarkedText& out) : budget_(budget), out_(out) {}

  Status repr(const Value& value) {
    if (!budget_.spend(1)) return Budget::exhausted();
    switch (value.kind()) {
      case Kind::kUndefined: return put("Undefined");
      case Kind::kNone: return put("None");
      case Kind::kBool: return put(value.as_bool() ? "True" : "False");
      case Kind::kInteger: return put(print_integer(value.as_integer()));
      case Kind::kFloat: return put(print_float(value.as_real()));
      case Kind::kString: return repr_text(value.as_text());
      case Kind::kSequence: return nested([&] { return repr_sequence(*value.as_sequence()); });
      case Kind::kDict: return nested([&] { return repr_entries(value.as_dict()); });
      case Kind::kObject: return nested([&] { return repr_object(*value.as_object()); });
    }
    return ok_status();
  }

 private:
  Status put(std::string_view text, bool untrusted = false) {
    if (out_.size() + text.size() > kMaxTextBytes)
      return budget_.reserve_text(out_.size() + text.size());
    out_.append(text, untrusted);
    return ok_status();
  }

  template <typename Print>
  Status nested(Print print) {
    if (++depth_ > kMaxValueDepth)
      return invalid_argument("maximum recursion depth exceeded in printing");
    TENON_RETURN_IF_ERROR(print());
    --depth_;
    return ok_status();
  }

  Status repr_text(const MarkedText& text) {
    TENON_RETURN_IF_ERROR(budget_.charge_bytes(text.size()));
    const bool double_quotes = text.view().find('\'') != std::string_view::npos &&
                               text.view().find('"') == std::string_view::npos;
    const char quote = double_quotes ? '"' : '\'';
    TENON_RETURN_IF_ERROR(put({&quote, 1}));
    MarkCursor marks(text);
    std::string piece;
    for (size_t at = 0; at < text.size();) {
      const CodePoint c = decode_code_point(text.view(), at);
      piece.clear();
      escape(piece, c.value, text.view().substr(at, c.size), quote);
      TENON_RETURN_IF_ERROR(put(piece, marks.at(at)));
      at += c.size;
    }
    return put({&quote, 1});
  }

  static void escape(std::string& out, int32_t c, std::string_view original, char quote) {
    if (c == quote || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c < 0 || is_printable(c)) {
      out += original;
    } else if (c < 0x100) {
      out += fmt::format("\\x{:02x}", c);
    } else if (c < 0x10000) {
      out += fmt::format("\\u{:04x}", c);
    } else {
      out += fmt::format("\\U{:08x}", c);
    }
  }

  Status repr_items(const std::vector<Value>& items) {
    bool first = true;
    for (const Value& item : items) {
      if (!first) TENON_RETURN_IF_ERROR(put(", "));
      first = false;
      TENON_RETURN_IF_ERROR(repr(item));
    }
    return ok_status();
  }

  Status enclosed(std::string_view open, const std::vector<Value>& items, std::string_view close) {
    TENON_RETURN_IF_ERROR(put(open));
    TENON_RETURN_IF_ERROR(repr_items(items));
    return put(close);
  }

  Status repr_sequence(const Sequence& sequence) {
    switch (sequence.kind) {
      case SequenceKind::kList: return enclosed("[", sequence.items, "]");
      case SequenceKind::kTuple:
      case SequenceKind::kGroup:
        return enclosed("(", sequence.items, sequence.items.size() == 1 ? ",)" : ")");
      case SequenceKind::kRange: return put(sequence.label);
      case SequenceKind::kGenerator: return put("<generator object>");
      case SequenceKind::kKeys: return enclosed("dict_keys([", sequence.items, "])");
      case SequenceKind::kValues: return enclosed("dict_values([", sequence.items, "])");
      case SequenceKind::kItems: return enclosed("dict_items([", sequence.items, "])");
    }
    return ok_status();
  }

  Status repr_entries(const Dict& dict) {
    TENON_RETURN_IF_ERROR(put("{"));
    bool first = true;
    for (const auto& [key, value] : dict.entries()) {
      if (!first) TENON_RETURN_IF_ERROR(put(", "));
      first = false;
      TENON_RETURN_IF_ERROR(repr(key));
      TENON_RETURN_IF_ERROR(put(": "));
      TENON_RETURN_IF_ERROR(repr(value));
    }
    return put("}");
  }

  Status repr_object(const Object& object) {
    const auto* names = dynamic_cast<const Namespace*>(&object);
    if (names == nullptr) return put(fmt::format("<{}>", object.type_name()));
    TENON_RETURN_IF_ERROR(put("<Namespace "));
    TENON_RETURN_IF_ERROR(repr_entries(names->values()));
    return put(">");
  }

  Budget& budget_;
  MarkedText& out_;
  int depth_ = 0;
};

}  // namespace

std::string print_integer(Integer value) {
  return fmt::format("{}", value);
}

std::string print_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 64> buffer{};
  const auto scientific = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                        std::chars_format::scientific);
  const std::string_view text(buffer.data(), static_cast<size_t>(scientific.ptr - buffer.data()));
  const int exponent = std::atoi(std::string(text.substr(text.find('e') + 1)).c_str());
  // Python writes an exponent outside of this span only.
  if (exponent < -4 || exponent >= 16) return std::string(text);
  const auto fixed =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::fixed);
  std::string result(buffer.data(), fixed.ptr);
  if (result.find('.') == std::string::npos) result += ".0";
  return result;
}

Status append_text(Budget& budget, MarkedText& out, const Value& value) {
  if (value.is_undefined()) return ok_status();
  if (!value.is_string()) return Printer(budget, out).repr(value);
  const size_t size = out.size() + value.as_text().size();
  if (size > kMaxTextBytes) return budget.reserve_text(size);
  TENON_RETURN_IF_ERROR(budget.charge_bytes(value.as_text().size()));
  out.append(value.as_text());
  return ok_status();
}

Result<MarkedText> to_text(Budget& budget, const Value& value) {
  MarkedText out;
  TENON_RETURN_IF_ERROR(append_text(budget, out, value));
  return out;
}

Result<MarkedText> to_repr(Budget& budget, const Value& value) {
  MarkedText out;
  TENON_RETURN_IF_ERROR(Printer(budget, out).repr(value));
  return out;
}

}  // namespace tenon::jinja
