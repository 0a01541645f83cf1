// Python's operators on values: arithmetic, comparison, membership, subscripts and attributes.
//
// Thread safety: pure functions of their arguments.
#pragma once

#include <string_view>

#include "base/status.h"
#include "text/jinja/value.h"

namespace tenon::jinja {

enum class BinaryOperator { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };
enum class ComparisonOperator {
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn
};

Result<Value> apply(Budget& budget, BinaryOperator op, const Value& left, const Value& right);
Result<Value> negate(const Value& value);
Result<Value> positive(const Value& value);
Result<bool> compare(Budget& budget, ComparisonOperator op, const Value& left, const Value& right);
Result<bool> contains(Budget& budget, const Value& container, const Value& item);

// object.name and object[key]. What is not there is undefined; using undefined as an object is an
// error.
Result<Value> get_attribute(Runtime& runtime, const Value& object, std::string_view name);
Result<Value> get_item(Runtime& runtime, const Value& object, const Value& key);

struct SliceBounds {
  Value start, stop, step;  // none: left out
};
Result<Value> get_slice(Budget& budget, const Value& object, const SliceBounds& bounds);

}  // namespace tenon::jinja
