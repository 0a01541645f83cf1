// An expression of the syntax tree, and the arguments of calls.
//
// Ownership: a node owns its children. Thread safety: trees are immutable after parsing.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/jinja/value.h"

namespace tenon::jinja {

class Runtime;

class Expression {
 public:
  virtual ~Expression() = default;
  // Go through Runtime::evaluate, which holds the limits and puts the line into errors.
  virtual Result<Value> run(Runtime& runtime) const = 0;

  int line = 0;
  int depth = 1;  // levels of the tree below and including this node
};
using ExpressionPtr = std::unique_ptr<Expression>;

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr star;         // *args
  ExpressionPtr double_star;  // **kwargs

  Result<Arguments> evaluate(Runtime& runtime) const;
};

}  // namespace tenon::jinja
