#include "attention/registry.h"

#include <algorithm>

#include <gmock/gmock.h>

namespace tenon {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

AttentionRequirements plain() {
  AttentionRequirements wanted;
  wanted.head_dim_qk = wanted.head_dim_v = 64;
  wanted.num_q_heads = 9;
  wanted.num_kv_heads = 3;
  return wanted;
}

// A backend that only answers questions, to test the choice without a kernel.
class FakeBackend final : public AttentionBackend {
 public:
  explicit FakeBackend(BackendInfo info) : info_(std::move(info)) {}
  const BackendInfo& info() const override { return info_; }
  int64_t workspace_size(const AttentionLimits&) const override { return 0; }
  Status prepare(const AttentionLimits&) override { return ok_status(); }
  Result<const AttentionMetadata*> build_metadata(const BatchView&, const GraphBounds*) override {
    return unsupported("fake");
  }
  std::unique_ptr<AttentionImpl> make_impl(const LayerParams&) override { return nullptr; }

 private:
  BackendInfo info_;
};

BackendInfo narrow_info() {
  BackendInfo info;
  info.name = "narrow";
  info.summary = "does one thing";
  info.devices = {DeviceType::kCuda};
  info.q_dtypes = {DType::kF16};
  info.kv_dtypes = {DType::kF16};
  info.max_head_dim = 128;
  info.head_dim_multiple = 8;
  info.block_sizes = {16, 32};
  info.layouts = {KvLayout::kBLHNC, KvLayout::kLBHNC};
  return info;
}

BackendInfo wide_info(std::string name, int32_t preference) {
  BackendInfo info;
  info.name = std::move(name);
  info.devices = {DeviceType::kCpu};
  info.q_dtypes = {DType::kF32};
  info.kv_dtypes = {DType::kF16};
  info.max_head_dim = 256;
  info.layouts = {KvLayout::kLBHNC};
  info.preference = preference;
  return info;
}

void add_fake(AttentionRegistry& registry, const BackendInfo& info) {
  registry.add(info.name,
               [info](const BackendContext&) { return std::make_unique<FakeBackend>(info); });
}

TEST(BackendCheck, EmptyWhenEverythingFits) {
  EXPECT_TRUE(FakeBackend(wide_info("wide", 1)).check(plain()).empty());
}

TEST(BackendCheck, ListsEveryReasonAtOnce) {
  AttentionRequirements wanted = plain();
  wanted.kv_dtype = DType::kBF16;
  wanted.head_dim_qk = 132;
  wanted.head_dim_v = 36;
  wanted.num_q_heads = 15;
  wanted.num_kv_heads = 2;
  wanted.block_size = 24;
  wanted.max_decode_query_len = 4;
  wanted.causal = false;
  wanted.sliding_window = wanted.logits_soft_cap = wanted.alibi = wanted.sinks = true;
  wanted.kv_sharing = wanted.cascade = wanted.needs_lse = true;
  const std::vector<std::string> reasons = FakeBackend(narrow_info()).check(wanted);
  const std::vector<std::string> expected = {
      "does not run on device cpu",
      "query dtype F32 (supported: F16)",
      "KV cache dtype BF16 (supported: F16)",
      "head_dim_qk 132 is above the largest supported, 128",
      "head_dim_v 36 is not a multiple of 8",
      "15 query heads are not divisible by 2 KV heads",
      "block size 24 (supported: 16, 32)",
      "decode rows of 4 query tokens (at most 1)",
      "no non-causal attention",
      "no sliding window",
      "no logits soft cap",
      "no ALiBi",
      "no attention sinks",
      "no KV sharing between layers",
      "no cascade",
      "no log-sum-exp output",
      "sliding window without causal masking is not defined",
  };
  EXPECT_EQ(reasons, expected);
}

TEST(BackendChoice, AutoTakesTheHighestPreferenceThatPasses) {
  AttentionRegistry registry;
  add_fake(registry, wide_info("slow", 1));
  add_fake(registry, narrow_info());
  add_fake(registry, wide_info("quick", 7));
  BackendContext context;
  context.requirements = plain();
  auto choice = get_attention_backend(registry, "auto", context);
  ASSERT_TRUE(choice.ok()) << choice.status().message();
  EXPECT_EQ(choice->backend->info().name, "quick");
  EXPECT_THAT(choice->reason, StartsWith("quick ("));
  EXPECT_THAT(choice->reason, HasSubstr("preferred most, 7, of those that can"));
  EXPECT_THAT(choice->reason, HasSubstr("also possible: slow (preference 1)"));
  EXPECT_THAT(choice->reason, HasSubstr("not possible: narrow: does not run on device cpu"));
  ASSERT_EQ(choice->table.size(), 3U);
  EXPECT_EQ(choice->table[1].name, "narrow");
  EXPECT_FALSE(choice->table[1].reasons.empty());
  EXPECT_TRUE(choice->table[2].reasons.empty());
  EXPECT_EQ(resolve_kv_layout(*choice->backend), KvLayout::kLBHNC);
}

TEST(BackendChoice, NameIsHonouredOrRefusedWithAllReasons) {
  AttentionRegistry registry;
  add_fake(registry, wide_info("slow", 1));
  add_fake(registry, narrow_info());
  BackendContext context;
  context.requirements = plain();
  auto named = get_attention_backend(registry, "slow", context);
  ASSERT_TRUE(named.ok());
  EXPECT_THAT(named->reason, StartsWith("slow ("));
  EXPECT_THAT(named->reason, HasSubstr("asked for by name"));

  const Status refused = get_attention_backend(registry, "narrow", context).status();
  EXPECT_EQ(refused.code(), StatusCode::kUnsupported);
  EXPECT_THAT(refused.message(), HasSubstr("does not run on device cpu"));
  EXPECT_THAT(refused.message(), HasSubstr("query dtype F32"));

  const Status unknown = get_attention_backend(registry, "fast", context).status();
  EXPECT_EQ(unknown.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(unknown.message(), HasSubstr("known: auto, slow, narrow"));
}

TEST(BackendChoice, AutoWithoutCandidateSaysWhyNotEach) {
  AttentionRegistry registry;
  add_fake(registry, wide_info("slow", 1));
  add_fake(registry, narrow_info());
  BackendContext context;
  context.requirements = plain();
  context.requirements.sinks = true;
  const Status status = get_attention_backend(registry, "auto", context).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("slow: no attention sinks"));
  EXPECT_THAT(status.message(), HasSubstr("narrow: does not run on device cpu"));
}

TEST(BackendChoice, RegisteredBackendsRefuseWhatTheyLack) {
  AttentionRegistry registry;
  register_attention_backends(registry);
  struct Want {
    AttentionFeature feature;
    bool AttentionRequirements::*field;
    const char* reason;
  };
  const Want wants[] = {
      {AttentionFeature::kAlibi, &AttentionRequirements::alibi, "no ALiBi"},
      {AttentionFeature::kSinks, &AttentionRequirements::sinks, "no attention sinks"},
      {AttentionFeature::kKvSharing, &AttentionRequirements::kv_sharing,
       "no KV sharing between layers"},
      {AttentionFeature::kCascade, &AttentionRequirements::cascade, "no cascade"},
      {AttentionFeature::kKvScalePerHead, &AttentionRequirements::kv_scale_per_head,
       "no KV scales per head"},
  };
  for (const Want& want : wants) {
    BackendContext context;
    context.requirements = plain();
    context.requirements.*want.field = true;
    for (const BackendEntry& entry : registry.entries()) {
      const auto backend = entry.make(context);
      const auto reasons = backend->check(context.requirements);
      const bool refused = std::find(reasons.begin(), reasons.end(), want.reason) != reasons.end();
      EXPECT_NE(refused, backend->info().has(want.feature)) << entry.name << ": " << want.reason;
    }
  }
}

}  // namespace
}  // namespace tenon
