#include "text/jinja/globals.h"

#include <fmt/format.h>

#include <array>
#include <ctime>

#include "text/jinja/native.h"
#include "text/jinja/printing.h"

namespace tenon::jinja {
namespace {

Result<Value> range(Runtime& runtime, const Value& /*self*/, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters,
                         Parameters::bind(arguments, {"start", "stop", "step"}, 1));
  const bool only_stop = parameters.get(1) == nullptr;
  TENON_ASSIGN_OR_RETURN(const int64_t first, parameters.integer(0));
  TENON_ASSIGN_OR_RETURN(const int64_t second, parameters.integer(1));
  TENON_ASSIGN_OR_RETURN(const int64_t step, parameters.integer(2, 1));
  if (step == 0) return invalid_argument("range() arg 3 must not be zero");
  const int64_t start = only_stop ? 0 : first;
  const int64_t stop = only_stop ? first : second;
  const Integer distance = step > 0 ? Integer{stop} - start : Integer{start} - stop;
  const Integer stride = step > 0 ? Integer{step} : -Integer{step};
  const Integer count = distance <= 0 ? 0 : (distance + stride - 1) / stride;
  if (count > kMaxRangeItems)
    return invalid_argument("a range of more than {} items is refused", kMaxRangeItems);
  TENON_RETURN_IF_ERROR(runtime.budget().charge_items(static_cast<size_t>(count)));
  auto sequence = std::make_shared<Sequence>();
  sequence->kind = SequenceKind::kRange;
  sequence->label = step == 1 ? fmt::format("range({}, {})", start, stop)
                              : fmt::format("range({}, {}, {})", start, stop, step);
  for (Integer i = 0; i < count; ++i) sequence->items.push_back(Value::integer(start + i * step));
  return Value::sequence(std::move(sequence));
}

Result<Dict> make_dict(Runtime& runtime, const Arguments& arguments) {
  Dict dict;
  if (arguments.positional.size() > 1) return invalid_argument("dict expected at most 1 argument");
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (source.is_dict()) {
      dict = source.as_dict();
      TENON_RETURN_IF_ERROR(runtime.budget().charge_items(dict.size() * 2));
    } else {
      TENON_ASSIGN_OR_RETURN(const SequencePtr pairs, iterate(runtime.budget(), source));
      for (const Value& pair : pairs->items) {
        TENON_ASSIGN_OR_RETURN(const SequencePtr parts, iterate(runtime.budget(), pair));
        if (parts->items.size() != 2) return invalid_argument("dict() needs pairs");
        if (!is_hashable(parts->items[0]))
          return invalid_argument("unhashable type: '{}'", parts->items[0].type_name());
        dict.set(parts->items[0], parts->items[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) dict.set(name, value);
  return dict;
}

Result<Value> dict_global(Runtime& runtime, const Value& /*self*/, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(Dict dict, make_dict(runtime, arguments));
  return Value::dict(std::move(dict));
}

Result<Value> namespace_global(Runtime& runtime,
                               const Value& /*self*/,
                               const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(Dict dict, make_dict(runtime, arguments));
  for (const auto& entry : dict.entries()) {
    if (entry.first.is_string() && entry.first.as_text().view().starts_with('_')) {
      return invalid_argument("a namespace cannot store '{}'", entry.first.as_text().view());
    }
  }
  TENON_RETURN_IF_ERROR(runtime.budget().charge(20));
  auto names = std::make_shared<Namespace>(std::move(dict));
  runtime.keep(names);
  return Value::object(std::move(names));
}

Result<Value> raise_exception(Runtime& runtime, const Value& /*self*/, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters, Parameters::bind(arguments, {"message"}, 1));
  TENON_ASSIGN_OR_RETURN(const MarkedText message, to_text(runtime.budget(), *parameters.get(0)));
  return runtime.raise(message.bytes());
}

Result<Value> strftime_now(Runtime& runtime, const Value& /*self*/, const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters, Parameters::bind(arguments, {"format"}, 1));
  TENON_ASSIGN_OR_RETURN(const TextPtr format, parameters.text(0));
  const std::time_t now = runtime.now_unix();
  std::tm local{};
  if (format->empty() || localtime_r(&now, &local) == nullptr) return Value::text("");
  std::array<char, 4096> buffer{};
  if (format->size() > buffer.size() / 8) return invalid_argument("the time format is too long");
  const size_t size = std::strftime(buffer.data(), buffer.size(), format->bytes().c_str(), &local);
  return Value::text(MarkedText(std::string(buffer.data(), size), format->has_untrusted()));
}

// cycler(a, b): a.next(), a.current, a.reset()
class Cycler : public Object {
 public:
  explicit Cycler(Value items) : Object(items.depth() + 1), items_(std::move(items)) {}
  [[nodiscard]] std::string_view type_name() const override { return "Cycler"; }
  Result<std::optional<Value>> attribute(Runtime& /*runtime*/, std::string_view name) override {
    if (name == "current") return std::optional<Value>(current());
    if (name == "pos") return std::optional<Value>(Value::integer(static_cast<Integer>(position_)));
    return std::optional<Value>();
  }
  [[nodiscard]] Native method(std::string_view name) const override {
    if (name == "next") return next;
    return name == "reset" ? reset : nullptr;
  }

 private:
  [[nodiscard]] const std::vector<Value>& items() const { return items_.as_sequence()->items; }
  [[nodiscard]] const Value& current() const { return items()[position_]; }

  static Result<Value> next(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
    TENON_RETURN_IF_ERROR(Parameters::bind(arguments, {}).status());
    auto& cycler = static_cast<Cycler&>(*self.as_object());
    const Value result = cycler.current();
    cycler.position_ = (cycler.position_ + 1) % cycler.items().size();
    return result;
  }
  static Result<Value> reset(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
    TENON_RETURN_IF_ERROR(Parameters::bind(arguments, {}).status());
    static_cast<Cycler&>(*self.as_object()).position_ = 0;
    return Value::none();
  }

  Value items_;
  size_t position_ = 0;
};

Result<Value> cycler_global(Runtime& /*runtime*/,
                            const Value& /*self*/,
                            const Arguments& arguments) {
  if (!arguments.named.empty()) return invalid_argument("cycler takes no named arguments");
  if (arguments.positional.empty()) return invalid_argument("at least one item has to be provided");
  return Value::object(std::make_shared<Cycler>(Value::tuple(arguments.positional)));
}

// joiner(separator): nothing on the first call, the separator on all others.
class Joiner : public Object {
 public:
  explicit Joiner(Value separator)
      : Object(separator.depth() + 1), separator_(std::move(separator)) {}
  [[nodiscard]] std::string_view type_name() const override { return "Joiner"; }
  [[nodiscard]] bool is_callable() const override { return true; }
  Result<Value> call(Runtime& /*runtime*/, const Arguments& arguments) override {
    TENON_RETURN_IF_ERROR(Parameters::bind(arguments, {}).status());
    return std::exchange(used_, true) ? separator_ : Value::text("");
  }

 private:
  Value separator_;
  bool used_ = false;
};

Result<Value> joiner_global(Runtime& /*runtime*/,
                            const Value& /*self*/,
                            const Arguments& arguments) {
  TENON_ASSIGN_OR_RETURN(const Parameters parameters, Parameters::bind(arguments, {"sep"}));
  return Value::object(std::make_shared<Joiner>(parameters.get(0) == nullptr ? Value::text(", ")
                                                                             : *parameters.get(0)));
}

constexpr NativeEntry kGlobals[] = {
    {"range", range},
    {"dict", dict_global},
    {"namespace", namespace_global},
    {"raise_exception", raise_exception},
    {"strftime_now", strftime_now},
    {"cycler", cycler_global},
    {"joiner", joiner_global},
};

}  // namespace

void define_globals(Runtime& runtime) {
  for (const auto& [name, function] : kGlobals) {
    runtime.assign(name, Value::object(std::make_shared<NativeFunction>(function, Value::none())));
  }
}

}  // namespace tenon::jinja
