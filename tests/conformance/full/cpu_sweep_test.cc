// The full sweep of the cpu backend, on the best instruction set of this machine.
#include "tests/conformance/conformance_run.h"

namespace tenon {
namespace {

TEST(BackendConformance, FullSweepOfCpu) {
  ConformanceOptions options;
  options.level = ConformanceLevel::kFull;
  options.threads = {2};
  options.seed = 2;
  expect_conformance("cpu", options);
}

}  // namespace
}  // namespace tenon
