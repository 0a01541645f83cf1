// Attention of one layer over batches in the batch grammar. Counters: GB/s of K and V read at least
// once a KV head and row, GFLOP/s of the visible query-key pairs (2 * (dim_k + dim_v) a pair and
// query head).
//   attention_bench --benchmark_filter=decode
// Environment: TENON_BENCH_THREADS (default 2), TENON_BENCH_ISA (default auto).
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdlib>
#include <string>

#include "attention/registry.h"
#include "attention/synthetic_batch.h"
#include "base/check.h"

namespace tenon {
namespace {

struct Shape {
  const char* name;
  int32_t q_heads, kv_heads, dim;
};
constexpr Shape kSmolLm2 = {"smollm2-135m", 9, 3, 64};
constexpr Shape kLlama8b = {"llama-8b", 32, 8, 128};

int bench_threads() {
  const char* text = std::getenv("TENON_BENCH_THREADS");
  return text == nullptr ? 2 : std::atoi(text);
}

void attention(benchmark::State& state, const Shape& shape, const std::string& spec, DType dtype) {
  auto rows = parse_batch_spec(spec);
  TENON_CHECK(rows.ok());
  constexpr int32_t kBlockSize = 16;
  const int64_t num_blocks = blocks_needed(*rows, kBlockSize);
  const SyntheticBatch batch = make_batch(*rows, kBlockSize, num_blocks, 1);
  const BatchView& view = batch.view;

  ThreadPool pool(bench_threads());
  BackendContext context;
  AttentionRequirements& r = context.requirements;
  r.kv_dtype = dtype;
  r.head_dim_qk = r.head_dim_v = shape.dim;
  r.num_q_heads = shape.q_heads;
  r.num_kv_heads = shape.kv_heads;
  context.pool = &pool;
  const char* isa = std::getenv("TENON_BENCH_ISA");
  if (isa != nullptr) context.isa = isa;
  AttentionRegistry registry;
  register_attention_backends(registry);
  auto choice = get_attention_backend(registry, "cpu", context);
  TENON_CHECK(choice.ok());
  AttentionBackend& backend = *choice->backend;
  TENON_CHECK(backend.prepare({view.num_rows(), view.num_tokens(), view.max_seq_len}).ok());
  auto kv = KvPool::create({1, shape.kv_heads, shape.dim, shape.dim, kBlockSize, dtype},
                           resolve_kv_layout(backend), num_blocks);
  TENON_CHECK(kv.ok());

  LayerParams params;
  params.num_q_heads = shape.q_heads;
  params.num_kv_heads = shape.kv_heads;
  params.head_dim_qk = params.head_dim_v = shape.dim;
  params.scale = 1.0F / std::sqrt(static_cast<float>(shape.dim));
  params.kv = kv->view(0);
  auto impl = backend.make_impl(params);
  const int64_t kv_width = int64_t{shape.kv_heads} * shape.dim;
  const int64_t q_width = int64_t{shape.q_heads} * shape.dim;
  std::vector<int64_t> slots(static_cast<size_t>(num_blocks * kBlockSize));
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int64_t>(i);
  std::vector<float> cells = random_floats(slots.size() * static_cast<size_t>(kv_width), 3);
  const TensorView cell_view =
      TensorView::dense(cells.data(), DType::kF32, {static_cast<int64_t>(slots.size()), kv_width});
  impl->write_kv(cell_view, cell_view, slots);
  std::vector<float> q = random_floats(static_cast<size_t>(view.num_tokens() * q_width), 4);
  std::vector<float> out(q.size());
  const TensorView q_view = TensorView::dense(q.data(), DType::kF32, {view.num_tokens(), q_width});
  const TensorView out_view =
      TensorView::dense(out.data(), DType::kF32, {view.num_tokens(), q_width});

  for (auto _ : state) {
    auto metadata = backend.build_metadata(view);
    TENON_CHECK(metadata.ok());
    impl->forward({q_view, {}, {}, out_view}, **metadata);
    benchmark::ClobberMemory();
  }
  double bytes = 0;
  double pairs = 0;
  for (int32_t row = 0; row < view.num_rows(); ++row) {
    const double seq_len = view.seq_lens[static_cast<size_t>(row)];
    const double query_len = view.query_len(row);
    bytes += seq_len * 2 * static_cast<double>(dtype_bytes(dtype, kv_width));
    pairs += query_len * (seq_len - (query_len - 1) / 2);
  }
  using benchmark::Counter;
  state.counters["GB/s"] = Counter(bytes * 1e-9, Counter::kIsIterationInvariantRate);
  state.counters["GFLOP/s"] =
      Counter(pairs * shape.q_heads * 4 * shape.dim * 1e-9, Counter::kIsIterationInvariantRate);
}

// The ceiling: every thread of the pool reads its share of 512 MiB.
void read_bandwidth(benchmark::State& state) {
  ThreadPool pool(bench_threads());
  std::vector<uint64_t> data(size_t{64} << 20, 1);
  std::vector<uint64_t> sums(static_cast<size_t>(pool.num_threads()) * 8);
  for (auto _ : state) {
    pool.run([&](int thread) {
      const size_t share = data.size() / static_cast<size_t>(pool.num_threads());
      const uint64_t* begin = data.data() + share * static_cast<size_t>(thread);
      uint64_t lanes[8] = {};
      for (size_t i = 0; i + 8 <= share; i += 8) {
        for (size_t j = 0; j < 8; ++j) lanes[j] += begin[i + j];
      }
      for (size_t j = 0; j < 8; ++j) sums[static_cast<size_t>(thread) * 8 + j] = lanes[j];
    });
    benchmark::DoNotOptimize(sums.data());
  }
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(data.size()) * 8e-9,
                                              benchmark::Counter::kIsIterationInvariantRate);
}

void add(const Shape& shape, const char* kind, const char* spec, DType dtype) {
  const std::string name =
      fmt::format("{}/{}/{}/{}", kind, shape.name, spec, dtype_traits(dtype).name);
  benchmark::RegisterBenchmark(
      name.c_str(), [=](benchmark::State& state) { attention(state, shape, spec, dtype); })
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
}

void register_all() {
  benchmark::RegisterBenchmark("ceiling/read", read_bandwidth)->UseRealTime();
  for (const Shape& shape : {kSmolLm2, kLlama8b}) {
    for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
      for (const char* spec : {"q1s512", "q1s2k", "q1s32k", "16q1s2k"}) {
        add(shape, "decode", spec, dtype);
      }
    }
    for (const char* spec : {"q512", "q2k", "q512s4k"}) add(shape, "prefill", spec, DType::kF16);
    for (const char* spec : {"16q1s1k_q512", "q4s8k"}) add(shape, "mixed", spec, DType::kF16);
  }
}

}  // namespace
}  // namespace tenon

int main(int argc, char** argv) {
  tenon::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
