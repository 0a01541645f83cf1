#include "text/jinja/native.h"

#include <algorithm>
#include <limits>

namespace tenon::jinja {

Result<Parameters> Parameters::bind(const Arguments& arguments,
                                    std::initializer_list<std::string_view> names,
                                    size_t required) {
  Parameters result;
  result.names_ = names;
  result.values_.assign(names.size(), nullptr);
  if (arguments.positional.size() > names.size()) {
    return invalid_argument("takes at most {} arguments, {} given", names.size(),
                            arguments.positional.size());
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i)
    result.values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(result.names_.begin(), result.names_.end(), name);
    if (found == result.names_.end()) return invalid_argument("takes no argument named '{}'", name);
    const auto index = static_cast<size_t>(found - result.names_.begin());
    if (result.values_[index] != nullptr)
      return invalid_argument("argument '{}' is given twice", name);
    result.values_[index] = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (result.values_[i] == nullptr)
      return invalid_argument("argument '{}' is missing", result.names_[i]);
  }
  return result;
}

const Value* Parameters::get_unless_none(size_t index) const {
  return values_[index] != nullptr && values_[index]->is_none() ? nullptr : values_[index];
}

bool Parameters::flag(size_t index, bool fallback) const {
  return values_[index] == nullptr ? fallback : values_[index]->truthy();
}

Result<int64_t> Parameters::integer(size_t index, int64_t fallback) const {
  if (values_[index] == nullptr) return fallback;
  return to_int64(*values_[index], names_[index]);
}

Result<TextPtr> Parameters::text(size_t index) const {
  if (!values_[index]->is_string()) {
    return invalid_argument("argument '{}' must be str, not {}", names_[index],
                            values_[index]->type_name());
  }
  return values_[index]->as_text_ptr();
}

Result<int64_t> to_int64(const Value& value, std::string_view what) {
  if (value.is_undefined()) return invalid_argument("{}", value.undefined_reason());
  if (!value.is_integral())
    return invalid_argument("{}: an integer is needed, not {}", what, value.type_name());
  const Integer integer = value.as_integer();
  if (integer > std::numeric_limits<int64_t>::max() ||
      integer < std::numeric_limits<int64_t>::min()) {
    return invalid_argument("{}: the integer is too large", what);
  }
  return static_cast<int64_t>(integer);
}

}  // namespace tenon::jinja
