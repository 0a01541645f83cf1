// Every registered backend of the GPU against `reference`: a thin wrapper over
// attention/conformance.h. A case that check() refuses is no failure here; how many a backend may
// refuse is fixed below.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "attention/conformance.h"
#include "tests/gpu.h"

namespace tenon {
namespace {

bool runs_on_cuda(const BackendEntry& entry) {
  BackendContext context;
  context.requirements.device = DeviceType::kCuda;
  const std::vector<DeviceType> devices = entry.make(context)->info().devices;
  return std::find(devices.begin(), devices.end(), DeviceType::kCuda) != devices.end();
}

std::vector<std::string> cuda_backends() {
  AttentionRegistry registry;
  register_attention_backends(registry);
  std::vector<std::string> names;
  for (const BackendEntry& entry : registry.entries()) {
    if (runs_on_cuda(entry)) names.push_back(entry.name);
  }
  return names;
}

// Attention as every backend of the GPU has it: 16-bit cells and nothing on top.
bool is_plain(const ConformanceCase& c) {
  return c.kv_dtype == c.q_dtype && c.causal && !c.sliding_window && c.soft_cap == 0 && !c.alibi &&
         !c.sinks && !c.shares_kv && !c.head_scales;
}

class GpuConformance : public ::testing::TestWithParam<std::string> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GpuConformance);

TEST_P(GpuConformance, Quick) {
  TENON_GPU_OR_SKIP(device);
  AttentionRegistry registry;
  register_attention_backends(registry);
  ConformanceOptions options;
  options.device = device;
  auto results = run_conformance(registry, GetParam(), options);
  ASSERT_TRUE(results.ok()) << results.status().message();
  double worst = 0;
  size_t refused = 0;
  for (const ConformanceResult& result : *results) {
    worst = std::max(worst, result.worst);
    if (result.outcome == ConformanceOutcome::kRefused) {
      ++refused;
      std::printf("refused: %s: %s\n", result.name.c_str(), result.detail.c_str());
      continue;
    }
    EXPECT_TRUE(result.outcome == ConformanceOutcome::kPassed)
        << result.name << "\n  " << result.detail;
  }
  std::printf("%s: %zu cases, %zu refused, worst error %.3f of its tolerance\n", GetParam().c_str(),
              results->size(), refused, worst);
  // Tenon's own backend serves every case of the suite; the other one the plain ones, of the shapes
  // of its kernels.
  const auto cases = conformance_cases(ConformanceLevel::kQuick, DeviceType::kCuda);
  const auto plain = static_cast<size_t>(std::count_if(cases.begin(), cases.end(), is_plain));
  EXPECT_LE(refused, GetParam() == "flash" ? 0 : results->size() - plain / 2);
}

INSTANTIATE_TEST_SUITE_P(Registered,
                         GpuConformance,
                         ::testing::ValuesIn(cuda_backends()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace tenon
