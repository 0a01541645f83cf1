// A parsed template, ready to be rendered any number of times.
//
// Ownership: owns its syntax tree. Thread safety: immutable; render() may run on any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/jinja/statement.h"
#include "text/jinja/value.h"

namespace tenon::jinja {

using Variables = std::vector<std::pair<std::string, Value>>;

class Template {
 public:
  // Errors: kInvalidArgument with the line.
  static Result<Template> parse(std::string_view source);
  // Errors: kInvalidArgument: the message of raise_exception as it is, all others with the line.
  [[nodiscard]] Result<MarkedText> render(const Variables& variables, int64_t now_unix) const;

 private:
  explicit Template(Block body) : body_(std::move(body)) {}
  Block body_;
};

}  // namespace tenon::jinja
