// Limits of one rendering, so that no template can hang the server or take all its memory.
//
// Ownership: value. Thread safety: none; one rendering uses one Budget.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace tenon::jinja {

inline constexpr int64_t kMaxSteps = 20'000'000;           // about a second of evaluation
inline constexpr size_t kMaxTextBytes = size_t{32} << 20;  // of one string, and of the output
inline constexpr int kMaxEvaluationDepth = 800;            // nested evaluations
inline constexpr ptrdiff_t kMaxStackBytes =
    640 << 10;                              // of the machine's stack; callers have at least 1 MiB
inline constexpr int kMaxValueDepth = 200;  // lists inside lists
inline constexpr int kMaxScopeDepth = 400;
inline constexpr int64_t kMaxRangeItems = 100'000;  // as Jinja's sandbox has it

class Budget {
 public:
  // False once the work is used up.
  [[nodiscard]] bool spend(int64_t steps) {
    steps_left_ -= steps;
    return steps_left_ >= 0;
  }
  // Work in proportion to bytes or items touched or made.
  Status charge(int64_t steps) { return spend(steps) ? ok_status() : exhausted(); }
  Status charge_bytes(size_t bytes) { return charge(static_cast<int64_t>(bytes / 16) + 1); }
  Status charge_items(size_t items) { return charge(static_cast<int64_t>(items) * 2 + 1); }
  // For a string about to be made.
  Status reserve_text(size_t bytes) {
    if (bytes > kMaxTextBytes) {
      return invalid_argument("a string of more than {} MiB was to be made", kMaxTextBytes >> 20);
    }
    return charge_bytes(bytes);
  }
  static Status exhausted() {
    return invalid_argument("the template takes too many steps (limit {})", kMaxSteps);
  }

 private:
  int64_t steps_left_ = kMaxSteps;
};

}  // namespace tenon::jinja
