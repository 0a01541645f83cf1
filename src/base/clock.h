// Monotonic time in seconds and nanoseconds. Thread safe.
#pragma once

#include <chrono>
#include <cstdint>

namespace tenon {

[[nodiscard]] inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}
[[nodiscard]] inline double now_seconds() {
  return static_cast<double>(now_ns()) * 1e-9;
}

}  // namespace tenon
