// Macros: functions written in the template.
//
// Ownership: a Macro refers to its definition in the tree and to the scope it was defined in.
// Thread safety: a Macro belongs to one rendering.
#pragma once

#include <string>
#include <vector>

#include "text/jinja/expression.h"
#include "text/jinja/runtime.h"
#include "text/jinja/statement.h"

namespace tenon::jinja {

struct MacroDefinition {
  struct Parameter {
    std::string name;
    ExpressionPtr fallback;  // null: none
  };
  std::string name;
  std::vector<Parameter> parameters;
  Block body;
  // Which of the special variables the body uses; only then are they accepted.
  bool uses_caller = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
};

class Macro : public Object {
 public:
  Macro(const MacroDefinition& definition, ScopePtr scope)
      : definition_(definition), scope_(std::move(scope)) {}
  // A macro of the running scope, as a value.
  static Value define(Runtime& runtime, const MacroDefinition& definition);

  [[nodiscard]] std::string_view type_name() const override { return "Macro"; }
  [[nodiscard]] bool is_callable() const override { return true; }
  Result<Value> call(Runtime& runtime, const Arguments& arguments) override;
  Result<std::optional<Value>> attribute(Runtime& runtime, std::string_view name) override;

 private:
  Status bind(Runtime& runtime, const Arguments& arguments) const;
  Status bind_parameters(Runtime& runtime,
                         const Arguments& arguments,
                         std::vector<bool>& used_names) const;

  const MacroDefinition& definition_;
  ScopePtr scope_;
};

}  // namespace tenon::jinja
