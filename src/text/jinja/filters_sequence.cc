#include <algorithm>
#include <unordered_map>

#include "text/jinja/filters.h"
#include "text/jinja/operators.h"
#include "text/jinja/printing.h"
#include "text/jinja/runtime.h"
#include "text/jinja/text_operations.h"
#include "text/jinja/unicode.h"

namespace tenon::jinja {
namespace {

Result<Value> length_filter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_RETURN_IF_ERROR(Parameters::bind(arguments, {}).status());
  TENON_ASSIGN_OR_RETURN(const int64_t length, length_of(runtime.budget(), self));
  return Value::integer(length);
}

Result<Value> default_filter(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters,
                         Parameters::bind(arguments, {"default_value", "boolean"}));
  if (!self.is_undefined() && (!parameters.flag(1) || self.truthy())) return self;
  return parameters.get(0) == nullptr ? Value::text("") : *parameters.get(0);
}

Result<Value> list_filter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_RETURN_IF_ERROR(Parameters::bind(arguments, {}).status());
  TENON_ASSIGN_OR_RETURN(const SequencePtr items, iterate(runtime.budget(), self));
  TENON_RETURN_IF_ERROR(runtime.budget().charge_items(items->items.size()));
  return Value::list(items->items);
}

Result<Value> first(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_RETURN_IF_ERROR(Parameters::bind(arguments, {}).status());
  if (self.is_string() && !self.as_text().empty())
    return get_item(runtime, self, Value::integer(0));
  if (self.is_sequence(SequenceKind::kGenerator)) {
    Sequence& generator = *self.as_sequence();
    if (generator.consumed < generator.items.size()) return generator.items[generator.consumed++];
  } else {
    TENON_ASSIGN_OR_RETURN(const SequencePtr items, iterate(runtime.budget(), self));
    if (!items->items.empty()) return items->items.front();
  }
  return Value::undefined("No first item, sequence was empty.");
}

Result<Value> last(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_RETURN_IF_ERROR(Parameters::bind(arguments, {}).status());
  if (self.is_sequence(SequenceKind::kGenerator))
    return invalid_argument("'generator' object is not reversible");
  if (self.is_string() && !self.as_text().empty())
    return get_item(runtime, self, Value::integer(-1));
  TENON_ASSIGN_OR_RETURN(const SequencePtr items, iterate(runtime.budget(), self));
  if (!items->items.empty()) return items->items.back();
  return Value::undefined("No last item, sequence was empty.");
}

Result<Value> reverse(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_RETURN_IF_ERROR(Parameters::bind(arguments, {}).status());
  if (self.is_string())
    return get_slice(runtime.budget(), self, {Value::none(), Value::none(), Value::integer(-1)});
  const bool is_generator = self.is_sequence(SequenceKind::kGenerator);
  TENON_ASSIGN_OR_RETURN(const SequencePtr items, iterate(runtime.budget(), self));
  TENON_RETURN_IF_ERROR(runtime.budget().charge_items(items->items.size()));
  std::vector<Value> reversed(items->items.rbegin(), items->items.rend());
  return is_generator ? Value::list(std::move(reversed)) : Value::generator(std::move(reversed));
}

Result<Value> items_filter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_RETURN_IF_ERROR(Parameters::bind(arguments, {}).status());
  if (self.is_undefined()) return Value::generator({});
  if (!self.is_dict()) return invalid_argument("can only get item pairs from a mapping");
  TENON_ASSIGN_OR_RETURN(const Value items, find_method(self, "items")(runtime, self, {}));
  return Value::generator(items.as_sequence()->items);
}

// The key each item is sorted or grouped by.
struct KeyOptions {
  bool case_sensitive = false;
  const Value* fallback = nullptr;
};

Result<std::vector<Value>> keys_of(Runtime& runtime,
                                   const std::vector<Value>& items,
                                   const Value* attribute,
                                   const KeyOptions& options) {
  const AttributePath path(attribute == nullptr ? Value::none() : *attribute, options.fallback);
  std::vector<Value> keys;
  keys.reserve(items.size());
  for (const Value& item : items) {
    TENON_ASSIGN_OR_RETURN(Value key, path.get(runtime, item));
    if (!options.case_sensitive && key.is_string()) {
      TENON_RETURN_IF_ERROR(runtime.budget().charge_bytes(key.as_text().size() * 4));
      key = ignore_case(key);
    }
    keys.push_back(std::move(key));
  }
  return keys;
}

// "a,b" sorts by a, then by b: the key becomes a list.
Result<std::vector<Value>> sort_keys_of(Runtime& runtime,
                                        const std::vector<Value>& items,
                                        const Value* attribute,
                                        const KeyOptions& options) {
  if (attribute == nullptr || !attribute->is_string() ||
      attribute->as_text().view().find(',') == std::string_view::npos) {
    return keys_of(runtime, items, attribute, options);
  }
  std::vector<std::vector<Value>> parts(items.size());
  for (const MarkedText& name : split(attribute->as_text(), ",", -1)) {
    const Value part = Value::text(name);
    TENON_ASSIGN_OR_RETURN(const std::vector<Value> keys, keys_of(runtime, items, &part, options));
    for (size_t i = 0; i < keys.size(); ++i) parts[i].push_back(keys[i]);
  }
  std::vector<Value> keys;
  for (auto& key : parts) keys.push_back(Value::list(std::move(key)));
  return keys;
}

