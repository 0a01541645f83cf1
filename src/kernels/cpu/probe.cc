#include "kernels/cpu/probe.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "kernels/cpu/kernel_table.h"
#include "tensor/tensor.h"

namespace tenon::cpu {
namespace {

// The threads of a core complex together read several times its last-level cache.
constexpr size_t kProbeBytes = size_t{512} << 20;
constexpr size_t kMinProbeBytesPerThread = size_t{16} << 20;
constexpr size_t kMaxProbeBytesPerThread = size_t{128} << 20;
constexpr int64_t kLoopIterations = 20000;  // well under a millisecond between looks at the clock

// Repeats work(thread), which returns an amount, until the time is up; adds the rates of the
// threads, each by its own clock, so that start-up skew does not count.
template <typename Work>
double measure(ThreadPool& pool, double seconds, const Work& work) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> rates(static_cast<size_t>(pool.num_threads()));
  pool.run([&](int thread) {
    const auto begin = Clock::now();
    double amount = 0.0;
    double elapsed = 0.0;
    do {
      amount += work(thread);
      elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
    } while (elapsed < seconds);
    rates[static_cast<size_t>(thread)] = amount / elapsed;
  });
  double total = 0.0;
  for (const double rate : rates) total += rate;
  return total;
}

}  // namespace

double read_bandwidth(ThreadPool& pool, double seconds) {
  const KernelTable& kernels = *find_kernels("auto");
  const auto threads = static_cast<size_t>(pool.num_threads());
  constexpr size_t kPiece = size_t{8} << 20;  // read between looks at the clock
  const size_t share =
      std::clamp(kProbeBytes / threads, kMinProbeBytesPerThread, kMaxProbeBytesPerThread) / kPiece *
      kPiece;
  Buffer buffer(share * threads);
  // Pages must be real before they are timed.
  pool.run([&](int thread) {
    const size_t first = share * static_cast<size_t>(thread);
    std::fill_n(buffer.data() + first, share, std::byte{1});
  });
  struct alignas(64) Position {
    size_t offset = 0;
  };
  std::vector<Position> positions(threads);
  return measure(pool, seconds, [&](int thread) {
    size_t& offset = positions[static_cast<size_t>(thread)].offset;
    const std::byte* from = buffer.data() + share * static_cast<size_t>(thread) + offset;
    kernels.read_bytes({from, kPiece});
    offset = (offset + kPiece) % share;
    return static_cast<double>(kPiece);
  });
}

double fma_rate(ThreadPool& pool, double seconds) {
  const KernelTable& kernels = *find_kernels("auto");
  return measure(pool, seconds, [&](int) { return kernels.fma_loop(kLoopIterations); });
}

double dot_rate(ThreadPool& pool, double seconds) {
  const KernelTable& kernels = *find_kernels("auto");
  return measure(pool, seconds, [&](int) { return kernels.dot_loop(kLoopIterations); });
}

}  // namespace tenon::cpu
