// Values of the template language: Python's, as far as templates see them.
//
// Ownership: strings, sequences and dicts are shared and immutable (the sandbox that chat templates
// run in refuses changes), so copying a Value is cheap. Objects (namespace, macro, loop, ...) are
// shared and may change. Thread safety: values without objects and generators are immutable and
// safe to share.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"
#include "text/jinja/budget.h"
#include "text/jinja/marked_text.h"

namespace tenon::jinja {

using Integer = __int128;  // Python's integers have no limit; overflow of this is an error

class Dict;
class Object;
class Value;
struct Sequence;

using TextPtr = std::shared_ptr<const MarkedText>;
using SequencePtr = std::shared_ptr<Sequence>;
using DictPtr = std::shared_ptr<const Dict>;
using ObjectPtr = std::shared_ptr<Object>;

// The order is that of Value's variant.
enum class Kind { kUndefined, kNone, kBool, kInteger, kFloat, kString, kSequence, kDict, kObject };
enum class SequenceKind { kList, kTuple, kGroup, kRange, kGenerator, kKeys, kValues, kItems };

class Value {
 public:
  Value() : data_(std::monostate()) {}  // none
  static Value none() { return {}; }
  // `reason` is the error of whoever needs the value: "'x' is undefined".
  static Value undefined(std::string reason);
  static Value boolean(bool value) { return Value(Data(value)); }
  static Value integer(Integer value) { return Value(Data(value)); }
  static Value real(double value) { return Value(Data(value)); }
  static Value text(MarkedText value);
  static Value text(std::string_view trusted) { return text(MarkedText(std::string(trusted))); }
  static Value text(TextPtr value) { return Value(Data(std::move(value))); }
  static Value sequence(SequenceKind kind, std::vector<Value> items);
  static Value sequence(SequencePtr value) { return Value(Data(std::move(value))); }
  static Value list(std::vector<Value> items) {
    return sequence(SequenceKind::kList, std::move(items));
  }
  static Value tuple(std::vector<Value> items) {
    return sequence(SequenceKind::kTuple, std::move(items));
  }
  static Value generator(std::vector<Value> items) {
    return sequence(SequenceKind::kGenerator, std::move(items));
  }
  static Value dict(Dict value);
  static Value object(ObjectPtr value) { return Value(Data(std::move(value))); }

  [[nodiscard]] Kind kind() const { return static_cast<Kind>(data_.index()); }
  [[nodiscard]] bool is_undefined() const { return kind() == Kind::kUndefined; }
  [[nodiscard]] bool is_none() const { return kind() == Kind::kNone; }
  [[nodiscard]] bool is_string() const { return kind() == Kind::kString; }
  [[nodiscard]] bool is_sequence() const { return kind() == Kind::kSequence; }
  [[nodiscard]] bool is_sequence(SequenceKind wanted) const;
  [[nodiscard]] bool is_tuple() const;
  [[nodiscard]] bool is_dict() const { return kind() == Kind::kDict; }
  [[nodiscard]] bool is_object() const { return kind() == Kind::kObject; }
  // Python's int includes bool.
  [[nodiscard]] bool is_integral() const {
    return kind() == Kind::kInteger || kind() == Kind::kBool;
  }
  [[nodiscard]] bool is_number() const { return is_integral() || kind() == Kind::kFloat; }

  // Each requires the kind in question.
  [[nodiscard]] const std::string& undefined_reason() const { return *std::get<ReasonPtr>(data_); }
  [[nodiscard]] bool as_bool() const { return std::get<bool>(data_); }
  [[nodiscard]] Integer as_integer() const {
    return kind() == Kind::kBool ? Integer{as_bool()} : std::get<Integer>(data_);
  }
  [[nodiscard]] double as_real() const {
    return kind() == Kind::kFloat ? std::get<double>(data_) : static_cast<double>(as_integer());
  }
  [[nodiscard]] const MarkedText& as_text() const { return *std::get<TextPtr>(data_); }
  [[nodiscard]] const TextPtr& as_text_ptr() const { return std::get<TextPtr>(data_); }
  [[nodiscard]] const SequencePtr& as_sequence() const { return std::get<SequencePtr>(data_); }
  [[nodiscard]] const Dict& as_dict() const { return *std::get<DictPtr>(data_); }
  [[nodiscard]] const ObjectPtr& as_object() const { return std::get<ObjectPtr>(data_); }

