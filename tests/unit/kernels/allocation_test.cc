// The step loop must not allocate: counts operator new around every call of a warm Ops.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/unit/kernels/kernel_test_util.h"

namespace {
std::atomic<int64_t> allocations{0};
}  // namespace

// Out of line, or GCC takes a pair seen half inlined for a mismatch.
[[gnu::noinline]] void* operator new(std::size_t size) {
  allocations.fetch_add(1);
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace tenon {
namespace {

using testing::Matrix;
using testing::StoredMatrix;

class AllocationTest : public ::testing::TestWithParam<std::string> {};

TEST_P(AllocationTest, WarmCallsAllocateNothing) {
  testing::CpuOpsFixture cpu(GetParam());
  const StoredMatrix first(DType::kQ4_1, 64, 512, 1);
  const StoredMatrix second(DType::kF32, 40, 512, 2);
  const WeightSource parts[] = {first.source(), second.source()};
  const auto weight = cpu.ops->make_linear(parts, false);
  ASSERT_TRUE(weight.ok());
  const auto embedding = cpu.ops->make_embedding(first.source(), weight->get());
  ASSERT_TRUE(embedding.ok());
  const std::vector<float> scale(512, 1.0F);
  const RopeTable table{64, true, std::vector<float>(64, 1.0F), std::vector<float>(64, 0.0F)};
  for (const int64_t tokens : {200, 1, 16, 24, 25, 200}) {
    Matrix x(tokens, 512);
    Matrix y(tokens, 104);
    Matrix half(tokens, 256);
    Matrix gathered(1, 512);
    x.randomise(3);
    const std::vector<int32_t> ids(static_cast<size_t>(tokens), 0);
    std::vector<float> sums(static_cast<size_t>(tokens));
    const int64_t before = allocations.load();
    cpu.ops->embedding(**embedding, ids, x.view());
    cpu.ops->linear(**weight, x.view(), y.view());
    cpu.ops->add_rms_norm(x.view(), x.view(), scale, 1e-5F, x.view());
    cpu.ops->rms_norm(x.view(), scale, 1e-5F, x.view());
    cpu.ops->rope(x.view(), ids, 64, table);
    cpu.ops->silu_and_mul(x.view(), half.view());
    cpu.ops->gather_rows(x.view(), std::span(ids).first(1), gathered.view());
    cpu.ops->log_sum_exp(x.view(), sums);
    EXPECT_EQ(allocations.load() - before, 0) << tokens << " tokens";
  }
}

INSTANTIATE_TEST_SUITE_P(AllIsas,
                         AllocationTest,
                         ::testing::ValuesIn(testing::available_isas()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace tenon