Result<Value> sort_filter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters,
                         Parameters::bind(arguments, {"reverse", "case_sensitive", "attribute"}));
  TENON_ASSIGN_OR_RETURN(const SequencePtr items, iterate(runtime.budget(), self));
  TENON_ASSIGN_OR_RETURN(const std::vector<Value> keys,
                         sort_keys_of(runtime, items->items, parameters.get_unless_none(2),
                                      {parameters.flag(1), nullptr}));
  TENON_ASSIGN_OR_RETURN(const std::vector<size_t> order,
                         sorted_order(runtime.budget(), keys, parameters.flag(0)));
  std::vector<Value> sorted;
  for (const size_t index : order) sorted.push_back(items->items[index]);
  return Value::list(std::move(sorted));
}

Result<Value> dictsort(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters,
                         Parameters::bind(arguments, {"case_sensitive", "by", "reverse"}));
  if (self.is_undefined()) return invalid_argument("{}", self.undefined_reason());
  if (!self.is_dict()) return invalid_argument("a mapping is needed, not {}", self.type_name());
  Integer position = 0;
  if (parameters.get(1) != nullptr) {
    TENON_ASSIGN_OR_RETURN(const TextPtr by, parameters.text(1));
    if (by->view() != "key" && by->view() != "value")
      return invalid_argument("by must be 'key' or 'value'");
    position = by->view() == "value" ? 1 : 0;
  }
  TENON_ASSIGN_OR_RETURN(const Value pairs, find_method(self, "items")(runtime, self, {}));
  const std::vector<Value>& items = pairs.as_sequence()->items;
  const Value attribute = Value::integer(position);
  TENON_ASSIGN_OR_RETURN(const std::vector<Value> keys,
                         keys_of(runtime, items, &attribute, {parameters.flag(0), nullptr}));
  TENON_ASSIGN_OR_RETURN(const std::vector<size_t> order,
                         sorted_order(runtime.budget(), keys, parameters.flag(2)));
  std::vector<Value> sorted;
  for (const size_t index : order) sorted.push_back(items[index]);
  return Value::list(std::move(sorted));
}

Result<Value> unique(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters,
                         Parameters::bind(arguments, {"case_sensitive", "attribute"}));
  TENON_ASSIGN_OR_RETURN(const SequencePtr items, iterate(runtime.budget(), self));
  TENON_ASSIGN_OR_RETURN(
      const std::vector<Value> keys,
      keys_of(runtime, items->items, parameters.get_unless_none(1), {parameters.flag(0), nullptr}));
  Dict seen;
  std::vector<Value> kept;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!is_hashable(keys[i]))
      return invalid_argument("unhashable type: '{}'", keys[i].type_name());
    if (seen.find(keys[i]) != nullptr) continue;
    seen.set(keys[i], Value::none());
    kept.push_back(items->items[i]);
  }
  return Value::generator(std::move(kept));
}

Result<Value> extreme(Runtime& runtime,
                      const Value& self,
                      const Arguments& arguments,
                      bool largest) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters,
                         Parameters::bind(arguments, {"case_sensitive", "attribute"}));
  TENON_ASSIGN_OR_RETURN(const SequencePtr items, iterate(runtime.budget(), self));
  if (items->items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  TENON_ASSIGN_OR_RETURN(
      const std::vector<Value> keys,
      keys_of(runtime, items->items, parameters.get_unless_none(1), {parameters.flag(0), nullptr}));
  size_t best = 0;
  for (size_t i = 1; i < keys.size(); ++i) {
    TENON_ASSIGN_OR_RETURN(const bool better,
                           largest ? less_than(runtime.budget(), keys[best], keys[i])
                                   : less_than(runtime.budget(), keys[i], keys[best]));
    if (better) best = i;
  }
  return items->items[best];
}

Result<Value> min_filter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return extreme(runtime, self, arguments, false);
}
Result<Value> max_filter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return extreme(runtime, self, arguments, true);
}

Result<Value> batch(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters,
                         Parameters::bind(arguments, {"linecount", "fill_with"}, 1));
  TENON_ASSIGN_OR_RETURN(const int64_t count, parameters.integer(0));
  TENON_ASSIGN_OR_RETURN(const SequencePtr items, iterate(runtime.budget(), self));
  if (count < 1) return invalid_argument("linecount must be positive");
  const Value* fill = parameters.get_unless_none(1);
  if (fill != nullptr) TENON_RETURN_IF_ERROR(runtime.budget().charge(count * 2));
  TENON_RETURN_IF_ERROR(runtime.budget().charge_items(items->items.size()));
  std::vector<Value> rows;
  std::vector<Value> row;
  const auto flush = [&] {
    if (row.empty()) return;
    if (fill != nullptr) row.resize(static_cast<size_t>(count), *fill);
    rows.push_back(Value::list(std::exchange(row, {})));
  };
  for (const Value& item : items->items) {
    row.push_back(item);
    if (static_cast<int64_t>(row.size()) == count) flush();
  }
  flush();
  return Value::generator(std::move(rows));
}

