#include "text/jinja/value.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "text/jinja/unicode.h"
#include "text/keyed_hash.h"

namespace tenon::jinja {
namespace {

constexpr size_t kIndexedDictSize = 12;  // smaller dicts are searched entry by entry

int depth_of_items(const std::vector<Value>& items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  return depth + 1;
}

bool both_numbers(const Value& left, const Value& right) {
  return left.is_number() && right.is_number();
}

bool equal_numbers(const Value& left, const Value& right) {
  if (left.is_integral() && right.is_integral()) return left.as_integer() == right.as_integer();
  return left.as_real() == right.as_real();
}

// What comparing needs besides the values.
struct Comparison {
  Budget& budget;
  int depth = 0;

  Status enter(size_t items) {
    if (++depth > kMaxValueDepth)
      return invalid_argument("maximum recursion depth exceeded in comparison");
    return budget.charge_items(items);
  }
};

Result<bool> equal(Comparison& comparison, const Value& left, const Value& right);

Result<bool> equal_items(Comparison& comparison,
                         const std::vector<Value>& left,
                         const std::vector<Value>& right) {
  if (left.size() != right.size()) return false;
  TENON_RETURN_IF_ERROR(comparison.enter(left.size()));
  for (size_t i = 0; i < left.size(); ++i) {
    TENON_ASSIGN_OR_RETURN(const bool same, equal(comparison, left[i], right[i]));
    if (!same) return false;
  }
  --comparison.depth;
  return true;
}

Result<bool> equal_dicts(Comparison& comparison, const Dict& left, const Dict& right) {
  if (left.size() != right.size()) return false;
  TENON_RETURN_IF_ERROR(comparison.enter(left.size()));
  for (const auto& [key, value] : left.entries()) {
    const Value* other = right.find(key);
    if (other == nullptr) return false;
    TENON_ASSIGN_OR_RETURN(const bool same, equal(comparison, value, *other));
    if (!same) return false;
  }
  --comparison.depth;
  return true;
}

bool equal_sequence_kinds(const Sequence& left, const Sequence& right) {
  return left.kind == right.kind || (left.is_tuple() && right.is_tuple());
}

Result<bool> equal(Comparison& comparison, const Value& left, const Value& right) {
  if (both_numbers(left, right)) return equal_numbers(left, right);
  if (left.kind() != right.kind()) return false;
  switch (left.kind()) {
    case Kind::kUndefined:
    case Kind::kNone: return true;
    case Kind::kString:
      if (left.as_text().size() != right.as_text().size()) return false;
      TENON_RETURN_IF_ERROR(comparison.budget.charge_bytes(left.as_text().size()));
      return left.as_text().view() == right.as_text().view();
    case Kind::kSequence: {
      if (left.same_as(right)) return true;
      const Sequence& a = *left.as_sequence();
      const Sequence& b = *right.as_sequence();
      if (!equal_sequence_kinds(a, b) || a.is_generator()) return false;
      return equal_items(comparison, a.items, b.items);
    }
    case Kind::kDict:
      if (left.same_as(right)) return true;
      return equal_dicts(comparison, left.as_dict(), right.as_dict());
    default: return left.same_as(right);
  }
}

Status not_comparable(const Value& left, const Value& right) {
  for (const Value* side : {&left, &right}) {
    if (side->is_undefined()) return invalid_argument("{}", side->undefined_reason());
  }
  return invalid_argument("'<' not supported between instances of '{}' and '{}'", left.type_name(),
                          right.type_name());
}

Result<bool> less(Comparison& comparison, const Value& left, const Value& right) {
  if (both_numbers(left, right)) {
    if (left.is_integral() && right.is_integral()) return left.as_integer() < right.as_integer();
    return left.as_real() < right.as_real();
  }
  if (left.is_string() && right.is_string()) {
    TENON_RETURN_IF_ERROR(
        comparison.budget.charge_bytes(std::min(left.as_text().size(), right.as_text().size())));
    return left.as_text().view() < right.as_text().view();  // UTF-8 sorts as code points do
  }
  if (!left.is_sequence() || !right.is_sequence()) return not_comparable(left, right);
  const Sequence& a = *left.as_sequence();
  const Sequence& b = *right.as_sequence();
  if (!a.is_indexable() || a.kind == SequenceKind::kRange || !equal_sequence_kinds(a, b)) {
    return not_comparable(left, right);
  }
  const size_t common = std::min(a.items.size(), b.items.size());
  TENON_RETURN_IF_ERROR(comparison.enter(common));
  for (size_t i = 0; i < common; ++i) {
    TENON_ASSIGN_OR_RETURN(const bool same, equal(comparison, a.items[i], b.items[i]));
    if (same) continue;
    TENON_ASSIGN_OR_RETURN(const bool result, less(comparison, a.items[i], b.items[i]));
    --comparison.depth;
    return result;
  }
  --comparison.depth;
  return a.items.size() < b.items.size();
}

Value single_character(const MarkedText& text, size_t begin, size_t size) {
  return Value::text(text.slice(begin, begin + size));
}

}  // namespace

Value Value::undefined(std::string reason) {
  return Value(Data(ReasonPtr(std::make_shared<const std::string>(std::move(reason)))));
}

Value Value::text(MarkedText value) {
  return Value(Data(TextPtr(std::make_shared<const MarkedText>(std::move(value)))));
}

Value Value::sequence(SequenceKind kind, std::vector<Value> items) {
  auto sequence = std::make_shared<Sequence>();
  sequence->kind = kind;
  sequence->depth = depth_of_items(items);
  sequence->items = std::move(items);
  return Value(Data(std::move(sequence)));
}

Value Value::dict(Dict value) {
  return Value(Data(DictPtr(std::make_shared<const Dict>(std::move(value)))));
}

bool Value::is_sequence(SequenceKind wanted) const {
  return is_sequence() && as_sequence()->kind == wanted;
}

bool Value::is_tuple() const {
  return is_sequence() && as_sequence()->is_tuple();
}

bool Value::same_as(const Value& other) const {
  if (kind() != other.kind()) return false;
  if (is_undefined()) return true;
  return data_ == other.data_;
}

bool Value::truthy() const {
  switch (kind()) {
    case Kind::kUndefined:
    case Kind::kNone: return false;
    case Kind::kBool: return as_bool();
    case Kind::kInteger: return as_integer() != 0;
    case Kind::kFloat: return as_real() != 0.0;
    case Kind::kString: return !as_text().empty();
    case Kind::kSequence: return as_sequence()->is_generator() || !as_sequence()->items.empty();
    case Kind::kDict: return as_dict().size() > 0;
    case Kind::kObject: return true;
  }
  return false;
}

int Value::depth() const {
  switch (kind()) {
    case Kind::kSequence: return as_sequence()->depth;
    case Kind::kDict: return as_dict().depth();
    case Kind::kObject: return as_object()->depth();
    default: return 0;
  }
}

std::string_view Value::type_name() const {
  switch (kind()) {
    case Kind::kUndefined: return "Undefined";
    case Kind::kNone: return "NoneType";
    case Kind::kBool: return "bool";
    case Kind::kInteger: return "int";
    case Kind::kFloat: return "float";
    case Kind::kString: return "str";
    case Kind::kDict: return "dict";
    case Kind::kObject: return as_object()->type_name();
    case Kind::kSequence: break;
  }
  switch (as_sequence()->kind) {
    case SequenceKind::kList: return "list";
    case SequenceKind::kTuple:
    case SequenceKind::kGroup: return "tuple";
    case SequenceKind::kRange: return "range";
    case SequenceKind::kGenerator: return "generator";
    case SequenceKind::kKeys: return "dict_keys";
    case SequenceKind::kValues: return "dict_values";
    case SequenceKind::kItems: return "dict_items";
  }
  return "object";
}

std::optional<size_t> Dict::index_of(const Value& key) const {
  if (index_.empty()) {
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (equal_keys(entries_[i].first, key)) return i;
    }
    return std::nullopt;
  }
  const auto [first, last] = index_.equal_range(hash_key(key));
  for (auto candidate = first; candidate != last; ++candidate) {
    if (equal_keys(entries_[candidate->second].first, key)) return candidate->second;
  }
  return std::nullopt;
}

