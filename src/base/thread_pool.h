// Fork-join thread pool for kernels.
//
// Purpose:       run one function on all threads of the pool and wait for all of them; built for
// calls of
//                tens of microseconds, so workers spin briefly before they sleep.
// Ownership:     owns its worker threads; joins them in the destructor.
// Thread safety: run() may be called from one thread at a time (the engine's); that thread takes
// part
//                as thread 0.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace tenon {

class ThreadPool {
 public:
  // num_threads >= 1 counts the calling thread: a pool of 1 starts no thread.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int num_threads() const { return num_threads_; }

  // Calls fn(thread_index) once for every thread_index in [0, num_threads()) and returns when all
  // are done. No allocation. `fn` must not throw and must not call run().
  template <typename Fn>
  void run(Fn&& fn) {
    if (num_threads_ == 1) {
      fn(0);
      return;
    }
    using Callable = std::remove_reference_t<Fn>;
    dispatch([](void* context, int index) { (*static_cast<Callable*>(context))(index); },
             const_cast<void*>(static_cast<const void*>(&fn)));
  }

  // Splits [0, count) into items of `grain` that threads take dynamically (one atomic add an item):
  // fn(begin, end, thread_index). Falls back to a plain call when there is a single item.
  template <typename Fn>
  void parallel_for(int64_t count, int64_t grain, Fn&& fn) {
    if (count <= 0) return;
    if (num_threads_ == 1 || count <= grain) {
      fn(int64_t{0}, count, 0);
      return;
    }
    std::atomic<int64_t> next{0};
    run([&](int thread_index) {
      for (;;) {
        const int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
        if (begin >= count) break;
        fn(begin, begin + grain < count ? begin + grain : count, thread_index);
      }
    });
  }

 private:
  using Trampoline = void (*)(void* context, int thread_index);
  void dispatch(Trampoline call, void* context);
  void worker_loop(int thread_index);

  const int num_threads_;
  std::vector<std::thread> workers_;
  Trampoline call_ = nullptr;
  void* context_ = nullptr;
  alignas(64) std::atomic<uint64_t> generation_{0};  // bumped once per run()
  alignas(64) std::atomic<int> pending_{0};          // workers that have not finished this run()
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
};

// Threads to use by default: the CPUs this process may run on, one per physical core, and no more
// than its control group has time for.
[[nodiscard]] int default_num_threads();

}  // namespace tenon
