#include "text/jinja/expressions.h"

#include "text/jinja/printing.h"
#include "text/jinja/runtime.h"

namespace tenon::jinja {
namespace {

Result<Value> call_value(Runtime& runtime, const Value& callee, const Arguments& arguments) {
  if (callee.is_undefined()) return invalid_argument("{}", callee.undefined_reason());
  if (!callee.is_object())
    return invalid_argument("'{}' object is not callable", callee.type_name());
  return callee.as_object()->call(runtime, arguments);
}

Result<Value> evaluate_or_none(Runtime& runtime, const ExpressionPtr& expression) {
  if (expression == nullptr) return Value::none();
  return runtime.evaluate(*expression);
}

// Errors of natives tell which function complains.
Result<Value> call_named(std::string_view kind, std::string_view name, Result<Value> result) {
  if (result.ok()) return result;
  return result.status().with_context(fmt::format("{} '{}'", kind, name));
}

}  // namespace

Result<Arguments> CallArguments::evaluate(Runtime& runtime) const {
  Arguments arguments;
  arguments.positional.reserve(positional.size());
  for (const ExpressionPtr& expression : positional) {
    TENON_ASSIGN_OR_RETURN(Value value, runtime.evaluate(*expression));
    arguments.positional.push_back(std::move(value));
  }
  for (const auto& [name, expression] : named) {
    TENON_ASSIGN_OR_RETURN(Value value, runtime.evaluate(*expression));
    arguments.named.emplace_back(name, std::move(value));
  }
  if (star != nullptr) {
    TENON_ASSIGN_OR_RETURN(const Value value, runtime.evaluate(*star));
    TENON_ASSIGN_OR_RETURN(const SequencePtr items, iterate(runtime.budget(), value));
    TENON_RETURN_IF_ERROR(runtime.budget().charge_items(items->items.size()));
    arguments.positional.insert(arguments.positional.end(), items->items.begin(),
                                items->items.end());
  }
  if (double_star != nullptr) {
    TENON_ASSIGN_OR_RETURN(const Value value, runtime.evaluate(*double_star));
    if (!value.is_dict())
      return invalid_argument("the argument after ** must be a mapping, not {}", value.type_name());
    TENON_RETURN_IF_ERROR(runtime.budget().charge_items(value.as_dict().size()));
    for (const auto& [key, item] : value.as_dict().entries()) {
      if (!key.is_string()) return invalid_argument("keywords must be strings");
      arguments.named.emplace_back(key.as_text().bytes(), item);
    }
  }
  return arguments;
}

Result<Value> Constant::run(Runtime& /*runtime*/) const {
  return value_;
}

Result<Value> Name::run(Runtime& runtime) const {
  return runtime.lookup(name_);
}

Result<Value> CapturedText::run(Runtime& runtime) const {
  return runtime.captured_text();
}

Result<Value> SequenceLiteral::run(Runtime& runtime) const {
  std::vector<Value> items;
  items.reserve(items_.size());
  for (const ExpressionPtr& expression : items_) {
    TENON_ASSIGN_OR_RETURN(Value item, runtime.evaluate(*expression));
    items.push_back(std::move(item));
  }
  return Value::sequence(kind_, std::move(items));
}

Result<Value> DictLiteral::run(Runtime& runtime) const {
  Dict dict;
  for (const auto& [key_expression, value_expression] : entries_) {
    TENON_ASSIGN_OR_RETURN(Value key, runtime.evaluate(*key_expression));
    if (!is_hashable(key)) return invalid_argument("unhashable type: '{}'", key.type_name());
    TENON_ASSIGN_OR_RETURN(Value value, runtime.evaluate(*value_expression));
    dict.set(std::move(key), std::move(value));
  }
  return Value::dict(std::move(dict));
}

Result<Value> UnaryOperation::run(Runtime& runtime) const {
  TENON_ASSIGN_OR_RETURN(const Value operand, runtime.evaluate(*operand_));
  switch (op_) {
    case UnaryOperator::kNot: return Value::boolean(!operand.truthy());
    case UnaryOperator::kMinus: return negate(operand);
    case UnaryOperator::kPlus: return positive(operand);
  }
  return Value::none();
}

Result<Value> BinaryOperation::run(Runtime& runtime) const {
  TENON_ASSIGN_OR_RETURN(const Value left, runtime.evaluate(*left_));
  TENON_ASSIGN_OR_RETURN(const Value right, runtime.evaluate(*right_));
  return apply(runtime.budget(), op_, left, right);
}

Result<Value> LogicalOperation::run(Runtime& runtime) const {
  TENON_ASSIGN_OR_RETURN(Value left, runtime.evaluate(*left_));
  if (left.truthy() == (op_ == LogicalOperator::kOr)) return left;
  return runtime.evaluate(*right_);
}

Result<Value> Conditional::run(Runtime& runtime) const {
  TENON_ASSIGN_OR_RETURN(const Value condition, runtime.evaluate(*condition_));
  if (condition.truthy()) return runtime.evaluate(*then_);
  if (otherwise_ != nullptr) return runtime.evaluate(*otherwise_);
  return Value::undefined(
      "the inline if-expression evaluated to false and no else section was defined");
}

Result<Value> ComparisonChain::run(Runtime& runtime) const {
  TENON_ASSIGN_OR_RETURN(Value left, runtime.evaluate(*first_));
  for (const auto& [op, expression] : links_) {
    TENON_ASSIGN_OR_RETURN(Value right, runtime.evaluate(*expression));
    TENON_ASSIGN_OR_RETURN(const bool holds, compare(runtime.budget(), op, left, right));
    if (!holds) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Result<Value> Concatenation::run(Runtime& runtime) const {
  MarkedText text;
  for (const ExpressionPtr& part : parts_) {
    TENON_ASSIGN_OR_RETURN(const Value value, runtime.evaluate(*part));
    TENON_RETURN_IF_ERROR(append_text(runtime.budget(), text, value));
  }
  return Value::text(std::move(text));
}

Result<Value> AttributeAccess::run(Runtime& runtime) const {
  TENON_ASSIGN_OR_RETURN(const Value object, runtime.evaluate(*object_));
  return get_attribute(runtime, object, name_);
}

Result<Value> ItemAccess::run(Runtime& runtime) const {
  TENON_ASSIGN_OR_RETURN(const Value object, runtime.evaluate(*object_));
  TENON_ASSIGN_OR_RETURN(const Value key, runtime.evaluate(*key_));
  return get_item(runtime, object, key);
}

Result<Value> SliceAccess::run(Runtime& runtime) const {
  TENON_ASSIGN_OR_RETURN(const Value object, runtime.evaluate(*object_));
  TENON_ASSIGN_OR_RETURN(Value start, evaluate_or_none(runtime, bounds_.start));
  TENON_ASSIGN_OR_RETURN(Value stop, evaluate_or_none(runtime, bounds_.stop));
  TENON_ASSIGN_OR_RETURN(Value step, evaluate_or_none(runtime, bounds_.step));
  return get_slice(runtime.budget(), object, {std::move(start), std::move(stop), std::move(step)});
}

Result<Value> Call::run(Runtime& runtime) const {
  TENON_ASSIGN_OR_RETURN(Arguments arguments, arguments_.evaluate(runtime));
  return invoke(runtime, std::move(arguments));
}

Result<Value> Call::run_with(Runtime& runtime, std::string_view name, Value value) const {
  TENON_ASSIGN_OR_RETURN(Arguments arguments, arguments_.evaluate(runtime));
  arguments.named.emplace_back(name, std::move(value));
  return invoke(runtime, std::move(arguments));
}

Result<Value> Call::invoke(Runtime& runtime, Arguments arguments) const {
  const auto* access = dynamic_cast<const AttributeAccess*>(callee_.get());
  if (access == nullptr) {
    TENON_ASSIGN_OR_RETURN(const Value callee, runtime.evaluate(*callee_));
    return call_value(runtime, callee, arguments);
  }
  // A method is called without making a value of it first.
  TENON_ASSIGN_OR_RETURN(const Value object, runtime.evaluate(access->object()));
  if (const Native method = find_method(object, access->name()); method != nullptr) {
    return call_named("method", access->name(), method(runtime, object, arguments));
  }
  TENON_ASSIGN_OR_RETURN(const Value callee, get_attribute(runtime, object, access->name()));
  return call_value(runtime, callee, arguments);
}

Result<Value> FilterUse::run(Runtime& runtime) const {
  if (filter_ == nullptr) return invalid_argument("there is no filter named '{}'", name_);
  TENON_ASSIGN_OR_RETURN(const Value subject, runtime.evaluate(*subject_));
  TENON_ASSIGN_OR_RETURN(const Arguments arguments, arguments_.evaluate(runtime));
  return call_named("filter", name_, filter_(runtime, subject, arguments));
}

Result<Value> TestUse::run(Runtime& runtime) const {
  if (test_ == nullptr) return invalid_argument("there is no test named '{}'", name_);
  TENON_ASSIGN_OR_RETURN(const Value subject, runtime.evaluate(*subject_));
  TENON_ASSIGN_OR_RETURN(const Arguments arguments, arguments_.evaluate(runtime));
  return call_named("test", name_, test_(runtime, subject, arguments));
}

}  // namespace tenon::jinja
