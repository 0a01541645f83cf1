#include <algorithm>
#include <array>

#include "text/jinja/native.h"
#include "text/jinja/runtime.h"
#include "text/jinja/string_methods.h"

namespace tenon::jinja {
namespace {

// ---- dict

Result<Value> dict_items(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_RETURN_IF_ERROR(Parameters::bind(arguments, {}).status());
  TENON_RETURN_IF_ERROR(runtime.budget().charge_items(self.as_dict().size() * 2));
  std::vector<Value> items;
  for (const auto& [key, value] : self.as_dict().entries())
    items.push_back(Value::tuple({key, value}));
  return Value::sequence(SequenceKind::kItems, std::move(items));
}

Result<Value> dict_keys(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_RETURN_IF_ERROR(Parameters::bind(arguments, {}).status());
  TENON_RETURN_IF_ERROR(runtime.budget().charge_items(self.as_dict().size()));
  std::vector<Value> keys;
  for (const auto& entry : self.as_dict().entries()) keys.push_back(entry.first);
  return Value::sequence(SequenceKind::kKeys, std::move(keys));
}

Result<Value> dict_values(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_RETURN_IF_ERROR(Parameters::bind(arguments, {}).status());
  TENON_RETURN_IF_ERROR(runtime.budget().charge_items(self.as_dict().size()));
  std::vector<Value> values;
  for (const auto& entry : self.as_dict().entries()) values.push_back(entry.second);
  return Value::sequence(SequenceKind::kValues, std::move(values));
}

Result<Value> dict_get(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters,
                         Parameters::bind(arguments, {"key", "default"}, 1));
  const Value& key = *parameters.get(0);
  if (!is_hashable(key)) return invalid_argument("unhashable type: '{}'", key.type_name());
  if (key.is_string()) TENON_RETURN_IF_ERROR(runtime.budget().charge_bytes(key.as_text().size()));
  if (const Value* found = self.as_dict().find(key)) return *found;
  return parameters.get(1) == nullptr ? Value::none() : *parameters.get(1);
}

Result<Value> copy(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  TENON_RETURN_IF_ERROR(Parameters::bind(arguments, {}).status());
  return self;  // nothing can change either of the two
}

// ---- list and tuple

Result<Value> sequence_count(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters, Parameters::bind(arguments, {"value"}, 1));
  Integer count = 0;
  for (const Value& item : self.as_sequence()->items) {
    if (!runtime.budget().spend(1)) return Budget::exhausted();
    TENON_ASSIGN_OR_RETURN(const bool same, equals(runtime.budget(), item, *parameters.get(0)));
    count += same ? 1 : 0;
  }
  return Value::integer(count);
}

Result<Value> sequence_index(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters,
                         Parameters::bind(arguments, {"value", "start", "stop"}, 1));
  const std::vector<Value>& items = self.as_sequence()->items;
  const auto size = static_cast<int64_t>(items.size());
  TENON_ASSIGN_OR_RETURN(int64_t start, parameters.integer(1, 0));
  TENON_ASSIGN_OR_RETURN(int64_t stop, parameters.integer(2, size));
  start = std::clamp<int64_t>(start < 0 ? start + size : start, 0, size);
  stop = std::clamp<int64_t>(stop < 0 ? stop + size : stop, 0, size);
  for (int64_t i = start; i < stop; ++i) {
    if (!runtime.budget().spend(1)) return Budget::exhausted();
    TENON_ASSIGN_OR_RETURN(const bool same, equals(runtime.budget(), items[static_cast<size_t>(i)],
                                                   *parameters.get(0)));
    if (same) return Value::integer(i);
  }
  return invalid_argument("the value is not in the {}", self.type_name());
}

constexpr NativeEntry kDictMethods[] = {{"items", dict_items},
                                        {"keys", dict_keys},
                                        {"values", dict_values},
                                        {"get", dict_get},
                                        {"copy", copy}};
constexpr NativeEntry kListMethods[] = {
    {"count", sequence_count}, {"index", sequence_index}, {"copy", copy}};
constexpr NativeEntry kTupleMethods[] = {{"count", sequence_count}, {"index", sequence_index}};

constexpr std::array<std::string_view, 8> kRefusedOfList = {"append", "clear",  "pop",  "reverse",
                                                            "insert", "extend", "sort", "remove"};
constexpr std::array<std::string_view, 5> kRefusedOfDict = {"clear", "pop", "popitem", "setdefault",
                                                            "update"};

template <size_t size>
Native find_in(const NativeEntry (&entries)[size], std::string_view name) {
  for (const auto& [method, function] : entries) {
    if (method == name) return function;
  }
  return nullptr;
}

}  // namespace

Native find_method(const Value& self, std::string_view name) {
  if (self.is_string()) return find_string_method(name);
  if (self.is_dict()) return find_in(kDictMethods, name);
  if (self.is_sequence(SequenceKind::kList)) return find_in(kListMethods, name);
  if (self.is_tuple() || self.is_sequence(SequenceKind::kRange))
    return find_in(kTupleMethods, name);
  if (self.is_object()) return self.as_object()->method(name);
  return nullptr;
}

bool is_refused_method(const Value& self, std::string_view name) {
  const auto has = [&](const auto& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  return (self.is_sequence(SequenceKind::kList) && has(kRefusedOfList)) ||
         (self.is_dict() && has(kRefusedOfDict));
}

}  // namespace tenon::jinja
