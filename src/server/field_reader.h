// Typed access to the fields of a request object. The first error is kept, later reads then do
// nothing, so a parser is a plain list of fields with one check at its end. An absent field and
// null leave the target as it is. Used by one thread at a time; borrows the object.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/json_input.h"

namespace tenon {

class FieldReader {
 public:
  explicit FieldReader(const OrderedJson& object) : object_(object) {}

  // nullptr for an absent field and for null.
  [[nodiscard]] const OrderedJson* find(std::string_view name) const;

  void read(std::string_view name, bool& target);
  void read(std::string_view name, float& target);
  void read(std::string_view name, int64_t& target);
  void read(std::string_view name, int32_t& target);  // clamped: ranges are the reader's business
  void read(std::string_view name, std::string& target);
  template <typename T>
  void read(std::string_view name, std::optional<T>& target) {
    if (!ok() || find(name) == nullptr) return;
    T value{};
    read(name, value);
    if (ok()) target = std::move(value);
  }

  // Keeps `status` if it is the first error.
  void fail(Status status);
  void fail_type(std::string_view name, std::string_view expected);
  [[nodiscard]] bool ok() const { return status_.ok(); }
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  const OrderedJson& object_;
  Status status_;
};

// The value of a JSON number that is an integer in int64's range (8 and 8.0, not 8.5 or 2^63).
[[nodiscard]] std::optional<int64_t> json_integer(const OrderedJson& value);

}  // namespace tenon
