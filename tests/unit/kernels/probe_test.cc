#include "kernels/cpu/probe.h"

#include <gtest/gtest.h>

namespace tenon {
namespace {

// Only what holds on any machine: a rate is finite, and no CPU does under 10 million or over 10^15
// a second.
TEST(Probe, GivesPlausibleRates) {
  ThreadPool pool(2);
  for (const double rate :
       {cpu::read_bandwidth(pool, 0.01), cpu::fma_rate(pool, 0.005), cpu::dot_rate(pool, 0.005)}) {
    EXPECT_GT(rate, 1e7);
    EXPECT_LT(rate, 1e15);
  }
}

}  // namespace
}  // namespace tenon
