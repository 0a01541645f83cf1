#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace tenon {
namespace {

TEST(ThreadPool, RunsEveryThreadExactlyOnceManyTimes) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    std::vector<std::atomic<int>> calls(static_cast<size_t>(threads));
    for (int round = 0; round < 2000; ++round) {
      pool.run([&](int index) { calls[static_cast<size_t>(index)].fetch_add(1); });
    }
    for (auto& count : calls) EXPECT_EQ(count.load(), 2000);
  }
}

TEST(ThreadPool, WakesWorkersThatSleep) {
  ThreadPool pool(3);
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::atomic<int> sum{0};
    pool.run([&](int index) { sum.fetch_add(index + 1); });
    EXPECT_EQ(sum.load(), 6);
  }
}

TEST(ThreadPool, ParallelForCoversTheRangeOnce) {
  ThreadPool pool(4);
  for (int64_t count : {0, 1, 7, 64, 1000}) {
    std::vector<std::atomic<int>> hits(static_cast<size_t>(count) + 1);
    pool.parallel_for(count, 7, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) hits[static_cast<size_t>(i)].fetch_add(1);
    });
    for (int64_t i = 0; i < count; ++i) EXPECT_EQ(hits[static_cast<size_t>(i)].load(), 1);
  }
}

}  // namespace
}  // namespace tenon
