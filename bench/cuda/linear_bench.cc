// Times the linear layers of a decode step on a GPU: cuBLASLt's first choice, the best of its first
// eight, and the own kernels, for the shapes of some models and few tokens; cuBLASLt for up to 512
// tokens; then a whole step without attention. Weights rotate through more memory than the L2 cache
// holds.
//
//   linear_bench [table] [batches] [step]
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "bench/cuda/graph_timer.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/linear_choice.h"
#include "kernels/cuda/lt_matmul.h"
#include "kernels/cuda/probe_kernels.h"
#include "kernels/cuda/row_linear.h"
#include "kernels/cuda/skinny_linear.h"
#include "tensor/cuda/cuda_device.h"

namespace tenon::bench {
namespace {

constexpr int64_t kPoolBytes = int64_t{3} << 30;
constexpr int64_t kRotateBytes = int64_t{400} << 20;
constexpr int64_t kLeastWeights = int64_t{4} << 20;  // of batches(): below it launches count
constexpr SkinnyVariant kVariants[] = {{1, 8, 4}, {2, 4, 2}};
constexpr RowLinearVariant kRowVariants[] = {{1, 4, 4}, {2, 2, 4}};

struct NamedShape {
  const char* name;
  int64_t n, k;
  bool wide;
};

constexpr NamedShape kShapes[] = {
    {"8B qkv", 6144, 4096, false},      {"8B o", 4096, 4096, false},
    {"8B gate_up", 28672, 4096, false}, {"8B down", 4096, 14336, false},
    {"8B head", 128256, 4096, true},    {"7B qkv", 12288, 4096, false},
    {"7B gate_up", 22016, 4096, false}, {"7B down", 4096, 11008, false},
    {"135M qkv", 960, 576, false},      {"135M gate_up", 3072, 576, false},
    {"135M down", 576, 1536, false},    {"135M head", 49152, 576, true},
};

class Bench {
 public:
  explicit Bench(CudaDevice* device) : device_(device), timer_(device) {
    auto lt = LtMatmul::create(device);
    TENON_CHECK(lt.ok());
    lt_ = std::move(lt).value();
    pool_ = take(kPoolBytes);
    x_ = take(int64_t{64} << 20);
    y_ = take(int64_t{256} << 20);
    fill(pool_, 1, 0.02F);
    fill(x_, 2, 1.0F);
  }

  // Ends the program without memory.
  Buffer take(int64_t bytes) {
    auto buffer = device_->allocate(static_cast<size_t>(bytes));
    TENON_CHECK(buffer.ok());
    return std::move(buffer).value();
  }

  void fill(const Buffer& buffer, uint64_t seed, float limit) {
    launch_random_fill(
        {buffer.data(), DType::kBF16, static_cast<int64_t>(buffer.size() / 2), seed, limit},
        device_->stream());
  }

  void ceiling() {
    const double us = timer_.microseconds(4, [&](int) {
      launch_read(pool_.data(), pool_.size() / kReadChunk, y_.as<unsigned>(),
                  4 * device_->num_sms(), device_->stream());
    });
    read_rate_ = static_cast<double>(pool_.size()) / us * 1e-6;  // TB/s
    std::printf("read ceiling %.3f TB/s\n", read_rate_);
  }

  void table() {
    std::printf("us a call, and %% of the time of reading W at the ceiling\n");
    std::printf("%-13s %3s %8s | %8s %8s", "shape", "T", "ceiling", "Lt first", "Lt best8");
    for (const SkinnyVariant& v : kVariants) {
      std::printf(" | %d,%d,%d     ", v.row_tiles, v.warps, v.depth);
    }
    for (const RowLinearVariant& v : kRowVariants) {
      std::printf(" | rows %d,%d,%d", v.pairs, v.depth, v.warps);
    }
    std::printf("\n");
    for (const NamedShape& shape : kShapes) {
      for (const int64_t tokens : {1, 2, 4, 8, 16, 32}) row(shape, tokens);
    }
  }

  // cuBLASLt alone, for the batches where its products stop being bound by the memory.
  void batches() {
    std::printf("us a call\n%-13s %4s | %8s | %8s | %8s %9s\n", "shape", "T", "Lt first", "of 8",
                "of 64", "TFLOP/s");
    for (const NamedShape& shape : kShapes) {
      if (shape.n * shape.k < kLeastWeights) continue;
      for (const int64_t tokens : {64, 128, 256, 512}) {
        double best[3] = {};
        const int counts[3] = {1, 8, 64};
        for (int i = 0; i < 3; ++i) best[i] = best_of(shape, tokens, counts[i]);
        const double flops = 2.0 * static_cast<double>(shape.n * shape.k * tokens);
        std::printf("%-13s %4ld | %8.2f | %8.2f | %8.2f %9.0f\n", shape.name,
                    static_cast<long>(tokens), best[0], best[1], best[2], flops / best[2] * 1e-6);
      }
    }
  }

