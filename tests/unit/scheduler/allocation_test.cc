// A warm engine must not touch the heap between forward passes.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "scheduler/scheduler.h"

namespace {
std::atomic<int64_t> num_allocations{0};

void* counted_alloc(std::size_t size) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size > 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(std::size_t size) {
  return counted_alloc(size);
}
void* operator new[](std::size_t size) {
  return counted_alloc(size);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace tenon {
namespace {

void expect_no_allocations(int32_t steps_in_flight) {
  constexpr int32_t kRequests = 64;
  SchedulerConfig config;
  config.max_steps_in_flight = steps_in_flight;
  config.num_blocks = 2000;
  config.budget = {
      .max_num_batched_tokens = 512, .max_num_seqs = kRequests, .chunked_prefill = true};
  Scheduler scheduler(config);
  for (int32_t i = 0; i < kRequests; ++i) {
    ASSERT_TRUE(scheduler
                    .add({.id = static_cast<RequestId>(i),
                          .prompt = std::vector<int32_t>(static_cast<size_t>(20 + i), i),
                          .max_total_tokens = 400})
                    .ok());
  }
  std::array<StepPlan, 2> plans;
  std::vector<RowResult> results;
  int64_t before = 0;
  const auto commit = [&](const StepPlan& plan) {
    results.assign(plan.rows.size(), {.token = static_cast<int32_t>(plan.step)});
    scheduler.commit(plan, results);
  };
  for (int step = 0; step < 200; ++step) {
    if (step == 20) before = num_allocations;  // all are admitted by then
    StepPlan& plan = plans[static_cast<size_t>(step % 2)];
    scheduler.plan(config.budget, &plan);
    ASSERT_FALSE(plan.empty());
    scheduler.apply(&plan);
    if (steps_in_flight == 1) {
      commit(plan);
    } else if (step > 0) {
      commit(plans[static_cast<size_t>((step + 1) % 2)]);
    }
  }
  EXPECT_EQ(scheduler.num_running(), kRequests);
  EXPECT_GT(scheduler.state().requests.at(0).num_tokens(), 200);
  EXPECT_GT(before, 0);
  EXPECT_EQ(num_allocations, before);
}

TEST(Scheduler, StepsOfRunningRequestsDoNotAllocate) {
  expect_no_allocations(1);
}

TEST(Scheduler, StepsInFlightDoNotAllocate) {
  expect_no_allocations(2);
}

}  // namespace
}  // namespace tenon
