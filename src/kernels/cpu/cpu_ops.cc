// Ops on the CPU: splits each call over the thread pool and leaves the arithmetic to a KernelTable.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/packed_linear.h"
#include "kernels/dequantise.h"
#include "kernels/host_embedding.h"
#include "kernels/ops.h"
#include "kernels/weight_source.h"

namespace tenon::cpu {
namespace {

// Row-wise work below this many element-steps is faster on one thread than the fork and join.
constexpr int64_t kMinParallelWork = 32768;
// exp makes an element of these kernels cost as much as several of the others.
constexpr int64_t kExpCost = 4;

class CpuOps final : public Ops {
 public:
  CpuOps(ThreadPool* pool, const KernelTable* kernels, Device* device)
      : pool_(pool), kernels_(kernels), device_(device), linear_(pool, kernels) {}

  [[nodiscard]] Device& device() const override { return *device_; }
  [[nodiscard]] std::string_view isa() const override { return kernels_->isa; }

  Result<std::unique_ptr<LinearWeight>> make_linear(std::span<const WeightSource> parts,
                                                    bool exact) override {
    TENON_RETURN_IF_ERROR(check_weight_parts(parts));
    return linear_.make_weight(parts, exact);
  }

  void linear(const LinearWeight& weight, const TensorView& x, const TensorView& y) override {
    check_rows(x);
    check_rows(y);
    TENON_CHECK_EQ(x.rows(), y.rows());
    TENON_CHECK_EQ(x.shape[1], weight.cols());
    TENON_CHECK_EQ(y.shape[1], weight.rows());
    linear_.multiply(weight, {x.as<float>(), x.stride[0], x.rows(), x.shape[1]}, y.as<float>(),
                     y.stride[0]);
  }

  Result<std::unique_ptr<EmbeddingTable>> make_embedding(const WeightSource& source,
                                                         const LinearWeight* tied) override {
    return HostEmbedding::make(source, tied);
  }

  void embedding(const EmbeddingTable& embedding,
                 std::span<const int32_t> ids,
                 const TensorView& out) override {
    const WeightSource& table = static_cast<const HostEmbedding&>(embedding).source;
    check_rows(out);
    TENON_CHECK_EQ(out.rows(), static_cast<int64_t>(ids.size()));
    TENON_CHECK_EQ(out.shape[1], table.cols);
    for_rows(out.rows(), table.cols, [&](int64_t t) {
      const int32_t id = ids[static_cast<size_t>(t)];
      TENON_CHECK(id >= 0 && id < table.rows);
      dequantise(table.dtype, weight_row(table, id), table.cols, out.row<float>(t));
    });
  }

  void rms_norm(const TensorView& x,
                std::span<const float> weight,
                float eps,
                const TensorView& out) override {
    check_same_shape(x, out);
    TENON_CHECK_EQ(x.shape[1], static_cast<int64_t>(weight.size()));
    for_rows(x.rows(), x.shape[1], [&](int64_t t) {
      kernels_->rms_norm(x.row<float>(t), weight, eps, out.row<float>(t));
    });
  }

  void add_rms_norm(const TensorView& residual,
                    const TensorView& x,
                    std::span<const float> weight,
                    float eps,
                    const TensorView& out) override {
    check_same_shape(x, out);
    check_same_shape(x, residual);
    TENON_CHECK_EQ(x.shape[1], static_cast<int64_t>(weight.size()));
    for_rows(x.rows(), x.shape[1], [&](int64_t t) {
      kernels_->add_rms_norm(residual.row<float>(t), x.row<float>(t), weight, eps,
                             out.row<float>(t));
    });
  }

  void rope(const TensorView& x,
            std::span<const int32_t> positions,
            int32_t head_dim,
            const RopeView& table) override {
    check_rows(x);
    TENON_CHECK_EQ(x.rows(), static_cast<int64_t>(positions.size()));
    TENON_CHECK_EQ(x.shape[1] % head_dim, 0);
    TENON_CHECK_LE(table.rotary_dim, head_dim);
    TENON_CHECK_LE(table.rotary_dim, kMaxRotaryDim);
    const int64_t half = table.rotary_dim / 2;
    for_rows(x.rows(), x.shape[1], [&](int64_t t) {
      const int64_t base = positions[static_cast<size_t>(t)] * half;
      TENON_CHECK(base >= 0 && base + half <= static_cast<int64_t>(table.cos.size()));
      kernels_->rope({x.row<float>(t), x.shape[1] / head_dim, head_dim, table.rotary_dim,
                      table.interleaved, table.cos.data() + base, table.sin.data() + base});
    });
  }

