#include "server/field_reader.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tenon {

const OrderedJson* FieldReader::find(std::string_view name) const {
  for (const auto& [key, value] : object_.get_ref<const OrderedJson::object_t&>()) {
    if (key == name) return value.is_null() ? nullptr : &value;
  }
  return nullptr;
}

void FieldReader::fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

void FieldReader::fail_type(std::string_view name, std::string_view expected) {
  fail(invalid_argument("{} must be {}", name, expected).with_param(std::string(name)));
}

void FieldReader::read(std::string_view name, bool& target) {
  const OrderedJson* value = ok() ? find(name) : nullptr;
  if (value == nullptr) return;
  if (!value->is_boolean()) return fail_type(name, "true or false");
  target = value->get<bool>();
}

void FieldReader::read(std::string_view name, float& target) {
  const OrderedJson* value = ok() ? find(name) : nullptr;
  if (value == nullptr) return;
  if (!value->is_number()) return fail_type(name, "a number");
  target = static_cast<float>(value->get<double>());
}

void FieldReader::read(std::string_view name, int64_t& target) {
  const OrderedJson* value = ok() ? find(name) : nullptr;
  if (value == nullptr) return;
  const std::optional<int64_t> integer = json_integer(*value);
  if (!integer) return fail_type(name, "an integer of at most 64 bits");
  target = *integer;
}

void FieldReader::read(std::string_view name, int32_t& target) {
  int64_t wide = target;
  read(name, wide);
  target = static_cast<int32_t>(std::clamp<int64_t>(wide, std::numeric_limits<int32_t>::min(),
                                                    std::numeric_limits<int32_t>::max()));
}

void FieldReader::read(std::string_view name, std::string& target) {
  const OrderedJson* value = ok() ? find(name) : nullptr;
  if (value == nullptr) return;
  if (!value->is_string()) return fail_type(name, "a string");
  target = value->get_ref<const std::string&>();
}

std::optional<int64_t> json_integer(const OrderedJson& value) {
  if (value.is_number_unsigned()) {
    const auto wide = value.get<uint64_t>();
    if (wide > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(wide);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  constexpr double kExact =
      9007199254740992.0;  // 2^53: above it a double no longer names one integer
  const double number = value.get<double>();
  if (std::floor(number) != number || std::abs(number) > kExact) return std::nullopt;
  return static_cast<int64_t>(number);
}

}  // namespace tenon