const Value* Dict::find(const Value& key) const {
  const auto index = index_of(key);
  return index ? &entries_[*index].second : nullptr;
}

const Value* Dict::find(std::string_view key) const {
  if (!index_.empty()) return find(Value::text(key));
  for (const auto& [name, value] : entries_) {
    if (name.is_string() && name.as_text().view() == key) return &value;
  }
  return nullptr;
}

void Dict::set(Value key, Value value) {
  depth_ = std::max({depth_, key.depth() + 1, value.depth() + 1});
  if (const auto index = index_of(key)) {
    entries_[*index].second = std::move(value);
    return;
  }
  entries_.emplace_back(std::move(key), std::move(value));
  if (!index_.empty()) {
    index_.emplace(hash_key(entries_.back().first), entries_.size() - 1);
  } else if (entries_.size() >= kIndexedDictSize) {
    reindex();
  }
}

void Dict::erase(std::string_view key) {
  std::erase_if(entries_, [&](const Entry& entry) {
    return entry.first.is_string() && entry.first.as_text().view() == key;
  });
  reindex();
}

void Dict::reindex() {
  index_.clear();
  if (entries_.size() < kIndexedDictSize) return;
  for (size_t i = 0; i < entries_.size(); ++i) index_.emplace(hash_key(entries_[i].first), i);
}

Result<Value> Object::call(Runtime& /*runtime*/, const Arguments& /*arguments*/) {
  return invalid_argument("'{}' object is not callable", type_name());
}

Result<std::optional<Value>> Object::attribute(Runtime& /*runtime*/, std::string_view /*name*/) {
  return std::optional<Value>();
}