  void silu_and_mul(const TensorView& gate_up, const TensorView& out) override {
    check_rows(gate_up);
    check_rows(out);
    TENON_CHECK_EQ(gate_up.rows(), out.rows());
    const int64_t features = out.shape[1];
    TENON_CHECK_EQ(gate_up.shape[1], 2 * features);
    for_rows(out.rows(), features * kExpCost, [&](int64_t t) {
      const float* gate = gate_up.row<float>(t);
      kernels_->silu_and_mul(gate, gate + features,
                             {out.row<float>(t), static_cast<size_t>(features)});
    });
  }

  void gather_rows(const TensorView& x,
                   std::span<const int32_t> rows,
                   const TensorView& out) override {
    check_rows(x);
    check_rows(out);
    TENON_CHECK_EQ(out.rows(), static_cast<int64_t>(rows.size()));
    TENON_CHECK_EQ(x.shape[1], out.shape[1]);
    for (int64_t i = 0; i < out.rows(); ++i) {
      const int32_t row = rows[static_cast<size_t>(i)];
      TENON_CHECK(row >= 0 && row < x.rows());
      std::memcpy(out.row<float>(i), x.row<float>(row),
                  static_cast<size_t>(x.shape[1]) * sizeof(float));
    }
  }

  void log_sum_exp(const TensorView& logits, std::span<float> out) override {
    check_rows(logits);
    TENON_CHECK_EQ(logits.rows(), static_cast<int64_t>(out.size()));
    for_rows(logits.rows(), logits.shape[1] * kExpCost, [&](int64_t t) {
      out[static_cast<size_t>(t)] =
          kernels_->log_sum_exp({logits.row<float>(t), static_cast<size_t>(logits.shape[1])});
    });
  }

 private:
  // f32 rows that are dense inside, any distance apart.
  static void check_rows(const TensorView& view) {
    TENON_CHECK(view.dtype == DType::kF32);
    TENON_CHECK_EQ(view.rank, 2);
    TENON_CHECK(view.shape[1] <= 1 || view.stride[1] == 1);
  }
  static void check_same_shape(const TensorView& a, const TensorView& b) {
    check_rows(a);
    check_rows(b);
    TENON_CHECK_EQ(a.rows(), b.rows());
    TENON_CHECK_EQ(a.shape[1], b.shape[1]);
  }

  template <typename Fn>
  void for_rows(int64_t rows, int64_t work_per_row, const Fn& fn) {
    const int64_t grain =
        std::max<int64_t>(1, kMinParallelWork / 4 / std::max<int64_t>(1, work_per_row));
    const bool parallel = rows * work_per_row >= kMinParallelWork;
    pool_->parallel_for(rows, parallel ? grain : rows, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) fn(t);
    });
  }

  ThreadPool* pool_;
  const KernelTable* kernels_;
  Device* device_;
  PackedLinear linear_;
};

}  // namespace
}  // namespace tenon::cpu

namespace tenon {

Result<std::unique_ptr<Ops>> make_cpu_ops(ThreadPool* pool, std::string_view isa, Device* device) {
  TENON_CHECK(pool != nullptr);
  if (isa != "auto" && isa != "portable" && isa != "avx2" && isa != "avx512") {
    return invalid_argument("unknown instruction set '{}': auto, portable, avx2 or avx512", isa);
  }
  const cpu::KernelTable* kernels = cpu::find_kernels(isa);
  if (kernels == nullptr) {
    std::string has;
    for (const cpu::KernelTable* table : cpu::available_kernels()) {
      has += (has.empty() ? "" : ", ") + std::string(table->isa);
    }
    return unsupported("this CPU does not have what '{}' needs; it can run {}", isa, has);
  }
  return std::unique_ptr<Ops>(
      std::make_unique<cpu::CpuOps>(pool, kernels, device != nullptr ? device : &host_device()));
}

}  // namespace tenon