  // One decode step of the 8B shape, attention left out.
  void step() {
    constexpr int kLayers = 32;
    constexpr int64_t kHidden = 4096;
    constexpr int64_t kInner = 14336;
    constexpr int64_t kQkv = 6144;
    constexpr int64_t kVocab = 128256;
    const int64_t per_layer = 2 * (kQkv * kHidden + kHidden * kHidden + 3 * kInner * kHidden);
    const int64_t total = per_layer * kLayers + 2 * kVocab * kHidden;
    pool_ = Buffer();
    pool_ = take(total);
    fill(pool_, 3, 0.01F);
    Buffer residual = take(32 * kHidden * 4);
    Buffer hidden = take(32 * kHidden * 2);
    Buffer qkv = take(32 * kQkv * 2);
    Buffer gate_up = take(32 * 2 * kInner * 2);
    Buffer inner = take(32 * kInner * 2);
    Buffer norm = take(kHidden * 4);
    Buffer table = take(64 * 4 * 16);
    fill(hidden, 4, 1.0F);
    for (const int64_t tokens : {1, 2, 4, 8, 16, 32}) {
      const int modes =
          tokens <= kMaxRowLinearTokens ? 2 + static_cast<int>(std::size(kRowVariants)) : 2;
      for (int mode = 0; mode < modes; ++mode) {
        const auto linear = [&](int64_t offset, int64_t n, int64_t k, void* x, void* y, bool wide) {
          SkinnyLinearArgs args{pool_.data() + offset, x, y, n, k, k, n, tokens};
          args.out_dtype = wide ? DType::kF32 : DType::kBF16;
          if (mode > 1) {
            launch_row_linear(args, kRowVariants[mode - 2], device_->stream());
            return;
          }
          switch (mode == 0 ? LinearKernel::kCublasLt : choose_linear_kernel(args)) {
            case LinearKernel::kCublasLt: run_lt(args); break;
            case LinearKernel::kSkinny: launch_skinny_linear(args, device_->stream()); break;
            case LinearKernel::kRows: launch_row_linear(args, device_->stream()); break;
          }
        };
        const auto add_norm = [&](const Buffer& x) {
          RmsNormArgs args;
          args.residual = {residual.data(), DType::kF32, kHidden};
          args.x = {x.data(), DType::kBF16, kHidden};
          args.out = {hidden.data(), DType::kBF16, kHidden};
          args.weight = norm.as<float>();
          args.eps = 1e-5F;
          args.rows = tokens;
          args.cols = kHidden;
          launch_rms_norm(args, device_->stream());
        };
        const double us = timer_.microseconds(1, [&](int) {
          int64_t at = 0;
          for (int layer = 0; layer < kLayers; ++layer) {
            linear(at, kQkv, kHidden, hidden.data(), qkv.data(), false);
            at += 2 * kQkv * kHidden;
            RopeArgs rope;
            rope.x = {qkv.data(), DType::kBF16, kQkv};
            rope.positions = table.as<int32_t>();
            rope.cos = rope.sin = table.as<float>();
            rope.rows = tokens;
            rope.heads = 40;
            rope.head_dim = rope.rotary_dim = 128;
            launch_rope(rope, device_->stream());
            linear(at, kHidden, kHidden, qkv.data(), hidden.data(), false);
            at += 2 * kHidden * kHidden;
            add_norm(hidden);
            linear(at, 2 * kInner, kHidden, hidden.data(), gate_up.data(), false);
            at += 4 * kInner * kHidden;
            launch_silu_and_mul({{gate_up.data(), DType::kBF16, 2 * kInner},
                                 {inner.data(), DType::kBF16, kInner},
                                 tokens,
                                 kInner},
                                device_->stream());
            linear(at, kHidden, kInner, inner.data(), hidden.data(), false);
            at += 2 * kInner * kHidden;
            add_norm(hidden);
          }
          linear(at, kVocab, kHidden, hidden.data(), y_.data(), true);
        });
        std::string name = mode == 0 ? "cuBLASLt" : "chosen";
        if (mode > 1) {
          const RowLinearVariant& v = kRowVariants[mode - 2];
          name = fmt::format("rows {},{},{}", v.pairs, v.depth, v.warps);
        }
        std::printf(
            "step of the 8B shape without attention, T=%-2ld %-10s %.3f ms, %.1f %% of the "
            "ceiling (%.3f ms)\n",
            static_cast<long>(tokens), name.c_str(), us * 1e-3,
            100.0 * static_cast<double>(total) / read_rate_ * 1e-6 / us,
            static_cast<double>(total) / read_rate_ * 1e-9);
      }
    }
  }

