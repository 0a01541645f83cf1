#include "text/jinja/operators.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/native.h"
#include "text/jinja/printing.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace tenon::jinja {
namespace {

Result<bool> contains_text(Budget& budget, const MarkedText& text, const Value& item) {
  if (item.is_undefined()) return invalid_argument("{}", item.undefined_reason());
  if (!item.is_string()) {
    return invalid_argument("'in <string>' requires string as left operand, not {}",
                            item.type_name());
  }
  TENON_RETURN_IF_ERROR(budget.charge_bytes(text.size()));
  return text.view().find(item.as_text().view()) != std::string_view::npos;
}

Value undefined_member(const Value& object, std::string_view name) {
  if (object.is_none()) return Value::undefined(fmt::format("'None' has no attribute '{}'", name));
  return Value::undefined(
      fmt::format("'{} object' has no attribute '{}'", object.type_name(), name));
}

// The item of a dict, a list or a string; empty if the object has none under this key.
Result<std::optional<Value>> find_item(Budget& budget, const Value& object, const Value& key) {
  if (object.is_dict()) {
    if (!is_hashable(key)) return std::optional<Value>();
    if (key.is_string()) TENON_RETURN_IF_ERROR(budget.charge_bytes(key.as_text().size()));
    const Value* found = object.as_dict().find(key);
    return found == nullptr ? std::optional<Value>() : std::optional<Value>(*found);
  }
  if (!key.is_integral()) return std::optional<Value>();
  Integer index = key.as_integer();
  if (object.is_sequence() && object.as_sequence()->is_indexable()) {
    const std::vector<Value>& items = object.as_sequence()->items;
    if (index < 0) index += static_cast<Integer>(items.size());
    if (index < 0 || index >= static_cast<Integer>(items.size())) return std::optional<Value>();
    return std::optional<Value>(items[static_cast<size_t>(index)]);
  }
  if (!object.is_string()) return std::optional<Value>();
  const MarkedText& text = object.as_text();
  if (index >= static_cast<Integer>(text.size()) || -index > static_cast<Integer>(text.size())) {
    return std::optional<Value>();
  }
  size_t begin = 0;
  if (index >= 0) {
    TENON_RETURN_IF_ERROR(budget.charge_bytes(static_cast<size_t>(index)));
    begin = code_point_offset(text.view(), static_cast<size_t>(index));
    if (begin >= text.size()) return std::optional<Value>();
  } else {
    TENON_RETURN_IF_ERROR(budget.charge_bytes(static_cast<size_t>(-index)));
    begin = text.size();
    for (; index < 0; ++index) {
      if (begin == 0) return std::optional<Value>();
      begin = previous_code_point(text.view(), begin);
    }
  }
  const size_t size = decode_code_point(text.view(), begin).size;
  return std::optional<Value>(Value::text(text.slice(begin, begin + size)));
}

Result<std::optional<Value>> find_attribute(Runtime& runtime,
                                            const Value& object,
                                            std::string_view name) {
  if (object.is_object()) {
    TENON_ASSIGN_OR_RETURN(std::optional<Value> found,
                           object.as_object()->attribute(runtime, name));
    if (found) return found;
  }
  if (object.is_sequence(SequenceKind::kGroup)) {
    if (name == "grouper") return std::optional<Value>(object.as_sequence()->items[0]);
    if (name == "list") return std::optional<Value>(object.as_sequence()->items[1]);
  }
  if (const Native method = find_method(object, name); method != nullptr) {
    return std::optional<Value>(Value::object(std::make_shared<NativeFunction>(method, object)));
  }
  if (is_refused_method(object, name)) {
    return std::optional<Value>(Value::undefined(
        fmt::format("templates may not change a {}: '{}' is refused", object.type_name(), name)));
  }
  return std::optional<Value>();
}

// Python's rules for start, stop and step against a length.
struct SliceRange {
  int64_t start = 0, stop = 0, step = 1;
};

Result<int64_t> clamp_bound(const Value& bound, int64_t size, int64_t lowest, int64_t fallback) {
  if (bound.is_none()) return fallback;
  const Integer value = bound.as_integer();
  const Integer from_start = value < 0 ? value + size : value;
  const Integer highest = lowest < 0 ? Integer{size} - 1 : Integer{size};
  return static_cast<int64_t>(
      std::clamp(from_start, Integer{lowest}, std::max(highest, Integer{lowest})));
}

Result<SliceRange> resolve_slice(const SliceBounds& bounds, int64_t size) {
  SliceRange range;
  if (!bounds.step.is_none()) {
    TENON_ASSIGN_OR_RETURN(range.step, to_int64(bounds.step, "slice step"));
    if (range.step == 0) return invalid_argument("slice step cannot be zero");
    range.step = std::clamp<int64_t>(range.step, -size - 1, size + 1);
  }
  const bool backward = range.step < 0;
  TENON_ASSIGN_OR_RETURN(
      range.start, clamp_bound(bounds.start, size, backward ? -1 : 0, backward ? size - 1 : 0));
  TENON_ASSIGN_OR_RETURN(range.stop,
                         clamp_bound(bounds.stop, size, backward ? -1 : 0, backward ? -1 : size));
  return range;
}

Result<Value> slice_text(Budget& budget, const MarkedText& text, const SliceBounds& bounds) {
  TENON_RETURN_IF_ERROR(budget.charge_bytes(text.size()));
  const size_t length = text.length();
  TENON_ASSIGN_OR_RETURN(const SliceRange range,
                         resolve_slice(bounds, static_cast<int64_t>(length)));
  const bool one_byte_each = length == text.size();
  const auto offset = [&](int64_t index) {
    const auto position = static_cast<size_t>(index);
    return one_byte_each ? position : code_point_offset(text.view(), position);
  };
  if (range.step == 1) {
    if (range.start >= range.stop) return Value::text("");
    return Value::text(text.slice(offset(range.start), offset(range.stop)));
  }
  TENON_RETURN_IF_ERROR(budget.charge_items(length));
  std::vector<size_t> offsets;  // of every code point, for steps either way
  for (size_t at = 0; at < text.size(); at += decode_code_point(text.view(), at).size)
    offsets.push_back(at);
  MarkedText result;
  for (int64_t i = range.start; range.step > 0 ? i < range.stop : i > range.stop; i += range.step) {
    const size_t begin = offsets[static_cast<size_t>(i)];
    const size_t size = decode_code_point(text.view(), begin).size;
    result.append(text.view().substr(begin, size), text.is_untrusted_at(begin));
  }
  return Value::text(std::move(result));
}

Result<Value> slice_items(Budget& budget, const Sequence& sequence, const SliceBounds& bounds) {
  TENON_ASSIGN_OR_RETURN(const SliceRange range,
                         resolve_slice(bounds, static_cast<int64_t>(sequence.items.size())));
  std::vector<Value> items;
  for (int64_t i = range.start; range.step > 0 ? i < range.stop : i > range.stop; i += range.step) {
    items.push_back(sequence.items[static_cast<size_t>(i)]);
  }
  TENON_RETURN_IF_ERROR(budget.charge_items(items.size()));
  return Value::sequence(sequence.is_tuple() ? SequenceKind::kTuple : SequenceKind::kList,
                         std::move(items));
}

}  // namespace

