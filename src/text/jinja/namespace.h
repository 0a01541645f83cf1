// namespace(): the one value that templates may change.
//
// Ownership: values; the Runtime keeps every namespace until the rendering ends (see
// Runtime::keep). Thread safety: none; belongs to one rendering.
#pragma once

#include <optional>
#include <string_view>

#include "text/jinja/value.h"

namespace tenon::jinja {

class Namespace : public Object {
 public:
  explicit Namespace(Dict values) : values_(std::move(values)) {}
  [[nodiscard]] std::string_view type_name() const override { return "Namespace"; }
  [[nodiscard]] const Dict& values() const { return values_; }
  // Requires: no leading underscore, which the sandbox refuses.
  void set(std::string_view name, Value value) { values_.set(name, std::move(value)); }
  void clear() { values_ = Dict(); }
  Result<std::optional<Value>> attribute(Runtime& /*runtime*/, std::string_view name) override {
    const Value* found = values_.find(name);
    return found == nullptr ? std::optional<Value>() : std::optional<Value>(*found);
  }

 private:
  Dict values_;
};

}  // namespace tenon::jinja
