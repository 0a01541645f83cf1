#include <cmath>

#include "text/jinja/formatting.h"
#include "text/jinja/operators.h"

namespace tenon::jinja {
namespace {

std::string_view symbol(BinaryOperator op) {
  switch (op) {
    case BinaryOperator::kAdd: return "+";
    case BinaryOperator::kSubtract: return "-";
    case BinaryOperator::kMultiply: return "*";
    case BinaryOperator::kDivide: return "/";
    case BinaryOperator::kFloorDivide: return "//";
    case BinaryOperator::kModulo: return "%";
    case BinaryOperator::kPower: return "**";
  }
  return "?";
}

Status too_large() {
  return invalid_argument("the result is too large an integer");
}
Status division_by_zero() {
  return invalid_argument("division by zero");
}

Integer floor_divide(Integer left, Integer right) {
  const Integer quotient = left / right;
  return left % right != 0 && (left < 0) != (right < 0) ? quotient - 1 : quotient;
}

Result<Value> power(Integer base, Integer exponent) {
  if (exponent < 0) {
    if (base == 0) return division_by_zero();
    return Value::real(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  Integer result = 1;
  Integer factor = base;
  for (Integer rest = exponent; rest > 0; rest /= 2) {
    if (rest % 2 == 1 && __builtin_mul_overflow(result, factor, &result)) return too_large();
    if (rest > 1 && __builtin_mul_overflow(factor, factor, &factor)) return too_large();
  }
  return Value::integer(result);
}

Result<Value> apply_integers(BinaryOperator op, Integer left, Integer right) {
  Integer result = 0;
  switch (op) {
    case BinaryOperator::kAdd:
      if (__builtin_add_overflow(left, right, &result)) return too_large();
      return Value::integer(result);
    case BinaryOperator::kSubtract:
      if (__builtin_sub_overflow(left, right, &result)) return too_large();
      return Value::integer(result);
    case BinaryOperator::kMultiply:
      if (__builtin_mul_overflow(left, right, &result)) return too_large();
      return Value::integer(result);
    case BinaryOperator::kDivide:
      if (right == 0) return division_by_zero();
      return Value::real(static_cast<double>(left) / static_cast<double>(right));
    case BinaryOperator::kFloorDivide:
    case BinaryOperator::kModulo:
      if (right == 0) return division_by_zero();
      if (right == -1)
        return op == BinaryOperator::kModulo ? Value::integer(0) : negate(Value::integer(left));
      if (op == BinaryOperator::kFloorDivide) return Value::integer(floor_divide(left, right));
      return Value::integer(left - floor_divide(left, right) * right);
    case BinaryOperator::kPower: return power(left, right);
  }
  return Value::none();
}

// The remainder has the sign of the divisor.
double float_modulo(double left, double right) {
  const double remainder = std::fmod(left, right);
  if (remainder == 0.0) return std::copysign(0.0, right);
  return (remainder < 0) != (right < 0) ? remainder + right : remainder;
}

double float_floor_divide(double left, double right) {
  const double quotient = (left - float_modulo(left, right)) / right;
  const double floor = std::floor(quotient);
  return quotient - floor > 0.5 ? floor + 1.0 : floor;
}

Result<Value> apply_floats(BinaryOperator op, double left, double right) {
  switch (op) {
    case BinaryOperator::kAdd: return Value::real(left + right);
    case BinaryOperator::kSubtract: return Value::real(left - right);
    case BinaryOperator::kMultiply: return Value::real(left * right);
    case BinaryOperator::kPower: {
      if (left == 0.0 && right < 0) return division_by_zero();
      const double result = std::pow(left, right);
      if (std::isnan(result) && !std::isnan(left) && !std::isnan(right)) {
        return invalid_argument("a complex number would result");
      }
      if (std::isinf(result) && std::isfinite(left) && std::isfinite(right)) {
        return invalid_argument("the result is too large a number");
      }
      return Value::real(result);
    }
    default: break;
  }
  if (right == 0.0) return division_by_zero();
  if (op == BinaryOperator::kDivide) return Value::real(left / right);
  return Value::real(op == BinaryOperator::kModulo ? float_modulo(left, right)
                                                   : float_floor_divide(left, right));
}

Result<Value> repeat_text(Budget& budget, const MarkedText& text, Integer count) {
  if (count <= 0 || text.empty()) return Value::text("");
  if (count > static_cast<Integer>(kMaxTextBytes)) return budget.reserve_text(kMaxTextBytes + 1);
  TENON_RETURN_IF_ERROR(budget.reserve_text(text.size() * static_cast<size_t>(count)));
  MarkedText result;
  for (Integer i = 0; i < count; ++i) result.append(text);
  return Value::text(std::move(result));
}

Result<Value> repeat_items(Budget& budget, const Sequence& sequence, Integer count) {
  std::vector<Value> items;
  if (count > 0 && !sequence.items.empty()) {
    if (count > static_cast<Integer>(kMaxSteps)) return Budget::exhausted();
    TENON_RETURN_IF_ERROR(
        budget.charge(static_cast<int64_t>(sequence.items.size()) * static_cast<int64_t>(count)));
    for (Integer i = 0; i < count; ++i)
      items.insert(items.end(), sequence.items.begin(), sequence.items.end());
  }
  return Value::sequence(sequence.is_tuple() ? SequenceKind::kTuple : SequenceKind::kList,
                         std::move(items));
}

bool is_list_or_tuple(const Value& value) {
  return value.is_sequence(SequenceKind::kList) || value.is_tuple();
}

Result<Value> add_sequences(Budget& budget, const Value& left, const Value& right) {
  std::vector<Value> items = left.as_sequence()->items;
  const std::vector<Value>& more = right.as_sequence()->items;
  TENON_RETURN_IF_ERROR(budget.charge_items(items.size() + more.size()));
  items.insert(items.end(), more.begin(), more.end());
  return Value::sequence(left.is_tuple() ? SequenceKind::kTuple : SequenceKind::kList,
                         std::move(items));
}

}  // namespace

Result<Value> apply(Budget& budget, BinaryOperator op, const Value& left, const Value& right) {
  for (const Value* side : {&left, &right}) {
    if (side->is_undefined() && !(op == BinaryOperator::kModulo && left.is_string())) {
      return invalid_argument("{}", side->undefined_reason());
    }
  }
  if (left.is_integral() && right.is_integral())
    return apply_integers(op, left.as_integer(), right.as_integer());
  if (left.is_number() && right.is_number())
    return apply_floats(op, left.as_real(), right.as_real());
  if (op == BinaryOperator::kAdd) {
    if (left.is_string() && right.is_string()) {
      TENON_RETURN_IF_ERROR(budget.reserve_text(left.as_text().size() + right.as_text().size()));
      MarkedText text = left.as_text();
      text.append(right.as_text());
      return Value::text(std::move(text));
    }
    if (is_list_or_tuple(left) && is_list_or_tuple(right) && left.is_tuple() == right.is_tuple()) {
      return add_sequences(budget, left, right);
    }
  } else if (op == BinaryOperator::kMultiply) {
    const Value& factor = left.is_integral() ? left : right;
    const Value& repeated = left.is_integral() ? right : left;
    if (factor.is_integral()) {
      if (repeated.is_string()) return repeat_text(budget, repeated.as_text(), factor.as_integer());
      if (is_list_or_tuple(repeated))
        return repeat_items(budget, *repeated.as_sequence(), factor.as_integer());
    }
  } else if (op == BinaryOperator::kModulo && left.is_string()) {
    return format_percent(budget, left.as_text(), right);
  }
  return invalid_argument("unsupported operand types for {}: '{}' and '{}'", symbol(op),
                          left.type_name(), right.type_name());
}

Result<Value> negate(const Value& value) {
  if (value.is_undefined()) return invalid_argument("{}", value.undefined_reason());
  if (value.kind() == Kind::kFloat) return Value::real(-value.as_real());
  if (!value.is_integral())
    return invalid_argument("bad operand type for unary -: '{}'", value.type_name());
  Integer result = 0;
  if (__builtin_sub_overflow(Integer{0}, value.as_integer(), &result)) return too_large();
  return Value::integer(result);
}

Result<Value> positive(const Value& value) {
  if (value.is_undefined()) return invalid_argument("{}", value.undefined_reason());
  if (value.kind() == Kind::kFloat) return value;
  if (!value.is_integral())
    return invalid_argument("bad operand type for unary +: '{}'", value.type_name());
  return Value::integer(value.as_integer());
}

}  // namespace tenon::jinja