Result<bool> compare(Budget& budget, ComparisonOperator op, const Value& left, const Value& right) {
  switch (op) {
    case ComparisonOperator::kEqual: return equals(budget, left, right);
    case ComparisonOperator::kNotEqual: {
      TENON_ASSIGN_OR_RETURN(const bool same, equals(budget, left, right));
      return !same;
    }
    case ComparisonOperator::kIn: return contains(budget, right, left);
    case ComparisonOperator::kNotIn: {
      TENON_ASSIGN_OR_RETURN(const bool found, contains(budget, right, left));
      return !found;
    }
    case ComparisonOperator::kLess: return less_than(budget, left, right);
    case ComparisonOperator::kGreater: return less_than(budget, right, left);
    case ComparisonOperator::kLessEqual:
    case ComparisonOperator::kGreaterEqual: break;
  }
  // Not the negation of the other order: NaN is neither.
  const bool is_less_equal = op == ComparisonOperator::kLessEqual;
  TENON_ASSIGN_OR_RETURN(const bool less, is_less_equal ? less_than(budget, left, right)
                                                        : less_than(budget, right, left));
  if (less) return true;
  return equals(budget, left, right);
}

Result<bool> contains(Budget& budget, const Value& container, const Value& item) {
  if (container.is_string()) return contains_text(budget, container.as_text(), item);
  if (container.is_dict()) {
    if (!is_hashable(item)) return invalid_argument("unhashable type: '{}'", item.type_name());
    TENON_ASSIGN_OR_RETURN(const std::optional<Value> found, find_item(budget, container, item));
    return found.has_value();
  }
  if (!container.is_sequence() && !container.is_undefined()) {
    return invalid_argument("argument of type '{}' is not iterable", container.type_name());
  }
  TENON_ASSIGN_OR_RETURN(const SequencePtr items, iterate(budget, container));
  for (const Value& candidate : items->items) {
    if (!budget.spend(1)) return Budget::exhausted();
    TENON_ASSIGN_OR_RETURN(const bool same, equals(budget, candidate, item));
    if (same) return true;
  }
  return false;
}

Result<Value> get_attribute(Runtime& runtime, const Value& object, std::string_view name) {
  if (object.is_undefined()) return invalid_argument("{}", object.undefined_reason());
  TENON_ASSIGN_OR_RETURN(std::optional<Value> found, find_attribute(runtime, object, name));
  if (found) return *std::move(found);
  if (object.is_dict()) {
    if (const Value* item = object.as_dict().find(name)) return *item;
  }
  return undefined_member(object, name);
}

Result<Value> get_item(Runtime& runtime, const Value& object, const Value& key) {
  if (object.is_undefined()) return invalid_argument("{}", object.undefined_reason());
  TENON_ASSIGN_OR_RETURN(std::optional<Value> found, find_item(runtime.budget(), object, key));
  if (!found && key.is_string()) {
    TENON_ASSIGN_OR_RETURN(found, find_attribute(runtime, object, key.as_text().view()));
  }
  if (found) return *std::move(found);
  if (key.is_string()) return undefined_member(object, key.as_text().view());
  TENON_ASSIGN_OR_RETURN(const MarkedText printed, to_repr(runtime.budget(), key));
  return Value::undefined(
      fmt::format("{} object has no element {}", object.type_name(), printed.view()));
}

Result<Value> get_slice(Budget& budget, const Value& object, const SliceBounds& bounds) {
  if (object.is_undefined()) return invalid_argument("{}", object.undefined_reason());
  const bool is_indexable = object.is_sequence() && object.as_sequence()->is_indexable();
  const auto is_bound = [](const Value& value) { return value.is_none() || value.is_integral(); };
  if ((!object.is_string() && !is_indexable) || !is_bound(bounds.start) || !is_bound(bounds.stop) ||
      !is_bound(bounds.step)) {
    return Value::undefined(fmt::format("{} object has no such slice", object.type_name()));
  }
  if (object.is_string()) return slice_text(budget, object.as_text(), bounds);
  return slice_items(budget, *object.as_sequence(), bounds);
}

}  // namespace tenon::jinja
