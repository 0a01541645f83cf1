// Every registered backend against `reference`: a thin wrapper over attention/conformance.h.
#include <gmock/gmock.h>

#include "tests/conformance/conformance_run.h"

namespace tenon {
namespace {

// The instruction sets on which the backend exists here; one is enough for the reference, which
// ignores them.
std::vector<std::string> isas_of(const std::string& backend) {
  if (backend == "reference") return {"portable"};
  std::vector<std::string> isas;
  for (const char* isa : {"portable", "avx2", "avx512"}) {
    BackendContext context;
    context.requirements.head_dim_qk = context.requirements.head_dim_v = 64;
    context.requirements.num_q_heads = context.requirements.num_kv_heads = 1;
    context.isa = isa;
    if (get_attention_backend(conformance_registry(), backend, context).ok()) {
      isas.emplace_back(isa);
    }
  }
  return isas;
}

class BackendConformance : public testing::TestWithParam<std::string> {};

TEST_P(BackendConformance, Quick) {
  ConformanceOptions options;
  options.isas = isas_of(GetParam());
  ASSERT_THAT(options.isas, testing::Contains("portable"));
  if (GetParam() == "reference") options.threads = {1};  // it has none
  expect_conformance(GetParam(), options);
}

std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  for (const BackendEntry& entry : conformance_registry().entries()) {
    const std::vector<DeviceType> devices = entry.make({})->info().devices;
    if (std::find(devices.begin(), devices.end(), DeviceType::kCpu) != devices.end()) {
      names.push_back(entry.name);
    }
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Registered,
                         BackendConformance,
                         testing::ValuesIn(backend_names()),
                         [](const auto& test) { return test.param; });

TEST(Conformance, FindsABackendThatIsWrong) {
  // The reference under another name, but blind to the scale of K: one case with a scale must fail,
  // one without pass.
  AttentionRegistry registry;
  register_attention_backends(registry);
  const BackendFactory reference =
      std::find_if(registry.entries().begin(), registry.entries().end(),
                   [](const BackendEntry& entry) { return entry.name == "reference"; })
          ->make;
  class Forgetful final : public AttentionBackend {
   public:
    explicit Forgetful(std::unique_ptr<AttentionBackend> inner) : inner_(std::move(inner)) {}
    const BackendInfo& info() const override { return inner_->info(); }
    int64_t workspace_size(const AttentionLimits& l) const override {
      return inner_->workspace_size(l);
    }
    Status prepare(const AttentionLimits& limits) override { return inner_->prepare(limits); }
    Result<const AttentionMetadata*> build_metadata(const BatchView& batch,
                                                    const GraphBounds*) override {
      return inner_->build_metadata(batch);
    }
    std::unique_ptr<AttentionImpl> make_impl(const LayerParams& params) override {
      LayerParams changed = params;
      changed.kv.scales.k = 1.0F;
      return inner_->make_impl(changed);
    }

   private:
    std::unique_ptr<AttentionBackend> inner_;
  };
  registry.add("forgetful", [&](const BackendContext& context) {
    return std::make_unique<Forgetful>(reference(context));
  });
  ConformanceOptions options;
  options.threads = {1};
  ConformanceCase c;
  c.batch = "q1s20_q5";
  EXPECT_TRUE(run_conformance_case(registry, "forgetful", c, options)[0].outcome ==
              ConformanceOutcome::kPassed);
  c.k_scale = 0.3F;
  EXPECT_TRUE(run_conformance_case(registry, "forgetful", c, options)[0].outcome ==
              ConformanceOutcome::kFailed);
  EXPECT_FALSE(run_conformance(registry, "no-such", options).ok());
}

}  // namespace
}  // namespace tenon
