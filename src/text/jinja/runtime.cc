#include "text/jinja/runtime.h"

#include <cstdlib>
#include <utility>

#include "text/jinja/lexer.h"
#include "text/jinja/printing.h"

namespace tenon::jinja {
namespace {

const char* stack_position() {
  return static_cast<const char*>(__builtin_frame_address(0));
}

}  // namespace

Runtime::Runtime(int64_t now_unix)
    : now_unix_(now_unix), stack_base_(stack_position()), scope_(std::make_shared<Scope>()) {
  keep(scope_);
}

Runtime::~Runtime() {
  for (const auto& names : kept_namespaces_) names->clear();
  for (const ScopePtr& scope : kept_scopes_) scope->variables.clear();
  for (const ScopePtr& scope : kept_scopes_) scope->parent.reset();
}

Status Runtime::located(int line, Status status) {
  if (std::exchange(error_has_place_, true)) return status;
  return template_error(line, status.message());
}

Status Runtime::enter() {
  if (!budget_.spend(1)) return Budget::exhausted();
  if (++depth_ > kMaxEvaluationDepth || std::abs(stack_base_ - stack_position()) > kMaxStackBytes) {
    return invalid_argument("the template recurses too deeply");
  }
  return ok_status();
}

Result<Value> Runtime::evaluate(const Expression& expression) {
  if (Status status = enter(); !status.ok()) return located(expression.line, std::move(status));
  Result<Value> result = expression.run(*this);
  if (!result.ok()) return located(expression.line, result.status());
  if (result.value().depth() > kMaxValueDepth) {
    return located(expression.line,
                   invalid_argument("a value is nested more than {} levels deep", kMaxValueDepth));
  }
  --depth_;
  return result;
}

Result<Flow> Runtime::execute(const Block& block) {
  for (const StatementPtr& statement : block) {
    if (Status status = enter(); !status.ok()) return located(statement->line, std::move(status));
    Result<Flow> flow = statement->run(*this);
    if (!flow.ok()) return located(statement->line, flow.status());
    --depth_;
    if (flow.value() != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Status Runtime::raise(std::string message) {
  error_has_place_ = true;
  return {StatusCode::kInvalidArgument, std::move(message)};
}

Result<Value> Runtime::lookup(const std::string& name) {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    const auto found = scope->variables.find(name);
    if (found != scope->variables.end()) return found->second;
    if (!budget_.spend(1)) return Budget::exhausted();
  }
  return Value::undefined("'" + name + "' is undefined");
}

void Runtime::assign(std::string_view name, Value value) {
  scope_->variables.insert_or_assign(std::string(name), std::move(value));
}

Status Runtime::write(const Value& value) {
  return append_text(budget_, output_, value);
}

Status Runtime::write_data(std::string_view text) {
  TENON_RETURN_IF_ERROR(budget_.charge_bytes(text.size()));
  if (output_.size() + text.size() > kMaxTextBytes)
    return budget_.reserve_text(output_.size() + text.size());
  output_.append(text, false);
  return ok_status();
}

}  // namespace tenon::jinja
