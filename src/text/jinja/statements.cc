#include "text/jinja/statements.h"

#include "text/jinja/loop.h"
#include "text/jinja/runtime.h"

namespace tenon::jinja {
namespace {

// The text of a body that has its own variables.
Result<MarkedText> capture_body(Runtime& runtime, const Block& body) {
  return runtime.capture(
      [&] { return runtime.in_scope(runtime.scope(), [&] { return runtime.execute(body); }); });
}

Result<Value> filter_text(Runtime& runtime, const Expression& filter, MarkedText text) {
  runtime.push_captured_text(std::move(text));
  Result<Value> result = runtime.evaluate(filter);
  runtime.pop_captured_text();
  return result;
}

}  // namespace

Status Target::assign(Runtime& runtime, Value value) const {
  if (is_tuple) {
    TENON_ASSIGN_OR_RETURN(const SequencePtr values, iterate(runtime.budget(), value));
    if (values->items.size() != items.size()) {
      return invalid_argument("cannot unpack {} values into {} names", values->items.size(),
                              items.size());
    }
    for (size_t i = 0; i < items.size(); ++i)
      TENON_RETURN_IF_ERROR(items[i].assign(runtime, values->items[i]));
    return ok_status();
  }
  if (attribute.empty()) {
    runtime.assign(name, std::move(value));
    return ok_status();
  }
  TENON_ASSIGN_OR_RETURN(const Value object, runtime.lookup(name));
  auto* names = object.is_object() ? dynamic_cast<Namespace*>(object.as_object().get()) : nullptr;
  if (names == nullptr)
    return invalid_argument("cannot assign attribute on non-namespace object '{}'", name);
  if (attribute.starts_with('_'))
    return invalid_argument("a namespace cannot store '{}'", attribute);
  names->set(attribute, std::move(value));
  return ok_status();
}

Result<Flow> Data::run(Runtime& runtime) const {
  TENON_RETURN_IF_ERROR(runtime.write_data(text_));
  return Flow::kNext;
}

Result<Flow> Output::run(Runtime& runtime) const {
  TENON_ASSIGN_OR_RETURN(const Value value, runtime.evaluate(*expression_));
  TENON_RETURN_IF_ERROR(runtime.write(value));
  return Flow::kNext;
}

Result<Flow> If::run(Runtime& runtime) const {
  for (const Branch& branch : branches_) {
    if (branch.condition != nullptr) {
      TENON_ASSIGN_OR_RETURN(const Value condition, runtime.evaluate(*branch.condition));
      if (!condition.truthy()) continue;
    }
    return runtime.execute(branch.body);
  }
  return Flow::kNext;
}

Result<Flow> For::run(Runtime& runtime) const {
  TENON_ASSIGN_OR_RETURN(const Value items, runtime.evaluate(*parts_.iterable));
  return run_over(runtime, items, runtime.scope(), 0);
}

Result<Flow> For::run_over(Runtime& runtime,
                           const Value& items,
                           ScopePtr outer,
                           int64_t depth0) const {
  TENON_ASSIGN_OR_RETURN(SequencePtr sequence, iterate(runtime.budget(), items));
  auto loop = std::make_shared<Loop>(*this, std::move(sequence), outer, depth0);
  bool ran = false;
  while (true) {
    TENON_ASSIGN_OR_RETURN(const bool more, loop->advance(runtime));
    if (!more) break;
    ran = true;
    if (!runtime.budget().spend(1)) return Budget::exhausted();
    TENON_ASSIGN_OR_RETURN(const Flow flow, runtime.in_scope(outer, [&]() -> Result<Flow> {
      TENON_RETURN_IF_ERROR(parts_.target.assign(runtime, loop->current()));
      runtime.assign("loop", Value::object(loop));
      return runtime.execute(parts_.body);
    }));
    if (flow == Flow::kBreak) break;
  }
  loop->finish();
  if (ran || parts_.otherwise.empty()) return Flow::kNext;
  return runtime.in_scope(std::move(outer), [&] { return runtime.execute(parts_.otherwise); });
}

Result<Flow> Set::run(Runtime& runtime) const {
  TENON_ASSIGN_OR_RETURN(Value value, runtime.evaluate(*value_));
  TENON_RETURN_IF_ERROR(target_.assign(runtime, std::move(value)));
  return Flow::kNext;
}

Result<Flow> SetBlock::run(Runtime& runtime) const {
  TENON_ASSIGN_OR_RETURN(MarkedText text, capture_body(runtime, body_));
  if (filter_ == nullptr) {
    TENON_RETURN_IF_ERROR(target_.assign(runtime, Value::text(std::move(text))));
    return Flow::kNext;
  }
  TENON_ASSIGN_OR_RETURN(Value value, filter_text(runtime, *filter_, std::move(text)));
  TENON_RETURN_IF_ERROR(target_.assign(runtime, std::move(value)));
  return Flow::kNext;
}

Result<Flow> FilterBlock::run(Runtime& runtime) const {
  TENON_ASSIGN_OR_RETURN(MarkedText text, capture_body(runtime, body_));
  TENON_ASSIGN_OR_RETURN(const Value value, filter_text(runtime, *filter_, std::move(text)));
  TENON_RETURN_IF_ERROR(runtime.write(value));
  return Flow::kNext;
}

Result<Flow> ScopedBlock::run(Runtime& runtime) const {
  std::vector<Value> values;
  for (const auto& [target, expression] : assignments_) {
    TENON_ASSIGN_OR_RETURN(Value value, runtime.evaluate(*expression));
    values.push_back(std::move(value));
  }
  return runtime.in_scope(runtime.scope(), [&]() -> Result<Flow> {
    for (size_t i = 0; i < values.size(); ++i) {
      TENON_RETURN_IF_ERROR(assignments_[i].first.assign(runtime, std::move(values[i])));
    }
    return runtime.execute(body_);
  });
}

Result<Flow> MacroStatement::run(Runtime& runtime) const {
  runtime.assign(definition_.name, Macro::define(runtime, definition_));
  return Flow::kNext;
}

Result<Flow> CallBlock::run(Runtime& runtime) const {
  TENON_ASSIGN_OR_RETURN(const Value value,
                         call_->run_with(runtime, "caller", Macro::define(runtime, caller_)));
  TENON_RETURN_IF_ERROR(runtime.write(value));
  return Flow::kNext;
}

}  // namespace tenon::jinja
