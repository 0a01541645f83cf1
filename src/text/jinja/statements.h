// The kinds of statements.
//
// Ownership, thread safety: see statement.h.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "text/jinja/expressions.h"
#include "text/jinja/macro.h"
#include "text/jinja/statement.h"

namespace tenon::jinja {

// Where a value is assigned: a name, an attribute of a namespace, or a tuple of targets.
struct Target {
  int line = 0;
  std::string name;
  std::string attribute;  // of the namespace `name`, if not empty
  bool is_tuple = false;
  std::vector<Target> items;  // of a tuple

  Status assign(Runtime& runtime, Value value) const;
};

// Text between tags.
class Data : public Statement {
 public:
  explicit Data(std::string text) : text_(std::move(text)) {}
  Result<Flow> run(Runtime& runtime) const override;

 private:
  std::string text_;
};

// {{ expression }}
class Output : public Statement {
 public:
  explicit Output(ExpressionPtr expression) : expression_(std::move(expression)) {}
  Result<Flow> run(Runtime& runtime) const override;

 private:
  ExpressionPtr expression_;
};

class If : public Statement {
 public:
  struct Branch {
    ExpressionPtr condition;  // null: else
    Block body;
  };
  explicit If(std::vector<Branch> branches) : branches_(std::move(branches)) {}
  Result<Flow> run(Runtime& runtime) const override;

 private:
  std::vector<Branch> branches_;
};

class For : public Statement {
 public:
  struct Parts {
    Target target;
    ExpressionPtr iterable;
    ExpressionPtr condition;  // may be null
    Block body;
    Block otherwise;
    bool recursive = false;
  };
  explicit For(Parts parts) : parts_(std::move(parts)) {}
  Result<Flow> run(Runtime& runtime) const override;
  // Runs the loop over other items, below `outer`: the call of a recursive loop.
  Result<Flow> run_over(Runtime& runtime, const Value& items, ScopePtr outer, int64_t depth0) const;
  [[nodiscard]] const Parts& parts() const { return parts_; }

 private:
  Parts parts_;
};

class LoopJump : public Statement {
 public:
  explicit LoopJump(Flow flow) : flow_(flow) {}
  Result<Flow> run(Runtime& /*runtime*/) const override { return flow_; }

 private:
  Flow flow_;
};

class Set : public Statement {
 public:
  Set(Target target, ExpressionPtr value) : target_(std::move(target)), value_(std::move(value)) {}
  Result<Flow> run(Runtime& runtime) const override;

 private:
  Target target_;
  ExpressionPtr value_;
};

// {% set x | filter %}...{% endset %}; `filter` may be null.
class SetBlock : public Statement {
 public:
  SetBlock(Target target, ExpressionPtr filter, Block body)
      : target_(std::move(target)), filter_(std::move(filter)), body_(std::move(body)) {}
  Result<Flow> run(Runtime& runtime) const override;

 private:
  Target target_;
  ExpressionPtr filter_;
  Block body_;
};

// {% filter name %}...{% endfilter %}
class FilterBlock : public Statement {
 public:
  FilterBlock(ExpressionPtr filter, Block body)
      : filter_(std::move(filter)), body_(std::move(body)) {}
  Result<Flow> run(Runtime& runtime) const override;

 private:
  ExpressionPtr filter_;
  Block body_;
};

// A body with variables of its own: {% with %}, {% generation %}, {% block %}.
class ScopedBlock : public Statement {
 public:
  using Assignment = std::pair<Target, ExpressionPtr>;
  ScopedBlock(std::vector<Assignment> assignments, Block body)
      : assignments_(std::move(assignments)), body_(std::move(body)) {}
  Result<Flow> run(Runtime& runtime) const override;

 private:
  std::vector<Assignment> assignments_;
  Block body_;
};

class MacroStatement : public Statement {
 public:
  explicit MacroStatement(MacroDefinition definition) : definition_(std::move(definition)) {}
  Result<Flow> run(Runtime& runtime) const override;

 private:
  MacroDefinition definition_;
};

// {% call(args) macro(...) %}...{% endcall %}
class CallBlock : public Statement {
 public:
  CallBlock(std::unique_ptr<Call> call, MacroDefinition caller)
      : call_(std::move(call)), caller_(std::move(caller)) {}
  Result<Flow> run(Runtime& runtime) const override;

 private:
  std::unique_ptr<Call> call_;
  MacroDefinition caller_;
};

}  // namespace tenon::jinja