Result<Value> slice_filter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters,
                         Parameters::bind(arguments, {"slices", "fill_with"}, 1));
  TENON_ASSIGN_OR_RETURN(const int64_t slices, parameters.integer(0));
  TENON_ASSIGN_OR_RETURN(const SequencePtr items, iterate(runtime.budget(), self));
  if (slices < 1) return invalid_argument("the number of slices must be positive");
  TENON_RETURN_IF_ERROR(runtime.budget().charge(slices > kMaxSteps ? kMaxSteps + 1 : slices * 4));
  TENON_RETURN_IF_ERROR(runtime.budget().charge_items(items->items.size()));
  const auto size = static_cast<int64_t>(items->items.size());
  const int64_t longer = size % slices;
  std::vector<Value> columns;
  auto next = items->items.begin();
  for (int64_t i = 0; i < slices; ++i) {
    const auto end = next + size / slices + (i < longer ? 1 : 0);
    std::vector<Value> column(next, end);
    if (parameters.get_unless_none(1) != nullptr && i >= longer)
      column.push_back(*parameters.get(1));
    columns.push_back(Value::list(std::move(column)));
    next = end;
  }
  return Value::generator(std::move(columns));
}

Result<Value> groupby(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(
      const Parameters parameters,
      Parameters::bind(arguments, {"attribute", "default", "case_sensitive"}, 1));
  TENON_ASSIGN_OR_RETURN(const SequencePtr items, iterate(runtime.budget(), self));
  const KeyOptions options{parameters.flag(2), parameters.get_unless_none(1)};
  TENON_ASSIGN_OR_RETURN(const std::vector<Value> keys,
                         keys_of(runtime, items->items, parameters.get(0), options));
  TENON_ASSIGN_OR_RETURN(const std::vector<size_t> order,
                         sorted_order(runtime.budget(), keys, false));
  const AttributePath shown(*parameters.get(0), options.fallback);
  std::vector<Value> groups;
  for (size_t begin = 0; begin < order.size();) {
    std::vector<Value> members;
    size_t end = begin;
    for (; end < order.size(); ++end) {
      TENON_ASSIGN_OR_RETURN(const bool same,
                             equals(runtime.budget(), keys[order[begin]], keys[order[end]]));
      if (!same) break;
      members.push_back(items->items[order[end]]);
    }
    if (end == begin) return invalid_argument("a key is not equal to itself");
    // The first member's own spelling names the group.
    TENON_ASSIGN_OR_RETURN(Value grouper, shown.get(runtime, members.front()));
    groups.push_back(Value::sequence(SequenceKind::kGroup,
                                     {std::move(grouper), Value::list(std::move(members))}));
    begin = end;
  }
  return Value::list(std::move(groups));
}

constexpr NativeEntry kFilters[] = {
    {"length", length_filter},
    {"count", length_filter},
    {"default", default_filter},
    {"d", default_filter},
    {"list", list_filter},
    {"first", first},
    {"last", last},
    {"reverse", reverse},
    {"items", items_filter},
    {"sort", sort_filter},
    {"dictsort", dictsort},
    {"unique", unique},
    {"min", min_filter},
    {"max", max_filter},
    {"batch", batch},
    {"slice", slice_filter},
    {"groupby", groupby},
};

}  // namespace

std::span<const NativeEntry> sequence_filters() {
  return kFilters;
}

AttributePath::AttributePath(const Value& path, const Value* fallback) : fallback_(fallback) {
  if (path.is_none()) return;
  if (!path.is_string()) {
    parts_.push_back(path);
    return;
  }
  for (const MarkedText& part : split(path.as_text(), ".", -1)) {
    const bool is_index = !part.empty() && part.size() < 10 &&
                          part.view().find_first_not_of("0123456789") == std::string_view::npos;
    parts_.push_back(is_index ? Value::integer(std::stoll(part.bytes())) : Value::text(part));
  }
}

Result<Value> AttributePath::get(Runtime& runtime, Value item) const {
  if (!runtime.budget().spend(1)) return Budget::exhausted();
  for (const Value& part : parts_) {
    TENON_ASSIGN_OR_RETURN(item, get_item(runtime, item, part));
    if (item.is_undefined() && fallback_ != nullptr) item = *fallback_;
  }
  return item;
}

Value ignore_case(const Value& value) {
  return value.is_string() ? Value::text(map_case(value.as_text(), CaseMapping::kLower)) : value;
}

Native find_filter(std::string_view name) {
  static const auto* const kTable = [] {
    auto* table = new std::unordered_map<std::string_view, Native>();
    for (const auto entries :
         {text_filters(), number_filters(), sequence_filters(), selection_filters()}) {
      for (const NativeEntry& entry : entries) table->emplace(entry.name, entry.function);
    }
    return table;
  }();
  const auto found = kTable->find(name);
  return found == kTable->end() ? nullptr : found->second;
}

}  // namespace tenon::jinja
