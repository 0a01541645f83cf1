// Strict reading of a JSON object: every member is asked for by name, and members nobody asked for
// are an error, so that an option this program does not know is never ignored. Ownership: refers to
// the object. Thread safety: one thread.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tenon {

class JsonFields {
 public:
  // `where` names the object in messages: "pre_tokenizer.pretokenizers[1]".
  JsonFields(const nlohmann::json& object, std::string where)
      : object_(object), where_(std::move(where)) {}

  [[nodiscard]] const std::string& where() const { return where_; }
  [[nodiscard]] bool is_object() const { return object_.is_object(); }
  // Null if absent or null.
  const nlohmann::json* get(const char* name) {
    known_.push_back(name);
    const auto it = object_.find(name);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  Result<bool> boolean(const char* name, bool otherwise) {
    const nlohmann::json* value = get(name);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) return wrong(name, "a boolean");
    return value->get<bool>();
  }
  Result<int64_t> integer(const char* name, int64_t otherwise) {
    const nlohmann::json* value = get(name);
    if (value == nullptr) return otherwise;
    if (!value->is_number_integer()) return wrong(name, "an integer");
    return value->get<int64_t>();
  }
  Result<std::optional<std::string>> text(const char* name) {
    const nlohmann::json* value = get(name);
    if (value == nullptr) return std::optional<std::string>();
    if (!value->is_string()) return wrong(name, "a string");
    return std::optional<std::string>(value->get<std::string>());
  }
  Result<std::string> required_text(const char* name) {
    TENON_ASSIGN_OR_RETURN(const std::optional<std::string> value, text(name));
    if (!value) return wrong(name, "a string");
    return *value;
  }

  // An error for any member that was not asked for.
  [[nodiscard]] Status finish() const {
    for (const auto& item : object_.items()) {
      if (std::find(known_.begin(), known_.end(), item.key()) == known_.end()) {
        return unsupported("{}: the option '{}' is not known", where_, item.key());
      }
    }
    return ok_status();
  }
  [[nodiscard]] Status wrong(const char* name, std::string_view expected) const {
    return invalid_argument("{}.{} is not {}", where_, name, expected);
  }

 private:
  const nlohmann::json& object_;
  std::string where_;
  std::vector<std::string_view> known_;
};

}  // namespace tenon
