// What the scheduler costs a step: plan, apply and commit together, in microseconds.
//
// scheduler_bench [--steps=N]. Three loads, each with one and with two steps in flight:
//   decode  256 requests of 1k context, one row each
//   queue   the same, and 2,744 requests that wait behind them
//   serve   3,000 requests of 1,000 prompt and 128 output tokens at once, to the end
// Ends with a RESULT line for the decode steps; the mean counts, because a step in 16 fills a block
// for every sequence at once when all started together.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "scheduler/scheduler.h"

namespace tenon {
namespace {

constexpr int32_t kSequences = 256, kRequests = 3000;
constexpr double kTargetMicroseconds = 50;

struct Load {
  const char* name;
  int32_t num_requests, num_prompt, num_output;
  bool decode_only;  // measure steps of one token a sequence, and stop after --steps of them
};

using Times = std::array<double, 3>;  // plan, apply, commit

template <typename Fn>
double microseconds(Fn&& fn) {
  const auto begin = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
      .count();
}

SchedulerConfig config_of(const Load& load, int32_t depth) {
  SchedulerConfig config;
  const int32_t blocks_each = (load.num_prompt + load.num_output) / config.block_size + 1;
  config.num_blocks = 1 + (kSequences + 1) * (blocks_each + 1);
  config.budget = {.max_num_batched_tokens = 8192, .max_num_seqs = kSequences};
  config.max_steps_in_flight = depth;
  return config;
}

class Driver {
 public:
  Driver(const Load& load, int32_t depth) : scheduler_(config_of(load, depth)), depth_(depth) {
    std::mt19937 random(1);
    for (int32_t i = 0; i < load.num_requests; ++i) {
      std::vector<int32_t> prompt(static_cast<size_t>(load.num_prompt));
      for (int32_t& token : prompt) token = static_cast<int32_t>(random() % 100000);
      const Status added = scheduler_.add({.id = static_cast<RequestId>(i),
                                           .prompt = std::move(prompt),
                                           .max_total_tokens = load.num_prompt + load.num_output});
      if (!added.ok()) std::abort();
    }
  }

  [[nodiscard]] bool done() const { return !scheduler_.has_requests() && num_in_flight_ == 0; }
  [[nodiscard]] bool all_decode() const {
    return newest_->num_decode_rows == kSequences && newest_->rows.size() == kSequences;
  }

  // Plans and applies a step and commits the oldest, with `depth` of them in flight in between.
  Times turn() {
    Times times = {};
    newest_ = &plans_[num_steps_ % plans_.size()];
    times[0] = microseconds([&] { scheduler_.plan(scheduler_.state().config.budget, newest_); });
    if (!newest_->empty()) {
      times[1] = microseconds([&] { scheduler_.apply(newest_); });
      ++num_steps_;
      ++num_in_flight_;
      if (num_in_flight_ < depth_) return times;
    }
    const StepPlan& oldest =
        plans_[(num_steps_ - static_cast<size_t>(num_in_flight_)) % plans_.size()];
    sample(oldest);
    times[2] = microseconds([&] { scheduler_.commit(oldest, results_); });
    --num_in_flight_;
    return times;
  }

 private:
  void sample(const StepPlan& plan) {
    results_.assign(plan.rows.size(), {});
    for (size_t i = 0; i < plan.rows.size(); ++i) {
      const PlanRow& row = plan.rows[i];
      if (!row.sample) continue;
      results_[i].token = static_cast<int32_t>((plan.step * 7919 + row.id) % 100000);
      results_[i].finished =
          row.start + row.num_tokens + 1 == scheduler_.request(row.slot).max_total_tokens;
    }
  }

  Scheduler scheduler_;
  int32_t depth_;
  std::array<StepPlan, 2> plans_;
  StepPlan* newest_ = plans_.data();
  size_t num_steps_ = 0;
  int32_t num_in_flight_ = 0;
  std::vector<RowResult> results_;
};

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// The mean of plan + apply + commit.
double measure(const Load& load, int32_t depth, int num_steps) {
  Driver driver(load, depth);
  std::array<std::vector<double>, 3> parts;
  std::vector<double> totals;
  while (!driver.done() && (!load.decode_only || std::cmp_less(totals.size(), num_steps))) {
    const Times times = driver.turn();
    if (load.decode_only && !driver.all_decode()) continue;
    for (size_t i = 0; i < parts.size(); ++i) parts[i].push_back(times[i]);
    totals.push_back(times[0] + times[1] + times[2]);
  }
  std::vector<double> sorted = totals;
  std::ranges::sort(sorted);
  const auto at = [&](double part) {
    return sorted[static_cast<size_t>(part * static_cast<double>(sorted.size() - 1))];
  };
  std::printf("%-7s %8d %7zu %8.1f %8.1f %8.1f %8.1f %8.1f %8.1f\n", load.name, depth,
              totals.size(), mean(parts[0]), mean(parts[1]), mean(parts[2]), mean(totals), at(0.5),
              at(0.99));
  return mean(totals);
}

int run(int num_steps) {
  const int32_t room = num_steps + 100;
  const std::array<Load, 3> loads = {{
      {"decode", kSequences, 1024, room, true},
      {"queue", kRequests, 1024, room, true},
      {"serve", kRequests, 1000, 128, false},
  }};
  std::printf("%-7s %8s %7s %8s %8s %8s %8s %8s %8s\n", "load", "in", "steps", "plan", "apply",
              "commit", "total", "median", "p99");
  std::printf("%-7s %8s %7s %8s %8s %8s %8s %8s %8s\n", "", "flight", "", "mean", "mean", "mean",
              "mean", "total", "total");
  double worst = 0;
  for (const Load& load : loads) {
    for (const int32_t depth : {1, 2}) {
      const double total = measure(load, depth, num_steps);
      if (load.decode_only) worst = std::max(worst, total);
    }
  }
  std::printf("RESULT scheduler_step_us_256 %.1f %.0f %s\n", worst, kTargetMicroseconds,
              worst <= kTargetMicroseconds ? "ok" : "short");
  return 0;
}

}  // namespace
}  // namespace tenon

int main(int argc, char** argv) {
  int num_steps = 1000;
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "--steps=", 8) == 0) num_steps = std::atoi(argv[i] + 8);
  }
  return tenon::run(std::max(1, num_steps));
}
