// The oracle other Ops are tested against: one loop an operation, double accumulation, no threads.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "kernels/dequantise.h"
#include "kernels/host_embedding.h"
#include "kernels/ops.h"
#include "kernels/weight_source.h"

namespace tenon {
namespace {

class ReferenceWeight final : public LinearWeight {
 public:
  explicit ReferenceWeight(std::span<const WeightSource> parts) {
    cols_ = parts[0].cols;
    for (const WeightSource& part : parts) rows_ += part.rows;
    values.resize(static_cast<size_t>(rows_ * cols_));
    float* out = values.data();
    for (const WeightSource& part : parts) {
      for (int64_t row = 0; row < part.rows; ++row, out += cols_) {
        dequantise(part.dtype, weight_row(part, row), cols_, out);
      }
    }
    bytes_ = rows_ * cols_ * static_cast<int64_t>(sizeof(float));
    format_ = "f32";
  }
  std::vector<float> values;
};

class ReferenceOps final : public Ops {
 public:
  [[nodiscard]] Device& device() const override { return host_device(); }
  [[nodiscard]] std::string_view isa() const override { return "reference"; }

  Result<std::unique_ptr<LinearWeight>> make_linear(std::span<const WeightSource> parts,
                                                    bool /*exact*/) override {
    TENON_RETURN_IF_ERROR(check_weight_parts(parts));
    return std::unique_ptr<LinearWeight>(std::make_unique<ReferenceWeight>(parts));
  }

  void linear(const LinearWeight& weight, const TensorView& x, const TensorView& y) override {
    const auto& values = static_cast<const ReferenceWeight&>(weight).values;
    const int64_t k = weight.cols();
    TENON_CHECK_EQ(x.shape[1], k);
    TENON_CHECK_EQ(y.shape[1], weight.rows());
    for (int64_t t = 0; t < x.rows(); ++t) {
      for (int64_t n = 0; n < weight.rows(); ++n) {
        const float* w = values.data() + n * k;
        double sum = 0.0;
        for (int64_t i = 0; i < k; ++i) sum += static_cast<double>(x.row<float>(t)[i]) * w[i];
        y.row<float>(t)[n] = static_cast<float>(sum);
      }
    }
  }

  Result<std::unique_ptr<EmbeddingTable>> make_embedding(const WeightSource& source,
                                                         const LinearWeight* tied) override {
    return HostEmbedding::make(source, tied);
  }

  void embedding(const EmbeddingTable& embedding,
                 std::span<const int32_t> ids,
                 const TensorView& out) override {
    const WeightSource& table = static_cast<const HostEmbedding&>(embedding).source;
    for (size_t t = 0; t < ids.size(); ++t) {
      TENON_CHECK(ids[t] >= 0 && ids[t] < table.rows);
      dequantise(table.dtype, weight_row(table, ids[t]), table.cols,
                 out.row<float>(static_cast<int64_t>(t)));
    }
  }

  void rms_norm(const TensorView& x,
                std::span<const float> weight,
                float eps,
                const TensorView& out) override {
    const int64_t cols = x.shape[1];
    for (int64_t t = 0; t < x.rows(); ++t) {
      const float* in = x.row<float>(t);
      double squares = 0.0;
      for (int64_t i = 0; i < cols; ++i) squares += static_cast<double>(in[i]) * in[i];
      const double scale = 1.0 / std::sqrt(squares / static_cast<double>(cols) + eps);
      float* dst = out.row<float>(t);
      for (int64_t i = 0; i < cols; ++i) {
        dst[i] = static_cast<float>(in[i] * scale * weight[static_cast<size_t>(i)]);
      }
    }
  }

  void add_rms_norm(const TensorView& residual,
                    const TensorView& x,
                    std::span<const float> weight,
                    float eps,
                    const TensorView& out) override {
    for (int64_t t = 0; t < x.rows(); ++t) {
      for (int64_t i = 0; i < x.shape[1]; ++i) residual.row<float>(t)[i] += x.row<float>(t)[i];
    }
    rms_norm(residual, weight, eps, out);
  }

  void rope(const TensorView& x,
            std::span<const int32_t> positions,
            int32_t head_dim,
            const RopeView& table) override {
    const int64_t half = table.rotary_dim / 2;
    for (int64_t t = 0; t < x.rows(); ++t) {
      const int64_t base = positions[static_cast<size_t>(t)] * half;
      for (float* head = x.row<float>(t); head < x.row<float>(t) + x.shape[1]; head += head_dim) {
        for (int64_t i = 0; i < half; ++i) {
          float& a = head[table.interleaved ? 2 * i : i];
          float& b = head[table.interleaved ? 2 * i + 1 : i + half];
          const double cos = table.cos[static_cast<size_t>(base + i)];
          const double sin = table.sin[static_cast<size_t>(base + i)];
          const double rotated_a = a * cos - b * sin;
          const double rotated_b = b * cos + a * sin;
          a = static_cast<float>(rotated_a);
          b = static_cast<float>(rotated_b);
        }
      }
    }
  }

  void silu_and_mul(const TensorView& gate_up, const TensorView& out) override {
    const int64_t features = out.shape[1];
    for (int64_t t = 0; t < out.rows(); ++t) {
      const float* gate = gate_up.row<float>(t);
      for (int64_t i = 0; i < features; ++i) {
        const double g = gate[i];
        out.row<float>(t)[i] = static_cast<float>(g / (1.0 + std::exp(-g)) * gate[features + i]);
      }
    }
  }

  void gather_rows(const TensorView& x,
                   std::span<const int32_t> rows,
                   const TensorView& out) override {
    for (size_t i = 0; i < rows.size(); ++i) {
      std::memcpy(out.row<float>(static_cast<int64_t>(i)), x.row<float>(rows[i]),
                  static_cast<size_t>(x.shape[1]) * sizeof(float));
    }
  }

  void log_sum_exp(const TensorView& logits, std::span<float> out) override {
    for (int64_t t = 0; t < logits.rows(); ++t) {
      const float* row = logits.row<float>(t);
      const double max = *std::max_element(row, row + logits.shape[1]);
      double sum = 0.0;
      for (int64_t i = 0; i < logits.shape[1]; ++i) sum += std::exp(row[i] - max);
      // A row of -inf (or one that holds +inf) has no finite maximum to subtract.
      out[static_cast<size_t>(t)] = static_cast<float>(std::isinf(max) ? max : max + std::log(sum));
    }
  }
};

}  // namespace

std::unique_ptr<Ops> make_reference_ops() {
  return std::make_unique<ReferenceOps>();
}

}  // namespace tenon
