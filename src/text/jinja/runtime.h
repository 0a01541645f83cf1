// One rendering: variables, output, limits.
//
// Ownership: owns scopes and output; refers to the template's tree, which must outlive it.
// Thread safety: none; one thread, one rendering.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/jinja/expression.h"
#include "text/jinja/namespace.h"
#include "text/jinja/statement.h"
#include "text/jinja/value.h"

namespace tenon::jinja {

struct Scope {
  std::map<std::string, Value, std::less<>> variables;
  std::shared_ptr<Scope> parent;
  int depth = 0;
};
using ScopePtr = std::shared_ptr<Scope>;

class Runtime {
 public:
  explicit Runtime(int64_t now_unix);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  [[nodiscard]] Budget& budget() { return budget_; }
  [[nodiscard]] int64_t now_unix() const { return now_unix_; }

  Result<Value> evaluate(const Expression& expression);
  Result<Flow> execute(const Block& block);

  // A message for the caller of the rendering as it is, without the template's line.
  Status raise(std::string message);

  // ---- variables
  [[nodiscard]] const ScopePtr& scope() const { return scope_; }
  Result<Value> lookup(const std::string& name);
  void assign(std::string_view name, Value value);
  // Keeps a scope that a function refers to, or a namespace, until the rendering ends. Their
  // contents are cleared then, which breaks cycles and long chains.
  void keep(ScopePtr scope) { kept_scopes_.push_back(std::move(scope)); }
  void keep(std::shared_ptr<Namespace> names) { kept_namespaces_.push_back(std::move(names)); }

  // Runs body() in a new scope below `parent`.
  template <typename Body>
  auto in_scope(ScopePtr parent, Body body) -> decltype(body()) {
    if (parent->depth >= kMaxScopeDepth) return invalid_argument("scopes are nested too deeply");
    ScopePtr saved = std::exchange(scope_, std::make_shared<Scope>());
    scope_->depth = parent->depth + 1;
    scope_->parent = std::move(parent);
    auto result = body();
    scope_ = std::move(saved);
    return result;
  }

  // ---- output
  Status write(const Value& value);
  Status write_data(std::string_view text);
  // What body() writes, instead of writing it.
  template <typename Body>
  Result<MarkedText> capture(Body body) {
    MarkedText saved = std::exchange(output_, MarkedText());
    auto result = body();
    MarkedText captured = std::exchange(output_, std::move(saved));
    if (!result.ok()) return result.status();
    return captured;
  }
  MarkedText take_output() { return std::move(output_); }
  // The text of the innermost filter block that is being filtered.
  void push_captured_text(MarkedText text) {
    captured_texts_.push_back(Value::text(std::move(text)));
  }
  void pop_captured_text() { captured_texts_.pop_back(); }
  [[nodiscard]] const Value& captured_text() const { return captured_texts_.back(); }

 private:
  // Puts the line into an error that has none yet.
  Status located(int line, Status status);
  Status enter();

  Budget budget_;
  int64_t now_unix_;
  int depth_ = 0;
  const char* stack_base_;  // where the machine's stack stood at the start
  bool error_has_place_ = false;
  ScopePtr scope_;
  MarkedText output_;
  std::vector<Value> captured_texts_;
  std::vector<ScopePtr> kept_scopes_;
  std::vector<std::shared_ptr<Namespace>> kept_namespaces_;
};

}  // namespace tenon::jinja
