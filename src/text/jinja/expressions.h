// The kinds of expressions.
//
// Ownership, thread safety: see expression.h.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "text/jinja/expression.h"
#include "text/jinja/native.h"
#include "text/jinja/operators.h"

namespace tenon::jinja {

class Constant : public Expression {
 public:
  explicit Constant(Value value) : value_(std::move(value)) {}
  Result<Value> run(Runtime& runtime) const override;

 private:
  Value value_;
};

class Name : public Expression {
 public:
  explicit Name(std::string name) : name_(std::move(name)) {}
  Result<Value> run(Runtime& runtime) const override;
  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  std::string name_;
};

// The text a filter block or a block `set` with filters has captured.
class CapturedText : public Expression {
 public:
  Result<Value> run(Runtime& runtime) const override;
};

class SequenceLiteral : public Expression {
 public:
  SequenceLiteral(SequenceKind kind, std::vector<ExpressionPtr> items)
      : kind_(kind), items_(std::move(items)) {}
  Result<Value> run(Runtime& runtime) const override;
  [[nodiscard]] SequenceKind kind() const { return kind_; }
  [[nodiscard]] const std::vector<ExpressionPtr>& items() const { return items_; }

 private:
  SequenceKind kind_;
  std::vector<ExpressionPtr> items_;
};

class DictLiteral : public Expression {
 public:
  using Entry = std::pair<ExpressionPtr, ExpressionPtr>;
  explicit DictLiteral(std::vector<Entry> entries) : entries_(std::move(entries)) {}
  Result<Value> run(Runtime& runtime) const override;

 private:
  std::vector<Entry> entries_;
};

enum class UnaryOperator { kNot, kMinus, kPlus };

class UnaryOperation : public Expression {
 public:
  UnaryOperation(UnaryOperator op, ExpressionPtr operand) : op_(op), operand_(std::move(operand)) {}
  Result<Value> run(Runtime& runtime) const override;

 private:
  UnaryOperator op_;
  ExpressionPtr operand_;
};

class BinaryOperation : public Expression {
 public:
  BinaryOperation(BinaryOperator op, ExpressionPtr left, ExpressionPtr right)
      : op_(op), left_(std::move(left)), right_(std::move(right)) {}
  Result<Value> run(Runtime& runtime) const override;

 private:
  BinaryOperator op_;
  ExpressionPtr left_, right_;
};

enum class LogicalOperator { kAnd, kOr };

// `and`, `or`: the value of the operand that decides.
class LogicalOperation : public Expression {
 public:
  LogicalOperation(LogicalOperator op, ExpressionPtr left, ExpressionPtr right)
      : op_(op), left_(std::move(left)), right_(std::move(right)) {}
  Result<Value> run(Runtime& runtime) const override;

 private:
  LogicalOperator op_;
  ExpressionPtr left_, right_;
};

class Conditional : public Expression {
 public:
  // `otherwise` may be null: undefined.
  Conditional(ExpressionPtr condition, ExpressionPtr then, ExpressionPtr otherwise)
      : condition_(std::move(condition)),
        then_(std::move(then)),
        otherwise_(std::move(otherwise)) {}
  Result<Value> run(Runtime& runtime) const override;

 private:
  ExpressionPtr condition_, then_, otherwise_;
};

// a < b <= c
class ComparisonChain : public Expression {
 public:
  using Link = std::pair<ComparisonOperator, ExpressionPtr>;
  ComparisonChain(ExpressionPtr first, std::vector<Link> links)
      : first_(std::move(first)), links_(std::move(links)) {}
  Result<Value> run(Runtime& runtime) const override;

 private:
  ExpressionPtr first_;
  std::vector<Link> links_;
};

// a ~ b ~ c
class Concatenation : public Expression {
 public:
  explicit Concatenation(std::vector<ExpressionPtr> parts) : parts_(std::move(parts)) {}
  Result<Value> run(Runtime& runtime) const override;

 private:
  std::vector<ExpressionPtr> parts_;
};

class AttributeAccess : public Expression {
 public:
  AttributeAccess(ExpressionPtr object, std::string name)
      : object_(std::move(object)), name_(std::move(name)) {}
  Result<Value> run(Runtime& runtime) const override;
  [[nodiscard]] const Expression& object() const { return *object_; }
  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  ExpressionPtr object_;
  std::string name_;
};

class ItemAccess : public Expression {
 public:
  ItemAccess(ExpressionPtr object, ExpressionPtr key)
      : object_(std::move(object)), key_(std::move(key)) {}
  Result<Value> run(Runtime& runtime) const override;

 private:
  ExpressionPtr object_, key_;
};

// object[start:stop:step]; each bound may be null.
class SliceAccess : public Expression {
 public:
  struct Bounds {
    ExpressionPtr start, stop, step;
  };
  SliceAccess(ExpressionPtr object, Bounds bounds)
      : object_(std::move(object)), bounds_(std::move(bounds)) {}
  Result<Value> run(Runtime& runtime) const override;

 private:
  ExpressionPtr object_;
  Bounds bounds_;
};

class Call : public Expression {
 public:
  Call(ExpressionPtr callee, CallArguments arguments)
      : callee_(std::move(callee)), arguments_(std::move(arguments)) {}
  Result<Value> run(Runtime& runtime) const override;
  // With one more named argument: {% call %} hands its block over as `caller`.
  Result<Value> run_with(Runtime& runtime, std::string_view name, Value value) const;

 private:
  Result<Value> invoke(Runtime& runtime, Arguments arguments) const;

  ExpressionPtr callee_;
  CallArguments arguments_;
};

// value | filter(arguments)
class FilterUse : public Expression {
 public:
  // `filter` may be null for an unknown name, which is an error when it is used.
  FilterUse(ExpressionPtr subject, std::string name, Native filter, CallArguments arguments)
      : subject_(std::move(subject)),
        name_(std::move(name)),
        filter_(filter),
        arguments_(std::move(arguments)) {}
  Result<Value> run(Runtime& runtime) const override;

 private:
  ExpressionPtr subject_;
  std::string name_;
  Native filter_;
  CallArguments arguments_;
};

// value is test(arguments)
class TestUse : public Expression {
 public:
  TestUse(ExpressionPtr subject, std::string name, Native test, CallArguments arguments)
      : subject_(std::move(subject)),
        name_(std::move(name)),
        test_(test),
        arguments_(std::move(arguments)) {}
  Result<Value> run(Runtime& runtime) const override;

 private:
  ExpressionPtr subject_;
  std::string name_;
  Native test_;
  CallArguments arguments_;
};

}  // namespace tenon::jinja
