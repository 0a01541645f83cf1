// Filters that take the name of another filter or test: map, select and its kin.
#include "text/jinja/filters.h"
#include "text/jinja/operators.h"
#include "text/jinja/runtime.h"

namespace tenon::jinja {
namespace {

// Arguments behind the first `count`, for the function that is named there.
Arguments rest_of(const Arguments& arguments, size_t count) {
  Arguments rest;
  rest.positional.assign(arguments.positional.begin() + static_cast<ptrdiff_t>(count),
                         arguments.positional.end());
  rest.named = arguments.named;
  return rest;
}

Result<NativeEntry> named_function(const Value& name,
                                   Native (*find)(std::string_view),
                                   std::string_view kind) {
  if (!name.is_string()) return invalid_argument("the name of a {} is needed", kind);
  const Native function = find(name.as_text().view());
  if (function == nullptr)
    return invalid_argument("there is no {} named '{}'", kind, name.as_text().view());
  return NativeEntry{name.as_text().view(), function};
}

Result<Value> map_attribute(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters,
                         Parameters::bind(arguments, {"attribute", "default"}, 1));
  const AttributePath path(*parameters.get(0), parameters.get_unless_none(1));
  TENON_ASSIGN_OR_RETURN(const SequencePtr items, iterate(runtime.budget(), self));
  std::vector<Value> mapped;
  for (const Value& item : items->items) {
    TENON_ASSIGN_OR_RETURN(Value value, path.get(runtime, item));
    mapped.push_back(std::move(value));
  }
  return Value::generator(std::move(mapped));
}

Result<Value> map_filter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  if (!self.truthy()) return Value::generator({});
  if (arguments.positional.empty()) {
    if (arguments.named.empty() || arguments.named[0].first == "default") {
      return invalid_argument("map requires a filter argument");
    }
    return map_attribute(runtime, self, arguments);
  }
  TENON_ASSIGN_OR_RETURN(const NativeEntry filter,
                         named_function(arguments.positional[0], find_filter, "filter"));
  const Arguments rest = rest_of(arguments, 1);
  TENON_ASSIGN_OR_RETURN(const SequencePtr items, iterate(runtime.budget(), self));
  std::vector<Value> mapped;
  for (const Value& item : items->items) {
    if (!runtime.budget().spend(1)) return Budget::exhausted();
    TENON_ASSIGN_OR_RETURN(Value value, filter.function(runtime, item, rest));
    mapped.push_back(std::move(value));
  }
  return Value::generator(std::move(mapped));
}

struct Selection {
  bool wanted = true;         // keep items whose test says this
  bool by_attribute = false;  // the first argument is an attribute to test
};

Result<Value> select_items(Runtime& runtime,
                           const Value& self,
                           const Arguments& arguments,
                           Selection selection) {
  if (!self.truthy()) return Value::generator({});
  size_t used = 0;
  Value attribute;
  if (selection.by_attribute) {
    if (arguments.positional.empty())
      return invalid_argument("missing parameter for attribute name");
    attribute = arguments.positional[used++];
  }
  const AttributePath path(attribute, nullptr);
  Native test = nullptr;
  if (arguments.positional.size() > used) {
    TENON_ASSIGN_OR_RETURN(const NativeEntry named,
                           named_function(arguments.positional[used++], find_test, "test"));
    test = named.function;
  }
  const Arguments rest = rest_of(arguments, used);
  TENON_ASSIGN_OR_RETURN(const SequencePtr items, iterate(runtime.budget(), self));
  std::vector<Value> selected;
  for (const Value& item : items->items) {
    TENON_ASSIGN_OR_RETURN(Value tested, path.get(runtime, item));
    if (test != nullptr) {
      TENON_ASSIGN_OR_RETURN(tested, test(runtime, tested, rest));
    }
    if (tested.truthy() == selection.wanted) selected.push_back(item);
  }
  return Value::generator(std::move(selected));
}

template <bool wanted, bool by_attribute>
Result<Value> selection_filter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return select_items(runtime, self, arguments, {wanted, by_attribute});
}

Result<Value> attr_filter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters, Parameters::bind(arguments, {"name"}, 1));
  TENON_ASSIGN_OR_RETURN(const TextPtr name, parameters.text(0));
  // Attributes only: an item of a dict is not one.
  if (self.is_dict() && find_method(self, name->view()) == nullptr) {
    return Value::undefined("'dict object' has no attribute '" + name->bytes() + "'");
  }
  return get_attribute(runtime, self, name->view());
}

constexpr NativeEntry kFilters[] = {
    {"map", map_filter},
    {"select", selection_filter<true, false>},
    {"reject", selection_filter<false, false>},
    {"selectattr", selection_filter<true, true>},
    {"rejectattr", selection_filter<false, true>},
    {"attr", attr_filter},
};

}  // namespace

std::span<const NativeEntry> selection_filters() {
  return kFilters;
}

}  // namespace tenon::jinja
