// Threads for the slow part of a request: JSON, templates, tokenising, long answers.
//
// Ownership:     owns its threads; stop() (or the destructor) runs what still waits and joins them.
// Thread safety: every member may be called from any thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tenon {

class WorkerPool {
 public:
  WorkerPool(int threads, size_t max_waiting);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // False when too many tasks wait or the pool has stopped. What `task` throws is logged.
  [[nodiscard]] bool submit(std::function<void()> task);
  void stop();

 private:
  void run();

  const size_t max_waiting_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tenon