bool is_hashable(const Value& value) {
  if (value.is_dict()) return false;
  if (!value.is_sequence()) return true;
  const Sequence& sequence = *value.as_sequence();
  if (!sequence.is_tuple()) return sequence.kind == SequenceKind::kRange || sequence.is_generator();
  return std::all_of(sequence.items.begin(), sequence.items.end(), is_hashable);
}

bool equal_keys(const Value& left, const Value& right) {
  if (both_numbers(left, right)) return equal_numbers(left, right);
  if (left.kind() != right.kind()) return false;
  if (left.is_string()) return left.as_text().view() == right.as_text().view();
  if (left.is_tuple() && right.is_tuple()) {
    return std::equal(left.as_sequence()->items.begin(), left.as_sequence()->items.end(),
                      right.as_sequence()->items.begin(), right.as_sequence()->items.end(),
                      equal_keys);
  }
  return left.same_as(right);
}

size_t hash_key(const Value& value) {
  if (value.is_integral() ||
      (value.kind() == Kind::kFloat && std::floor(value.as_real()) == value.as_real() &&
       std::abs(value.as_real()) < 0x1p62)) {
    const Integer integer =
        value.is_integral() ? value.as_integer() : static_cast<Integer>(value.as_real());
    return std::hash<int64_t>()(static_cast<int64_t>(integer));
  }
  if (value.kind() == Kind::kFloat) return std::hash<double>()(value.as_real());
  if (value.is_string()) return KeyedHash()(value.as_text().view());
  if (!value.is_tuple()) return static_cast<size_t>(value.kind());
  size_t hash = 0x9E3779B97F4A7C15ULL;
  for (const Value& item : value.as_sequence()->items) hash = hash * 31 + hash_key(item);
  return hash;
}

Result<bool> equals(Budget& budget, const Value& left, const Value& right) {
  Comparison comparison{budget};
  return equal(comparison, left, right);
}

Result<bool> less_than(Budget& budget, const Value& left, const Value& right) {
  Comparison comparison{budget};
  return less(comparison, left, right);
}

Result<std::vector<size_t>> sorted_order(Budget& budget,
                                         const std::vector<Value>& keys,
                                         bool reverse) {
  TENON_RETURN_IF_ERROR(budget.charge_items(keys.size()));
  std::vector<size_t> order(keys.size());
  std::iota(order.begin(), order.end(), size_t{0});
  Status failure;
  // After a failure nothing is less than anything: the sort ends quickly and its result is dropped.
  const auto less = [&](size_t left, size_t right) {
    if (!failure.ok()) return false;
    const Result<bool> result = reverse ? less_than(budget, keys[right], keys[left])
                                        : less_than(budget, keys[left], keys[right]);
    if (!budget.spend(1)) failure = Budget::exhausted();
    if (!result.ok()) failure = result.status();
    return failure.ok() && result.value();
  };
  std::stable_sort(order.begin(), order.end(), less);
  if (!failure.ok()) return failure;
  return order;
}

Result<SequencePtr> iterate(Budget& budget, const Value& value) {
  if (value.is_sequence() && !value.as_sequence()->is_generator()) return value.as_sequence();
  auto items = std::make_shared<Sequence>();
  items->depth = value.depth();
  if (value.is_sequence()) {
    Sequence& generator = *value.as_sequence();
    TENON_RETURN_IF_ERROR(budget.charge_items(generator.items.size() - generator.consumed));
    items->items.assign(generator.items.begin() + static_cast<ptrdiff_t>(generator.consumed),
                        generator.items.end());
    generator.consumed = generator.items.size();
  } else if (value.is_dict()) {
    TENON_RETURN_IF_ERROR(budget.charge_items(value.as_dict().size()));
    for (const auto& entry : value.as_dict().entries()) items->items.push_back(entry.first);
  } else if (value.is_string()) {
    const MarkedText& text = value.as_text();
    TENON_RETURN_IF_ERROR(budget.charge_items(text.size() * 4));
    for (size_t at = 0; at < text.size();) {
      const size_t size = decode_code_point(text.view(), at).size;
      items->items.push_back(single_character(text, at, size));
      at += size;
    }
  } else if (!value.is_undefined()) {
    return invalid_argument("'{}' object is not iterable", value.type_name());
  }
  return items;
}

Result<int64_t> length_of(Budget& budget, const Value& value) {
  if (value.is_undefined()) return int64_t{0};
  if (value.is_dict()) return static_cast<int64_t>(value.as_dict().size());
  if (value.is_string()) {
    TENON_RETURN_IF_ERROR(budget.charge_bytes(value.as_text().size()));
    return static_cast<int64_t>(value.as_text().length());
  }
  if (value.is_sequence() && !value.as_sequence()->is_generator()) {
    return static_cast<int64_t>(value.as_sequence()->items.size());
  }
  return invalid_argument("object of type '{}' has no len()", value.type_name());
}

}  // namespace tenon::jinja
