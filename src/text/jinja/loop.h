// The `loop` variable of a for loop.
//
// Items are taken and filtered one at a time, as the body may change what the filter sees;
// attributes that look ahead (last, nextitem, length) take more of them. Ownership: refers to the
// statement in the tree. Thread safety: belongs to one rendering.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "text/jinja/runtime.h"
#include "text/jinja/value.h"

namespace tenon::jinja {

class For;

class Loop : public Object {
 public:
  Loop(const For& statement, SequencePtr items, ScopePtr outer, int64_t depth0);
  [[nodiscard]] std::string_view type_name() const override { return "LoopContext"; }
  [[nodiscard]] bool is_callable() const override { return true; }
  // loop(items) of a recursive loop.
  Result<Value> call(Runtime& runtime, const Arguments& arguments) override;
  Result<std::optional<Value>> attribute(Runtime& runtime, std::string_view name) override;
  [[nodiscard]] Native method(std::string_view name) const override;

  // Goes to the next item; false behind the last one.
  Result<bool> advance(Runtime& runtime);
  [[nodiscard]] const Value& current() const { return *current_; }
  // The loop is over; what it refers to can be freed.
  void finish();

  Result<Value> cycle(const Arguments& arguments) const;
  Result<Value> changed(Runtime& runtime, const Arguments& arguments);

 private:
  Result<std::optional<Value>> take(Runtime& runtime);
  Result<bool> is_last(Runtime& runtime);
  Result<int64_t> length(Runtime& runtime);

  const For& statement_;
  SequencePtr items_;
  size_t taken_ = 0;          // of items_
  std::vector<Value> ahead_;  // items that passed the filter and wait, the next one last
  ScopePtr outer_;
  int64_t depth0_;
  int64_t index0_ = -1;
  std::optional<int64_t> length_;
  std::optional<Value> previous_, current_;
  std::optional<Value> changed_;
};

}  // namespace tenon::jinja