  // Whether both are the very same object (scalars: the same value of the same type).
  [[nodiscard]] bool same_as(const Value& other) const;
  [[nodiscard]] bool truthy() const;
  // Levels of nesting: 0 for scalars.
  [[nodiscard]] int depth() const;
  // Python's name of the type: "str", "NoneType".
  [[nodiscard]] std::string_view type_name() const;

 private:
  using ReasonPtr = std::shared_ptr<const std::string>;
  using Data = std::variant<ReasonPtr,
                            std::monostate,
                            bool,
                            Integer,
                            double,
                            TextPtr,
                            SequencePtr,
                            DictPtr,
                            ObjectPtr>;
  explicit Value(Data data) : data_(std::move(data)) {}
  Data data_;
};

// list, tuple, range, generators and the views of a dict.
struct Sequence {
  SequenceKind kind = SequenceKind::kList;
  std::vector<Value> items;
  size_t consumed = 0;  // of a generator
  std::string label;    // how a range prints
  int depth = 1;

  [[nodiscard]] bool is_tuple() const {
    return kind == SequenceKind::kTuple || kind == SequenceKind::kGroup;
  }
  [[nodiscard]] bool is_indexable() const {
    return kind == SequenceKind::kList || kind == SequenceKind::kRange || is_tuple();
  }
  [[nodiscard]] bool is_generator() const { return kind == SequenceKind::kGenerator; }
};

// Keeps the order of insertion.
class Dict {
 public:
  using Entry = std::pair<Value, Value>;
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }
  [[nodiscard]] size_t size() const { return entries_.size(); }
  [[nodiscard]] int depth() const { return depth_; }
  [[nodiscard]] const Value* find(const Value& key) const;
  [[nodiscard]] const Value* find(std::string_view key) const;
  // Requires: is_hashable(key).
  void set(Value key, Value value);
  void set(std::string_view key, Value value) { set(Value::text(key), std::move(value)); }
  void erase(std::string_view key);

 private:
  [[nodiscard]] std::optional<size_t> index_of(const Value& key) const;
  void reindex();

  std::vector<Entry> entries_;
  std::unordered_multimap<size_t, size_t> index_;  // hash -> entry; only of large dicts
  int depth_ = 1;
};

// Positional and named arguments of a call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

class Runtime;

// A function of the language written in C++. `self` is the filtered or tested value, or the object
// of a method; none for globals.
using Native = Result<Value> (*)(Runtime& runtime, const Value& self, const Arguments& arguments);

// Whatever is not plain data: functions, macros, namespaces, loops.
class Object {
 public:
  explicit Object(int depth = 1) : depth_(depth) {}
  virtual ~Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

  [[nodiscard]] virtual std::string_view type_name() const = 0;
  [[nodiscard]] virtual bool is_callable() const { return false; }
  virtual Result<Value> call(Runtime& runtime, const Arguments& arguments);
  // Empty: there is no such attribute.
  virtual Result<std::optional<Value>> attribute(Runtime& runtime, std::string_view name);
  // Null: there is no such method.
  [[nodiscard]] virtual Native method(std::string_view /*name*/) const { return nullptr; }
  // Levels of nesting of the values it keeps; bounds recursion when they are freed.
  [[nodiscard]] int depth() const { return depth_; }

 private:
  int depth_;
};

[[nodiscard]] bool is_hashable(const Value& value);
// Equality for keys of dicts: equals() without a budget. Requires: both hashable.
[[nodiscard]] bool equal_keys(const Value& left, const Value& right);
[[nodiscard]] size_t hash_key(const Value& value);

Result<bool> equals(Budget& budget, const Value& left, const Value& right);
// left < right, with Python's rules for which types can be compared.
Result<bool> less_than(Budget& budget, const Value& left, const Value& right);

// The order in which a stable sort would put the keys.
Result<std::vector<size_t>> sorted_order(Budget& budget,
                                         const std::vector<Value>& keys,
                                         bool reverse);

// The items a for loop would see. A generator is used up by it.
Result<SequencePtr> iterate(Budget& budget, const Value& value);
// len(); fails for what has none.
Result<int64_t> length_of(Budget& budget, const Value& value);

}  // namespace tenon::jinja
