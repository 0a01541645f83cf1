// The tests of the language: {{ value is test }}.
#include <unordered_map>

#include "text/jinja/native.h"
#include "text/jinja/operators.h"
#include "text/jinja/printing.h"
#include "text/jinja/runtime.h"
#include "text/jinja/string_methods.h"

namespace tenon::jinja {
namespace {

using Predicate = bool (*)(const Value& value);

bool is_sequence(const Value& value) {
  return value.is_string() || value.is_dict() || value.is_undefined() ||
         (value.is_sequence() && value.as_sequence()->is_indexable());
}
bool is_iterable(const Value& value) {
  return value.is_string() || value.is_dict() || value.is_undefined() || value.is_sequence();
}

template <Predicate predicate>
Result<Value> simple(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  TENON_RETURN_IF_ERROR(Parameters::bind(arguments, {}).status());
  return Value::boolean(predicate(self));
}

bool is_defined(const Value& value) {
  return !value.is_undefined();
}
bool is_undefined(const Value& value) {
  return value.is_undefined();
}
bool is_none(const Value& value) {
  return value.is_none();
}
bool is_boolean(const Value& value) {
  return value.kind() == Kind::kBool;
}
bool is_true(const Value& value) {
  return value.kind() == Kind::kBool && value.as_bool();
}
bool is_false(const Value& value) {
  return value.kind() == Kind::kBool && !value.as_bool();
}
bool is_integer(const Value& value) {
  return value.kind() == Kind::kInteger;
}
bool is_float(const Value& value) {
  return value.kind() == Kind::kFloat;
}
bool is_number(const Value& value) {
  return value.is_number();
}
bool is_string(const Value& value) {
  return value.is_string();
}
bool is_mapping(const Value& value) {
  return value.is_dict();
}
bool is_callable(const Value& value) {
  return value.is_object() && value.as_object()->is_callable();
}
bool is_escaped(const Value& /*value*/) {
  return false;
}  // there are no escaped strings

template <ComparisonOperator op>
Result<Value> comparison(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters, Parameters::bind(arguments, {"other"}, 1));
  TENON_ASSIGN_OR_RETURN(const bool holds, compare(runtime.budget(), op, self, *parameters.get(0)));
  return Value::boolean(holds);
}

Result<Value> sameas(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters, Parameters::bind(arguments, {"other"}, 1));
  return Value::boolean(self.same_as(*parameters.get(0)));
}

Result<bool> remainder_is(Runtime& runtime,
                          const Value& self,
                          const Value& divisor,
                          Integer wanted) {
  if (self.is_string()) return invalid_argument("a number is needed, not str");
  TENON_ASSIGN_OR_RETURN(const Value remainder,
                         apply(runtime.budget(), BinaryOperator::kModulo, self, divisor));
  return equals(runtime.budget(), remainder, Value::integer(wanted));
}

template <int wanted>
Result<Value> parity(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_RETURN_IF_ERROR(Parameters::bind(arguments, {}).status());
  TENON_ASSIGN_OR_RETURN(const bool holds, remainder_is(runtime, self, Value::integer(2), wanted));
  return Value::boolean(holds);
}

Result<Value> divisibleby(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters, Parameters::bind(arguments, {"num"}, 1));
  TENON_ASSIGN_OR_RETURN(const bool holds, remainder_is(runtime, self, *parameters.get(0), 0));
  return Value::boolean(holds);
}

template <bool upper>
Result<Value> in_case(Runtime& runtime, const Value& self, const Arguments& arguments) {
  TENON_RETURN_IF_ERROR(Parameters::bind(arguments, {}).status());
  TENON_ASSIGN_OR_RETURN(const MarkedText text, to_text(runtime.budget(), self));
  return Value::boolean(upper ? is_upper_text(text.view()) : is_lower_text(text.view()));
}

template <Native (*find)(std::string_view)>
Result<Value> is_name_of(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  TENON_RETURN_IF_ERROR(Parameters::bind(arguments, {}).status());
  return Value::boolean(self.is_string() && find(self.as_text().view()) != nullptr);
}

constexpr NativeEntry kTests[] = {
    {"defined", simple<is_defined>},
    {"undefined", simple<is_undefined>},
    {"none", simple<is_none>},
    {"boolean", simple<is_boolean>},
    {"true", simple<is_true>},
    {"false", simple<is_false>},
    {"integer", simple<is_integer>},
    {"float", simple<is_float>},
    {"number", simple<is_number>},
    {"string", simple<is_string>},
    {"mapping", simple<is_mapping>},
    {"sequence", simple<is_sequence>},
    {"iterable", simple<is_iterable>},
    {"callable", simple<is_callable>},
    {"escaped", simple<is_escaped>},
    {"eq", comparison<ComparisonOperator::kEqual>},
    {"equalto", comparison<ComparisonOperator::kEqual>},
    {"==", comparison<ComparisonOperator::kEqual>},
    {"ne", comparison<ComparisonOperator::kNotEqual>},
    {"!=", comparison<ComparisonOperator::kNotEqual>},
    {"lt", comparison<ComparisonOperator::kLess>},
    {"lessthan", comparison<ComparisonOperator::kLess>},
    {"<", comparison<ComparisonOperator::kLess>},
    {"le", comparison<ComparisonOperator::kLessEqual>},
    {"<=", comparison<ComparisonOperator::kLessEqual>},
    {"gt", comparison<ComparisonOperator::kGreater>},
    {"greaterthan", comparison<ComparisonOperator::kGreater>},
    {">", comparison<ComparisonOperator::kGreater>},
    {"ge", comparison<ComparisonOperator::kGreaterEqual>},
    {">=", comparison<ComparisonOperator::kGreaterEqual>},
    {"in", comparison<ComparisonOperator::kIn>},
    {"sameas", sameas},
    {"odd", parity<1>},
    {"even", parity<0>},
    {"divisibleby", divisibleby},
    {"upper", in_case<true>},
    {"lower", in_case<false>},
    {"filter", is_name_of<find_filter>},
    {"test", is_name_of<find_test>},
};

}  // namespace

Native find_test(std::string_view name) {
  static const auto* const kTable = [] {
    auto* table = new std::unordered_map<std::string_view, Native>();
    for (const NativeEntry& entry : kTests) table->emplace(entry.name, entry.function);
    return table;
  }();
  const auto found = kTable->find(name);
  return found == kTable->end() ? nullptr : found->second;
}

}  // namespace tenon::jinja
