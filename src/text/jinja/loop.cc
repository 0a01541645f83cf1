#include "text/jinja/loop.h"

#include <algorithm>

#include "text/jinja/native.h"
#include "text/jinja/statements.h"

namespace tenon::jinja {
namespace {

Loop& self_of(const Value& self) {
  return static_cast<Loop&>(*self.as_object());
}

Result<Value> cycle_method(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  return self_of(self).cycle(arguments);
}

Result<Value> changed_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return self_of(self).changed(runtime, arguments);
}

}  // namespace

Loop::Loop(const For& statement, SequencePtr items, ScopePtr outer, int64_t depth0)
    : Object(items->depth + 1),
      statement_(statement),
      items_(std::move(items)),
      outer_(std::move(outer)),
      depth0_(depth0) {}

Result<Value> Loop::call(Runtime& runtime, const Arguments& arguments) {
  if (!statement_.parts().recursive) {
    return invalid_argument("the loop must have the 'recursive' marker to be called recursively");
  }
  if (outer_ == nullptr) return invalid_argument("the loop is over");
  TENON_ASSIGN_OR_RETURN(const Parameters parameters, Parameters::bind(arguments, {"iterable"}, 1));
  const ScopePtr outer = outer_;
  TENON_ASSIGN_OR_RETURN(MarkedText text, runtime.capture([&] {
    return statement_.run_over(runtime, *parameters.get(0), outer, depth0_ + 1);
  }));
  return Value::text(std::move(text));
}

Result<std::optional<Value>> Loop::take(Runtime& runtime) {
  const For::Parts& parts = statement_.parts();
  while (items_ != nullptr && taken_ < items_->items.size()) {
    const Value item = items_->items[taken_++];
    if (parts.condition == nullptr) return std::optional<Value>(item);
    if (!runtime.budget().spend(1)) return Budget::exhausted();
    bool passes = false;
    Status tested = runtime.in_scope(outer_, [&]() -> Status {
      TENON_RETURN_IF_ERROR(parts.target.assign(runtime, item));
      TENON_ASSIGN_OR_RETURN(const Value condition, runtime.evaluate(*parts.condition));
      passes = condition.truthy();
      return ok_status();
    });
    if (!tested.ok()) return tested;
    if (passes) return std::optional<Value>(item);
  }
  return std::optional<Value>();
}

Result<bool> Loop::advance(Runtime& runtime) {
  std::optional<Value> next;
  if (!ahead_.empty()) {
    next = std::move(ahead_.back());
    ahead_.pop_back();
  } else {
    TENON_ASSIGN_OR_RETURN(next, take(runtime));
  }
  if (!next) return false;
  ++index0_;
  previous_ = std::move(current_);
  current_ = std::move(next);
  return true;
}

Result<bool> Loop::is_last(Runtime& runtime) {
  if (!ahead_.empty()) return false;
  TENON_ASSIGN_OR_RETURN(std::optional<Value> next, take(runtime));
  if (!next) return true;
  ahead_.push_back(*std::move(next));
  return false;
}

Result<int64_t> Loop::length(Runtime& runtime) {
  if (length_) return *length_;
  if (statement_.parts().condition == nullptr) {
    length_ = static_cast<int64_t>(items_->items.size());
    return *length_;
  }
  std::vector<Value> rest;
  while (true) {
    TENON_ASSIGN_OR_RETURN(std::optional<Value> next, take(runtime));
    if (!next) break;
    rest.push_back(*std::move(next));
  }
  std::reverse(rest.begin(), rest.end());
  rest.insert(rest.end(), ahead_.begin(), ahead_.end());
  ahead_ = std::move(rest);
  length_ = index0_ + 1 + static_cast<int64_t>(ahead_.size());
  return *length_;
}

void Loop::finish() {
  if (!length_) length_ = index0_ + 1;
  items_.reset();
  ahead_.clear();
  outer_.reset();
  changed_.reset();
}

Result<Value> Loop::cycle(const Arguments& arguments) const {
  if (arguments.positional.empty()) return invalid_argument("no items for cycling given");
  return arguments.positional[static_cast<size_t>(index0_) % arguments.positional.size()];
}

Result<Value> Loop::changed(Runtime& runtime, const Arguments& arguments) {
  Value value = Value::tuple(arguments.positional);
  if (changed_) {
    TENON_ASSIGN_OR_RETURN(const bool same, equals(runtime.budget(), *changed_, value));
    if (same) return Value::boolean(false);
  }
  if (outer_ != nullptr) changed_ = std::move(value);
  return Value::boolean(true);
}

Native Loop::method(std::string_view name) const {
  if (name == "cycle") return cycle_method;
  return name == "changed" ? changed_method : nullptr;
}

Result<std::optional<Value>> Loop::attribute(Runtime& runtime, std::string_view name) {
  const auto number = [](int64_t value) { return std::optional<Value>(Value::integer(value)); };
  if (name == "index") return number(index0_ + 1);
  if (name == "index0") return number(index0_);
  if (name == "first") return std::optional<Value>(Value::boolean(index0_ == 0));
  if (name == "depth") return number(depth0_ + 1);
  if (name == "depth0") return number(depth0_);
  if (name == "last") {
    TENON_ASSIGN_OR_RETURN(const bool last, is_last(runtime));
    return std::optional<Value>(Value::boolean(last));
  }
  if (name == "length" || name == "revindex" || name == "revindex0") {
    TENON_ASSIGN_OR_RETURN(const int64_t total, length(runtime));
    if (name == "length") return number(total);
    return number(total - index0_ - (name == "revindex" ? 0 : 1));
  }
  if (name == "previtem") {
    if (index0_ > 0) return previous_;
    return std::optional<Value>(Value::undefined("there is no previous item"));
  }
  if (name == "nextitem") {
    TENON_ASSIGN_OR_RETURN(const bool last, is_last(runtime));
    if (!last) return std::optional<Value>(ahead_.back());
    return std::optional<Value>(Value::undefined("there is no next item"));
  }
  return std::optional<Value>();
}

}  // namespace tenon::jinja
