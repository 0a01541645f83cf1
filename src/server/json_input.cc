#include "server/json_input.h"

#include <unordered_map>
#include <utility>
#include <vector>

#include "text/keyed_hash.h"

namespace tenon {
namespace {

// nlohmann's own builder looks a key up by walking all earlier ones, which is quadratic for a
// hostile object; this one switches to a hash index when an object grows.
class DomBuilder final : public nlohmann::json_sax<OrderedJson> {
 public:
  explicit DomBuilder(const JsonLimits& limits) : limits_(limits) {}

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& text) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& value) override { return false; }  // not in JSON text
  bool start_object(size_t) override { return open(OrderedJson::object()); }
  bool start_array(size_t) override { return open(OrderedJson::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& value) override {
    stack_.back().key = std::move(value);
    return true;
  }
  bool parse_error(size_t position,
                   const std::string& last_token,
                   const OrderedJson::exception& error) override {
    status_ = invalid_argument("the request body is not valid JSON: {}", reason(error.what()));
    return false;
  }

  [[nodiscard]] Status status() const { return status_; }
  [[nodiscard]] OrderedJson take() { return std::move(root_); }

 private:
  struct Frame {
    OrderedJson value;
    std::string key;
    // Of an object with more than kLinear keys.
    std::unordered_map<std::string, size_t, KeyedHash> index;
  };
  static constexpr size_t kLinear = 16;

  // The library's message without its prefix and without the text it read last, which is the
  // caller's.
  static std::string reason(std::string_view what) {
    if (const size_t end = what.find("; last read"); end != std::string_view::npos)
      what = what.substr(0, end);
    if (const size_t prefix = what.find("] ");
        what.starts_with('[') && prefix != std::string_view::npos) {
      what.remove_prefix(prefix + 2);
    }
    if (what.starts_with("number overflow")) what = "a number is out of range";
    return std::string(what);
  }

  bool add(OrderedJson value) {
    if (++values_ > limits_.max_values) {
      status_ =
          invalid_argument("the request body has more than {} JSON values", limits_.max_values);
      return false;
    }
    if (stack_.empty()) {
      root_ = std::move(value);
      return true;
    }
    Frame& frame = stack_.back();
    if (frame.value.is_array()) {
      frame.value.get_ref<OrderedJson::array_t&>().push_back(std::move(value));
      return true;
    }
    auto& object = frame.value.get_ref<OrderedJson::object_t&>();
    const auto found = find(frame, object);
    if (found != object.end()) {
      found->second = std::move(value);
      return true;
    }
    if (object.size() >= kLinear) frame.index.emplace(frame.key, object.size());
    object.emplace_back(std::move(frame.key), std::move(value));
    return true;
  }

  static OrderedJson::object_t::iterator find(Frame& frame, OrderedJson::object_t& object) {
    if (object.size() < kLinear) {
      auto it = object.begin();
      while (it != object.end() && it->first != frame.key) ++it;
      return it;
    }
    if (frame.index.empty()) {
      for (size_t i = 0; i < object.size(); ++i)
        frame.index.emplace((object.begin() + static_cast<long>(i))->first, i);
    }
    const auto it = frame.index.find(frame.key);
    return it == frame.index.end() ? object.end() : object.begin() + static_cast<long>(it->second);
  }

  bool open(OrderedJson value) {
    if (stack_.size() >= static_cast<size_t>(limits_.max_depth)) {
      status_ =
          invalid_argument("the request body is nested deeper than {} levels", limits_.max_depth);
      return false;
    }
    stack_.push_back({std::move(value), {}, {}});
    return true;
  }

  bool close() {
    OrderedJson value = std::move(stack_.back().value);
    stack_.pop_back();
    return add(std::move(value));
  }

  const JsonLimits& limits_;
  std::vector<Frame> stack_;
  OrderedJson root_;
  size_t values_ = 0;
  Status status_;
};

}  // namespace

Result<OrderedJson> parse_json(std::string_view text, const JsonLimits& limits) {
  DomBuilder builder(limits);
  if (!OrderedJson::sax_parse(text.begin(), text.end(), &builder)) return builder.status();
  return builder.take();
}

std::string dump_json(const OrderedJson& value) {
  return value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace tenon
