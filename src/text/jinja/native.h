// Functions of the language that are written in C++: filters, tests, methods, globals.
//
// Thread safety: the tables are constant; the functions work on one rendering.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/jinja/value.h"

namespace tenon::jinja {

struct NativeEntry {
  std::string_view name;
  Native function;
};

// Null if there is no such name.
[[nodiscard]] Native find_filter(std::string_view name);
[[nodiscard]] Native find_test(std::string_view name);
[[nodiscard]] Native find_method(const Value& self, std::string_view name);

// Names a method that would change a list or dict: the sandbox refuses it.
[[nodiscard]] bool is_refused_method(const Value& self, std::string_view name);

// A Native as a value, with its self bound.
class NativeFunction : public Object {
 public:
  NativeFunction(Native function, Value self)
      : Object(self.depth() + 1), function_(function), self_(std::move(self)) {}
  [[nodiscard]] std::string_view type_name() const override { return "builtin_function_or_method"; }
  [[nodiscard]] bool is_callable() const override { return true; }
  Result<Value> call(Runtime& runtime, const Arguments& arguments) override {
    return function_(runtime, self_, arguments);
  }

 private:
  Native function_;
  Value self_;
};

// Arguments put to the parameters of a Python-like signature.
class Parameters {
 public:
  // `names` in order; the first `required` ones must be given.
  static Result<Parameters> bind(const Arguments& arguments,
                                 std::initializer_list<std::string_view> names,
                                 size_t required = 0);

  // Null: not given.
  [[nodiscard]] const Value* get(size_t index) const { return values_[index]; }
  // As get(), and none counts as not given.
  [[nodiscard]] const Value* get_unless_none(size_t index) const;
  [[nodiscard]] bool flag(size_t index, bool fallback = false) const;
  [[nodiscard]] Result<int64_t> integer(size_t index, int64_t fallback = 0) const;
  // Requires: given. Fails unless it is a string.
  [[nodiscard]] Result<TextPtr> text(size_t index) const;

 private:
  std::vector<const Value*> values_;  // into the Arguments
  std::vector<std::string_view> names_;
};

// An integer that fits, or an error that says what it is for.
Result<int64_t> to_int64(const Value& value, std::string_view what);

}  // namespace tenon::jinja
