#include "text/jinja/macro.h"

#include <algorithm>

namespace tenon::jinja {

Value Macro::define(Runtime& runtime, const MacroDefinition& definition) {
  runtime.keep(runtime.scope());
  return Value::object(std::make_shared<Macro>(definition, runtime.scope()));
}

Result<Value> Macro::call(Runtime& runtime, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(MarkedText text, runtime.capture([&] {
    return runtime.in_scope(scope_, [&]() -> Result<Flow> {
      TENON_RETURN_IF_ERROR(bind(runtime, arguments));
      return runtime.execute(definition_.body);
    });
  }));
  return Value::text(std::move(text));
}

Result<std::optional<Value>> Macro::attribute(Runtime& /*runtime*/, std::string_view name) {
  if (name == "name") return std::optional<Value>(Value::text(definition_.name));
  return std::optional<Value>();
}

Status Macro::bind_parameters(Runtime& runtime,
                              const Arguments& arguments,
                              std::vector<bool>& used_names) const {
  for (size_t i = 0; i < definition_.parameters.size(); ++i) {
    const MacroDefinition::Parameter& parameter = definition_.parameters[i];
    if (i < arguments.positional.size()) {
      runtime.assign(parameter.name, arguments.positional[i]);
      continue;
    }
    const auto named =
        std::find_if(arguments.named.begin(), arguments.named.end(),
                     [&](const auto& argument) { return argument.first == parameter.name; });
    if (named != arguments.named.end()) {
      used_names[static_cast<size_t>(named - arguments.named.begin())] = true;
      runtime.assign(parameter.name, named->second);
    } else if (parameter.fallback != nullptr) {
      TENON_ASSIGN_OR_RETURN(Value value, runtime.evaluate(*parameter.fallback));
      runtime.assign(parameter.name, std::move(value));
    } else {
      runtime.assign(parameter.name,
                     Value::undefined("parameter '" + parameter.name + "' was not provided"));
    }
  }
  return ok_status();
}

Status Macro::bind(Runtime& runtime, const Arguments& arguments) const {
  std::vector<bool> used_names(arguments.named.size(), false);
  TENON_RETURN_IF_ERROR(bind_parameters(runtime, arguments, used_names));
  const size_t count = definition_.parameters.size();
  const bool has_more = arguments.positional.size() > count;
  if (has_more && !definition_.uses_varargs) {
    return invalid_argument("macro '{}' takes not more than {} argument(s)", definition_.name,
                            count);
  }
  Value caller = Value::undefined("No caller defined");
  Dict kwargs;
  for (size_t i = 0; i < arguments.named.size(); ++i) {
    const auto& [name, value] = arguments.named[i];
    if (used_names[i]) continue;
    if (name == "caller" && definition_.uses_caller) {
      caller = value;
    } else if (definition_.uses_kwargs) {
      kwargs.set(name, value);
    } else {
      return invalid_argument("macro '{}' takes no keyword argument '{}'", definition_.name, name);
    }
  }
  const bool caller_is_parameter =
      std::any_of(definition_.parameters.begin(), definition_.parameters.end(),
                  [](const auto& parameter) { return parameter.name == "caller"; });
  if (definition_.uses_caller && !caller_is_parameter) runtime.assign("caller", std::move(caller));
  if (definition_.uses_kwargs) runtime.assign("kwargs", Value::dict(std::move(kwargs)));
  if (definition_.uses_varargs) {
    std::vector<Value> more;
    if (has_more)
      more.assign(arguments.positional.begin() + static_cast<ptrdiff_t>(count),
                  arguments.positional.end());
    runtime.assign("varargs", Value::tuple(std::move(more)));
  }
  return ok_status();
}

}  // namespace tenon::jinja
