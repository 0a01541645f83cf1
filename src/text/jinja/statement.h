// A statement of the syntax tree.
//
// Ownership: a node owns its children. Thread safety: trees are immutable after parsing.
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"

namespace tenon::jinja {

class Runtime;

enum class Flow { kNext, kBreak, kContinue };

class Statement {
 public:
  virtual ~Statement() = default;
  // Go through Runtime::execute, which holds the limits and puts the line into errors.
  virtual Result<Flow> run(Runtime& runtime) const = 0;

  int line = 0;
};
using StatementPtr = std::unique_ptr<Statement>;
using Block = std::vector<StatementPtr>;

}  // namespace tenon::jinja
