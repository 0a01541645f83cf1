// Every registered backend against `reference`: a thin wrapper over attention/conformance.h.
#include <gmock/gmock.h>

#include "attention/conformance.h"

namespace tenon {
namespace {

const AttentionRegistry& registry() {
  static const AttentionRegistry made = [] {
    AttentionRegistry list;
    register_attention_backends(list);
    return list;
  }();
  return made;
}

// The instruction sets on which the backend exists here; one is enough for the reference, which ignores them.
std::vector<std::string> isas_of(const std::string& backend) {
  if (backend == "reference") return {"portable"};
  std::vector<std::string> isas;
  for (const char* isa : {"portable", "avx2", "avx512"}) {
    BackendContext context;
    context.requirements.head_dim_qk = context.requirements.head_dim_v = 64;
    context.requirements.num_q_heads = context.requirements.num_kv_heads = 1;
    context.isa = isa;
    if (get_attention_backend(registry(), backend, context).ok()) isas.emplace_back(isa);
  }
  return isas;
}

class BackendConformance : public testing::TestWithParam<std::string> {};

TEST_P(BackendConformance, Quick) {
  ConformanceOptions options;
  options.isas = isas_of(GetParam());
  if (GetParam() == "reference") options.threads = {1};  // it has none
  ASSERT_THAT(options.isas, testing::Contains("portable"));
  double worst = 0;
  auto results = run_conformance(registry(), GetParam(), options);
  ASSERT_TRUE(results.ok()) << results.status().message();
  for (const ConformanceResult& result : *results) {
    EXPECT_EQ(result.outcome, ConformanceOutcome::kPassed) << result.name << "\n  " << result.detail;
    worst = std::max(worst, result.worst);
  }
  EXPECT_EQ(results->size(),
            options.isas.size() * conformance_cases(ConformanceLevel::kQuick).size());
  RecordProperty("worst_share_of_tolerance", std::to_string(worst));
  std::printf("%s: %zu cases, worst error %.3f of its tolerance\n", GetParam().c_str(),
              results->size(), worst);
}

std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  for (const BackendEntry& entry : registry().entries()) names.push_back(entry.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Registered, BackendConformance, testing::ValuesIn(backend_names()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace tenon
