#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>

#include "base/cgroup.h"
#include "base/check.h"

namespace tenon {
namespace {

// About 50-100 us of spinning: longer than the serial gap between two kernels of a step, shorter
// than what an idle engine should burn.
constexpr int kSpinIterations = 4000;
// A microsecond or two. Whoever waits that long offers its core: on a busy machine the thread
// waited for may be queued on this very core. With nobody queued the offer costs a fraction of a
// microsecond.
constexpr int kSpinsPerYield = 64;

inline void spin(int round) {
  if (round % kSpinsPerYield == kSpinsPerYield - 1) {
    std::this_thread::yield();
    return;
  }
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) : num_threads_(std::max(1, num_threads)) {
  workers_.reserve(static_cast<size_t>(num_threads_ - 1));
  for (int i = 1; i < num_threads_; ++i) workers_.emplace_back([this, i] { worker_loop(i); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_.store(true);
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::dispatch(Trampoline call, void* context) {
  call_ = call;
  context_ = context;
  pending_.store(num_threads_ - 1, std::memory_order_relaxed);
  // seq_cst pairs with the sleeper's increment-then-check, so a worker going to sleep is never
  // missed.
  generation_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  call(context, 0);
  for (int round = 0; pending_.load(std::memory_order_acquire) != 0;
       round = (round + 1) % kSpinsPerYield) {
    spin(round);
  }
}

void ThreadPool::worker_loop(int thread_index) {
  uint64_t seen = 0;
  for (;;) {
    uint64_t current = generation_.load(std::memory_order_acquire);
    for (int round = 0; current == seen && round < kSpinIterations; ++round) {
      spin(round);
      current = generation_.load(std::memory_order_acquire);
    }
    if (current == seen) {
      std::unique_lock lock(mutex_);
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, [&] { return generation_.load(std::memory_order_seq_cst) != seen; });
      sleepers_.fetch_sub(1, std::memory_order_seq_cst);
      current = generation_.load(std::memory_order_acquire);
    }
    seen = current;
    if (stop_.load()) return;
    call_(context_, thread_index);
    pending_.fetch_sub(1, std::memory_order_release);
  }
}

int default_num_threads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) {
    return std::max(1U, std::thread::hardware_concurrency());
  }
  std::set<std::string> cores;  // hyper-threads of one core share a sibling list and count once
  int allowed = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &set)) continue;
    ++allowed;
    std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                       "/topology/thread_siblings_list");
    std::string siblings;
    if (file && std::getline(file, siblings)) cores.insert(siblings);
  }
  int threads = cores.empty() ? allowed : static_cast<int>(cores.size());
  // More threads than the quota pays for would spend it waiting for each other.
  if (const int quota = cgroup_cpus(); quota > 0) threads = std::min(threads, quota);
  return std::max(1, threads);
}

}  // namespace tenon
