// Parts that filters of several files share, and their tables.
//
// Thread safety: see native.h.
#pragma once

#include <functional>
#include <optional>
#include <span>

#include "text/jinja/native.h"

namespace tenon::jinja {

[[nodiscard]] std::span<const NativeEntry> text_filters();
[[nodiscard]] std::span<const NativeEntry> number_filters();
[[nodiscard]] std::span<const NativeEntry> sequence_filters();
[[nodiscard]] std::span<const NativeEntry> selection_filters();

// Reads an attribute path ("a.b.0", an index, or none: the item itself) from items.
class AttributePath {
 public:
  // `fallback` (may be null) stands in for what is undefined on the way.
  AttributePath(const Value& path, const Value* fallback);
  [[nodiscard]] Result<Value> get(Runtime& runtime, Value item) const;

 private:
  std::vector<Value> parts_;
  const Value* fallback_;
};

// Strings in lower case, other values as they are: how filters compare unless case_sensitive is
// given.
Value ignore_case(const Value& value);

}  // namespace tenon::jinja
