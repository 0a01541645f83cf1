// Ctrl-C as a flag: while an InterruptScope lives, SIGINT sets the flag instead of ending the
// program. One scope at a time.
#pragma once

#include <csignal>

#include <atomic>

namespace tenon::cli {

class InterruptScope {
 public:
  InterruptScope() {
    flag_storage().store(false);
    struct sigaction action {};
    action.sa_handler = [](int) { flag_storage().store(true); };
    ::sigaction(SIGINT, &action, &previous_);
  }
  ~InterruptScope() { ::sigaction(SIGINT, &previous_, nullptr); }
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  [[nodiscard]] const std::atomic<bool>& flag() const { return flag_storage(); }
  void clear() const { flag_storage().store(false); }

 private:
  static std::atomic<bool>& flag_storage() {
    static std::atomic<bool> flag{false};  // lock-free, so a signal handler may set it
    return flag;
  }
  struct sigaction previous_ {};
};

}  // namespace tenon::cli
