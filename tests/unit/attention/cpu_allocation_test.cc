// The step loop must not allocate: counts operator new around plans, cache writes and forward
// passes.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "attention/registry.h"
#include "attention/synthetic_batch.h"

namespace {
std::atomic<int64_t> allocations{0};
}  // namespace

// Not inlined: seeing through one of the pair alone, the compiler takes it for a mismatch.
[[gnu::noinline]] void* operator new(std::size_t size) {
  allocations.fetch_add(1);
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  allocations.fetch_add(1);
  return std::malloc(size == 0 ? 1 : size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace tenon {
namespace {

TEST(CpuBackend, AllocatesNothingAfterPrepare) {
  AttentionRegistry registry;
  register_attention_backends(registry);
  ThreadPool pool(3);
  BackendContext context;
  AttentionRequirements& r = context.requirements;
  r.head_dim_qk = r.head_dim_v = 64;
  r.num_q_heads = 6;
  r.num_kv_heads = 2;
  context.pool = &pool;
  auto choice = get_attention_backend(registry, "cpu", context);
  ASSERT_TRUE(choice.ok());
  AttentionBackend& backend = *choice->backend;
  EXPECT_GT(backend.workspace_size({8, 128, 2048}), 0);
  ASSERT_TRUE(backend.prepare({8, 128, 2048}).ok());
  auto kv = KvPool::create({1, 2, 64, 64, 16, DType::kF16}, resolve_kv_layout(backend), 400);
  ASSERT_TRUE(kv.ok());
  LayerParams params;
  params.num_q_heads = 6;
  params.num_kv_heads = 2;
  params.head_dim_qk = params.head_dim_v = 64;
  params.scale = 0.125F;
  params.kv = kv->view(0);
  auto impl = backend.make_impl(params);

  std::vector<float> cells = random_floats(128 * 128, 1);
  std::vector<float> q = random_floats(128 * 384, 2);
  std::vector<float> out(128 * 384);
  std::vector<float> lse(128 * 6);
  for (const char* spec : {"8q1s200", "q1s2000", "q100", "3q1s1200_q5s30_q64s900_q50"}) {
    const auto rows = parse_batch_spec(spec);
    const SyntheticBatch batch = make_batch(*rows, 16, 400, 1);
    const int64_t tokens = batch.view.num_tokens();
    const int64_t before = allocations.load();
    auto metadata = backend.build_metadata(batch.view);
    ASSERT_TRUE(metadata.ok());
    impl->write_kv(TensorView::dense(cells.data(), DType::kF32, {tokens, 128}),
                   TensorView::dense(cells.data(), DType::kF32, {tokens, 128}), batch.slot_mapping);
    AttentionInput in;
    in.q = TensorView::dense(q.data(), DType::kF32, {tokens, 384});
    in.out = TensorView::dense(out.data(), DType::kF32, {tokens, 384});
    in.lse = std::span(lse).first(static_cast<size_t>(tokens) * 6);
    impl->forward(in, **metadata);
    EXPECT_EQ(allocations.load() - before, 0) << spec;
  }
}

}  // namespace
}  // namespace tenon
