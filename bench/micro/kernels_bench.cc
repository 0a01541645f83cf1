// Kernels at the shapes of SmolLM2-135M (hidden 576, feed-forward 1536, q 576, k and v 192,
// vocabulary 49152).
//
// kernels_bench [--threads=N] [--isa=NAME] [google benchmark flags]. Prints this run's ceilings
// before and after, and the tokens a second that the linear layers alone would allow.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/probe.h"
#include "kernels/ops.h"

namespace tenon {
namespace {

constexpr int kLayers = 30;
constexpr int64_t kHidden = 576, kFeedForward = 1536, kQkv = 576 + 2 * 192, kVocabulary = 49152;

std::unique_ptr<ThreadPool> g_pool;
std::unique_ptr<Ops> g_ops;

struct Weight {
  std::vector<uint8_t> stored;
  std::unique_ptr<LinearWeight> packed;
};

Weight make_weight(DType dtype, int64_t rows, int64_t cols) {
  Weight weight;
  std::mt19937_64 random(1);
  weight.stored.resize(static_cast<size_t>(dtype_bytes(dtype, cols) * rows));
  // 0x2?: halves of about 0.01 wherever a scale happens to be; small floats too.
  for (uint8_t& byte : weight.stored) byte = static_cast<uint8_t>(0x20 | (random() & 0x0F));
  const WeightSource source{"bench", dtype, weight.stored.data(), rows, cols, nullptr};
  weight.packed = std::move(g_ops->make_linear({&source, 1}, false)).value();
  return weight;
}

struct Activations {
  Activations(int64_t tokens, int64_t cols) : values(static_cast<size_t>(tokens * cols), 0.5F) {
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    for (float& value : values) value = normal(random);
    view = TensorView::dense(values.data(), DType::kF32, {tokens, cols});
  }
  std::vector<float> values;
  TensorView view;
};

void bench_linear(benchmark::State& state, DType dtype, int64_t rows, int64_t cols) {
  // Copies until the weights of a round exceed the caches, as those of a whole model do.
  const int64_t bytes = dtype_bytes(dtype, cols) * rows;
  const int64_t copies = std::max<int64_t>(1, (int64_t{80} << 20) / bytes);
  std::vector<Weight> weights;
  for (int64_t i = 0; i < copies; ++i) weights.push_back(make_weight(dtype, rows, cols));
  const int64_t tokens = state.range(0);
  Activations x(tokens, cols);
  Activations y(tokens, rows);
  size_t next = 0;
  for (auto _ : state) {
    g_ops->linear(*weights[next].packed, x.view, y.view);
    next = (next + 1) % weights.size();
  }
  const auto iterations = static_cast<double>(state.iterations());
  state.counters["GB/s"] =
      benchmark::Counter(iterations * static_cast<double>(weights[0].packed->bytes()) / 1e9,
                         benchmark::Counter::kIsRate);
  state.counters["GOP/s"] = benchmark::Counter(
      iterations * 2e-9 * static_cast<double>(tokens * rows * cols), benchmark::Counter::kIsRate);
}

// All linear layers of one step: what decode and prefill cannot exceed.
void bench_model(benchmark::State& state, DType layer_type, DType head_type) {
  std::vector<Weight> layers;
  int64_t bytes = 0;
  for (int i = 0; i < kLayers; ++i) {
    layers.push_back(make_weight(layer_type, kQkv, kHidden));
    layers.push_back(make_weight(layer_type, kHidden, kHidden));
    layers.push_back(make_weight(layer_type, 2 * kFeedForward, kHidden));
    layers.push_back(make_weight(layer_type, kHidden, kFeedForward));
  }
  const Weight head = make_weight(head_type, kVocabulary, kHidden);
  for (const Weight& weight : layers) bytes += weight.packed->bytes();
  bytes += head.packed->bytes();
  const int64_t tokens = state.range(0);
  const int64_t head_tokens = state.range(1);
  std::map<int64_t, std::unique_ptr<Activations>> buffers;
  for (const int64_t cols : {kQkv, kHidden, 2 * kFeedForward, kFeedForward}) {
    buffers[cols] = std::make_unique<Activations>(tokens, cols);
  }
  Activations last(head_tokens, kHidden);
  Activations logits(head_tokens, kVocabulary);
  for (auto _ : state) {
    for (const Weight& weight : layers) {
      g_ops->linear(*weight.packed, buffers[weight.packed->cols()]->view,
                    buffers[weight.packed->rows()]->view);
    }
    g_ops->linear(*head.packed, last.view, logits.view);
  }
  const auto iterations = static_cast<double>(state.iterations());
  state.counters["tok/s"] =
      benchmark::Counter(iterations * static_cast<double>(tokens), benchmark::Counter::kIsRate);
  state.counters["GB/s"] = benchmark::Counter(iterations * static_cast<double>(bytes) / 1e9,
                                              benchmark::Counter::kIsRate);
}

void bench_repack(benchmark::State& state, DType dtype) {
  const int64_t rows = 30 * 2 * kFeedForward;
  const int64_t cols = 768;  // whole super-blocks of the K formats
  std::vector<uint8_t> stored(static_cast<size_t>(dtype_bytes(dtype, cols) * rows), 0x21);
  const WeightSource source{"bench", dtype, stored.data(), rows, cols, nullptr};
  for (auto _ : state) benchmark::DoNotOptimize(g_ops->make_linear({&source, 1}, false));
  state.counters["GB/s"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * static_cast<double>(stored.size()) / 1e9,
      benchmark::Counter::kIsRate);
}

void bench_add_rms_norm(benchmark::State& state) {
  Activations residual(state.range(0), kHidden);
  Activations x(state.range(0), kHidden);
  Activations out(state.range(0), kHidden);
  const std::vector<float> weight(kHidden, 1.0F);
  std::fill(x.values.begin(), x.values.end(), 0.0F);
  for (auto _ : state) g_ops->add_rms_norm(residual.view, x.view, weight, 1e-5F, out.view);
}

void bench_silu(benchmark::State& state) {
  Activations gate_up(state.range(0), 2 * kFeedForward);
  Activations out(state.range(0), kFeedForward);
  for (auto _ : state) g_ops->silu_and_mul(gate_up.view, out.view);
}

void bench_rope(benchmark::State& state) {
  Activations x(state.range(0), 768);
  const RopeTable table{64, state.range(1) != 0, std::vector<float>(32 * 32, 1.0F),
                        std::vector<float>(32 * 32, 0.0F)};
  const std::vector<int32_t> positions(static_cast<size_t>(state.range(0)), 5);
  for (auto _ : state) g_ops->rope(x.view, positions, 64, table);
}

void bench_log_sum_exp(benchmark::State& state) {
  Activations logits(state.range(0), kVocabulary);
  std::vector<float> out(static_cast<size_t>(state.range(0)));
  for (auto _ : state) g_ops->log_sum_exp(logits.view, out);
}

void bench_fork_join(benchmark::State& state) {
  for (auto _ : state) g_pool->run([](int thread) { benchmark::DoNotOptimize(thread); });
}

void print_ceilings(const char* when) {
  std::printf("%s: %d threads, read %.1f GB/s, f32 %.0f GFLOP/s, 4-bit dot %.0f GOP/s\n", when,
              g_pool->num_threads(), cpu::read_bandwidth(*g_pool) / 1e9,
              cpu::fma_rate(*g_pool) / 1e9, cpu::dot_rate(*g_pool) / 1e9);
}

void register_all() {
  const std::vector<std::pair<int64_t, int64_t>> shapes = {
      {kQkv, kHidden}, {kHidden, kHidden}, {2 * kFeedForward, kHidden}, {kHidden, kFeedForward}};
  const auto name = [](const char* what, DType dtype) {
    return std::string(what) + "/" + std::string(dtype_traits(dtype).name);
  };
  for (const auto& [rows, cols] : shapes) {
    auto* bench = benchmark::RegisterBenchmark(
        (name("linear", DType::kQ4_1) + "/" + std::to_string(rows) + "x" + std::to_string(cols))
            .c_str(),
        bench_linear, DType::kQ4_1, rows, cols);
    for (const int64_t tokens : {1, 4, 16, 64, 512}) bench->Arg(tokens);
  }
  for (const DType dtype : {DType::kQ8_0, DType::kQ4_0, DType::kQ5_0, DType::kQ5_1, DType::kQ4_K,
                            DType::kQ5_K, DType::kQ6_K, DType::kF16, DType::kBF16, DType::kF32}) {
    auto* bench = benchmark::RegisterBenchmark((name("linear", dtype) + "/3072x768").c_str(),
                                               bench_linear, dtype, int64_t{3072}, int64_t{768});
    for (const int64_t tokens : {1, 16, 512}) bench->Arg(tokens);
  }
  for (const auto& [layer, head] :
       {std::pair(DType::kQ4_1, DType::kQ8_0), std::pair(DType::kF16, DType::kF16)}) {
    benchmark::RegisterBenchmark(name("model", layer).c_str(), bench_model, layer, head)
        ->Args({1, 1})
        ->Args({16, 16})
        ->Args({512, 1})
        ->Unit(benchmark::kMillisecond);
  }
  for (const DType dtype : {DType::kQ4_1, DType::kQ8_0, DType::kQ6_K, DType::kF32}) {
    benchmark::RegisterBenchmark(name("repack", dtype).c_str(), bench_repack, dtype)
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::RegisterBenchmark("fork_join", bench_fork_join);
  for (const int64_t tokens : {1, 16, 512}) {
    benchmark::RegisterBenchmark("add_rms_norm", bench_add_rms_norm)->Arg(tokens);
    benchmark::RegisterBenchmark("silu_and_mul", bench_silu)->Arg(tokens);
    benchmark::RegisterBenchmark("rope", bench_rope)->Args({tokens, 0})->Args({tokens, 1});
  }
  benchmark::RegisterBenchmark("log_sum_exp", bench_log_sum_exp)->Arg(1)->Arg(16);
}

int run(int argc, char** argv) {
  int threads = default_num_threads();
  std::string isa = "auto";
  std::vector<char*> rest;
  for (int i = 0; i < argc; ++i) {
    if (std::strncmp(argv[i], "--threads=", 10) == 0) {
      threads = std::atoi(argv[i] + 10);
    } else if (std::strncmp(argv[i], "--isa=", 6) == 0) {
      isa = argv[i] + 6;
    } else {
      rest.push_back(argv[i]);
    }
  }
  g_pool = std::make_unique<ThreadPool>(threads);
  auto ops = make_cpu_ops(g_pool.get(), isa);
  if (!ops.ok()) {
    std::fprintf(stderr, "%s\n", ops.status().message().c_str());
    return 1;
  }
  g_ops = std::move(ops).value();
  register_all();
  int count = static_cast<int>(rest.size());
  benchmark::Initialize(&count, rest.data());
  if (benchmark::ReportUnrecognizedArguments(count, rest.data())) return 1;
  std::printf("instruction set %s\n", std::string(g_ops->isa()).c_str());
  print_ceilings("before");
  benchmark::RunSpecifiedBenchmarks();
  print_ceilings("after");
  g_ops.reset();
  g_pool.reset();
  return 0;
}

}  // namespace
}  // namespace tenon

int main(int argc, char** argv) {
  return tenon::run(argc, argv);
}