 private:
  void run_lt(const SkinnyLinearArgs& args) {
    const LtShape shape{args.n, args.k, args.dtype, args.out_dtype};
    (void)lt_->prepare(shape, {&args.weight, 1}, 32);
    lt_->run(shape, args.weight,
             TensorView::dense(const_cast<void*>(args.x), args.dtype, {args.tokens, args.k}),
             TensorView::dense(args.y, args.out_dtype, {args.tokens, args.n}));
  }

  // Microseconds of the fastest of cuBLASLt's first `count` guesses.
  double best_of(const NamedShape& shape, int64_t tokens, int count) {
    const int64_t bytes = shape.n * shape.k * 2;
    const int64_t slots = kPoolBytes / bytes;
    const int calls = static_cast<int>(std::clamp(kRotateBytes / bytes, int64_t{4}, int64_t{200}));
    const LtShape lt_shape{shape.n, shape.k, DType::kBF16, shape.wide ? DType::kF32 : DType::kBF16};
    const TensorView x = TensorView::dense(x_.data(), DType::kBF16, {tokens, shape.k});
    const TensorView y = TensorView::dense(y_.data(), lt_shape.out_dtype, {tokens, shape.n});
    double best = 1e9;
    for (const auto& candidate : lt_->candidates(lt_shape, tokens, count)) {
      best = std::min(best, timer_.microseconds(calls, [&](int i) {
        lt_->run_with(lt_shape, candidate.algo, pool_.data() + (i % slots) * bytes, x, y);
      }));
    }
    return best;
  }

  void row(const NamedShape& shape, int64_t tokens) {
    const int64_t bytes = shape.n * shape.k * 2;
    const int64_t slots = kPoolBytes / bytes;
    const int count = static_cast<int>(std::clamp(kRotateBytes / bytes, int64_t{4}, int64_t{200}));
    const DType out = shape.wide ? DType::kF32 : DType::kBF16;
    const auto weight = [&](int i) { return pool_.data() + (i % slots) * bytes; };
    const TensorView x = TensorView::dense(x_.data(), DType::kBF16, {tokens, shape.k});
    const TensorView y = TensorView::dense(y_.data(), out, {tokens, shape.n});
    const double first = best_of(shape, tokens, 1);
    const double best = best_of(shape, tokens, 8);
    const double ideal = static_cast<double>(bytes) / read_rate_ * 1e-6;
    std::printf("%-13s %3ld %8.2f | %8.2f %8.2f", shape.name, static_cast<long>(tokens), ideal,
                first, best);
    for (const SkinnyVariant& variant : kVariants) {
      const double us = timer_.microseconds(count, [&](int i) {
        SkinnyLinearArgs args{weight(i), x.data,  y.data,  shape.n,
                              shape.k,   shape.k, shape.n, tokens};
        args.out_dtype = out;
        launch_skinny_linear(args, variant, device_->stream());
      });
      std::printf(" | %6.2f %3.0f%%", us, 100 * ideal / us);
    }
    SkinnyLinearArgs args{weight(0), x.data, y.data, shape.n, shape.k, shape.k, shape.n, tokens};
    args.out_dtype = out;
    if (can_run_row_linear(args)) {
      for (const RowLinearVariant& variant : kRowVariants) {
        const double us = timer_.microseconds(count, [&](int i) {
          args.weight = weight(i);
          launch_row_linear(args, variant, device_->stream());
        });
        std::printf(" | %6.2f %3.0f%%", us, 100 * ideal / us);
      }
    }
    std::printf("\n");
  }

  CudaDevice* device_;
  std::unique_ptr<LtMatmul> lt_;
  Buffer pool_, x_, y_;
  GraphTimer timer_;
  double read_rate_ = 1;
};

}  // namespace
}  // namespace tenon::bench

int main(int argc, char** argv) {
  auto device = tenon::CudaDevice::create();
  if (!device.ok()) {
    std::fprintf(stderr, "%s\n", device.status().message().c_str());
    return 1;
  }
  const auto wants = [&](const char* what) {
    for (int i = 1; i < argc; ++i) {
      if (std::strcmp(argv[i], what) == 0) return true;
    }
    return argc == 1;
  };
  tenon::bench::Bench bench(device->get());
  bench.ceiling();
  if (wants("table")) bench.table();
  if (wants("batches")) bench.batches();
  if (wants("step")) bench.step();
  const tenon::Status status = (*device)->status();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
