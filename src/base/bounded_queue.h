// Bounded multi-producer queue between HTTP threads and the engine thread.
// Thread safety: every member may be called from any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

namespace tenon {

template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  // False when the queue is full or closed; `item` is then left untouched.
  [[nodiscard]] bool try_push(T&& item) {
    {
      std::lock_guard lock(mutex_);
      if (closed_ || items_.size() >= capacity_) return false;
      items_.push_back(std::move(item));
    }
    ready_.notify_one();
    return true;
  }

  // Appends everything that is queued to `out`. Waits up to `timeout` for the first item or for
  // wake().
  void drain(std::vector<T>& out, std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    if (timeout.count() > 0) {
      ready_.wait_for(lock, timeout, [&] { return !items_.empty() || closed_ || woken_; });
    }
    woken_ = false;
    while (!items_.empty()) {
      out.push_back(std::move(items_.front()));
      items_.pop_front();
    }
  }

  void wake() {
    {
      std::lock_guard lock(mutex_);
      woken_ = true;
    }
    ready_.notify_all();
  }

  void close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    ready_.notify_all();
  }

  [[nodiscard]] size_t size() const {
    std::lock_guard lock(mutex_);
    return items_.size();
  }

 private:
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<T> items_;
  bool closed_ = false;
  bool woken_ = false;
};

}  // namespace tenon
