#include "kernels/cuda/cuda_ops.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/linear_choice.h"
#include "kernels/cuda/lt_matmul.h"
#include "kernels/cuda/row_linear.h"
#include "kernels/cuda/skinny_linear.h"
#include "kernels/cuda/weight_upload.h"
#include "kernels/weight_source.h"

namespace tenon {
namespace {

constexpr int64_t kVector = 8;  // elements of a 16-byte access

bool is_half(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16;
}

class CudaWeight final : public LinearWeight {
 public:
  CudaWeight(int64_t rows, int64_t cols, DType dtype, Buffer memory) : memory_(std::move(memory)) {
    rows_ = rows;
    cols_ = cols;
    bytes_ = static_cast<int64_t>(memory_.size());
    format_ = dtype == DType::kBF16 ? "bf16" : "f16";
  }
  [[nodiscard]] const std::byte* data() const { return memory_.data(); }

 private:
  Buffer memory_;
};

class CudaEmbedding final : public EmbeddingTable {
 public:
  // Shares the memory of `tied`.
  explicit CudaEmbedding(const CudaWeight& tied) : data_(tied.data()) {
    rows_ = tied.rows();
    cols_ = tied.cols();
  }
  CudaEmbedding(int64_t rows, int64_t cols, Buffer memory)
      : memory_(std::move(memory)), data_(memory_.data()) {
    rows_ = rows;
    cols_ = cols;
    bytes_ = static_cast<int64_t>(memory_.size());
  }
  [[nodiscard]] const std::byte* data() const { return data_; }

 private:
  Buffer memory_;
  const std::byte* data_;
};

// Kernels read and write whole 16-byte vectors.
void check_vectors(const TensorView& view) {
  TENON_CHECK_EQ(view.rank, 2);
  TENON_CHECK_EQ(view.stride[1], 1);
  TENON_CHECK_EQ(view.shape[1] % kVector, 0);
  TENON_CHECK_EQ(view.stride[0] % kVector, 0);
  TENON_CHECK_EQ(reinterpret_cast<uintptr_t>(view.data) % 16, 0U);
}

DeviceRows rows_of(const TensorView& view) {
  return {view.data, view.dtype, view.stride[0]};
}

class CudaOps final : public Ops {
 public:
  CudaOps(CudaDevice* device, ThreadPool* pool, DType dtype, std::unique_ptr<LtMatmul> lt)
      : device_(device), dtype_(dtype), lt_(std::move(lt)), upload_(device, pool) {}

  [[nodiscard]] Device& device() const override { return *device_; }
  [[nodiscard]] std::string_view isa() const override { return "sm_90a"; }
  [[nodiscard]] DType activation_dtype() const override { return dtype_; }
  [[nodiscard]] bool makes_random_weights() const override { return true; }

  Status prepare(std::span<const LinearUse> uses) override {
    TENON_RETURN_IF_ERROR(upload_.release());
    for (const LinearUse& use : uses) {
      const LtShape shape = shape_of(*use.weight, use.out_dtype);
      std::vector<const void*> alike;  // other layers' weights, so that none stays in the cache
      int32_t max_tokens = 0;
      for (const LinearUse& other : uses) {
        if (!(shape_of(*other.weight, other.out_dtype) == shape)) continue;
        alike.push_back(data_of(*other.weight));
        max_tokens = std::max(max_tokens, other.max_tokens);
      }
      TENON_RETURN_IF_ERROR(lt_->prepare(shape, alike, max_tokens));
    }
    return ok_status();
  }

  Result<std::unique_ptr<LinearWeight>> make_linear(std::span<const WeightSource> parts,
                                                    bool exact) override {
    if (exact) return unsupported("exact (f32) weights are for the CPU; this is a GPU");
    int64_t rows = 0;
    TENON_ASSIGN_OR_RETURN(Buffer memory, load(parts, &rows));
    return std::unique_ptr<LinearWeight>(
        std::make_unique<CudaWeight>(rows, parts[0].cols, dtype_, std::move(memory)));
  }

  void linear(const LinearWeight& weight, const TensorView& x, const TensorView& y) override {
    TENON_CHECK_EQ(x.shape[1], weight.cols());
    TENON_CHECK_EQ(y.shape[1], weight.rows());
    TENON_CHECK_EQ(x.rows(), y.rows());
    TENON_CHECK(x.dtype == dtype_);
    TENON_CHECK(y.dtype == dtype_ || y.dtype == DType::kF32);
    check_vectors(x);
    if (x.rows() == 0) return;
    SkinnyLinearArgs skinny;
    skinny.weight = data_of(weight);
    skinny.x = x.data;
    skinny.y = y.data;
    skinny.n = weight.rows();
    skinny.k = weight.cols();
    skinny.x_stride = x.stride[0];
    skinny.y_stride = y.stride[0];
    skinny.tokens = x.rows();
    skinny.dtype = dtype_;
    skinny.out_dtype = y.dtype;
    switch (choose_linear_kernel(skinny)) {
      case LinearKernel::kSkinny: launch_skinny_linear(skinny, device_->stream()); break;
      case LinearKernel::kRows: launch_row_linear(skinny, device_->stream()); break;
      case LinearKernel::kCublasLt:
        lt_->run(shape_of(weight, y.dtype), data_of(weight), x, y);
        break;
    }
    launched("a linear layer");
  }

  Result<std::unique_ptr<EmbeddingTable>> make_embedding(const WeightSource& source,
                                                         const LinearWeight* tied) override {
    if (tied != nullptr) {
      TENON_CHECK_EQ(tied->rows(), source.rows);
      TENON_CHECK_EQ(tied->cols(), source.cols);
      return std::unique_ptr<EmbeddingTable>(
          std::make_unique<CudaEmbedding>(static_cast<const CudaWeight&>(*tied)));
    }
    int64_t rows = 0;
    TENON_ASSIGN_OR_RETURN(Buffer memory, load({&source, 1}, &rows));
    return std::unique_ptr<EmbeddingTable>(
        std::make_unique<CudaEmbedding>(rows, source.cols, std::move(memory)));
  }

  void embedding(const EmbeddingTable& table,
                 std::span<const int32_t> ids,
                 const TensorView& out) override {
    TENON_CHECK_EQ(out.rows(), static_cast<int64_t>(ids.size()));
    TENON_CHECK_EQ(out.shape[1], table.cols());
    check_vectors(out);
    GatherArgs args;
    // The kernel only reads it.
    args.x = {const_cast<std::byte*>(static_cast<const CudaEmbedding&>(table).data()), dtype_,
              table.cols()};
    args.out = rows_of(out);
    args.ids = ids.data();
    args.rows = out.rows();
    args.cols = table.cols();
    launch_gather_rows(args, device_->stream());
    launched("embedding");
  }

  void rms_norm(const TensorView& x,
                std::span<const float> weight,
                float eps,
                const TensorView& out) override {
    normalise(x, nullptr, weight, eps, out);
  }

  void add_rms_norm(const TensorView& residual,
                    const TensorView& x,
                    std::span<const float> weight,
                    float eps,
                    const TensorView& out) override {
    normalise(residual, &x, weight, eps, out);
  }

  void rope(const TensorView& x,
            std::span<const int32_t> positions,
            int32_t head_dim,
            const RopeView& table) override {
    TENON_CHECK_EQ(x.rows(), static_cast<int64_t>(positions.size()));
    TENON_CHECK_EQ(x.shape[1] % head_dim, 0);
    TENON_CHECK_EQ(x.stride[1], 1);
    TENON_CHECK_LE(table.rotary_dim, head_dim);
    TENON_CHECK(is_half(x.dtype));
    RopeArgs args;
    args.x = rows_of(x);
    args.positions = positions.data();
    args.cos = table.cos.data();
    args.sin = table.sin.data();
    args.rows = x.rows();
    args.heads = static_cast<int32_t>(x.shape[1] / head_dim);
    args.head_dim = head_dim;
    args.rotary_dim = table.rotary_dim;
    args.interleaved = table.interleaved;
    launch_rope(args, device_->stream());
    launched("rope");
  }

  void silu_and_mul(const TensorView& gate_up, const TensorView& out) override {
    TENON_CHECK_EQ(gate_up.rows(), out.rows());
    TENON_CHECK_EQ(gate_up.shape[1], 2 * out.shape[1]);
    TENON_CHECK(gate_up.dtype == dtype_ && out.dtype == dtype_);
    check_vectors(gate_up);
    check_vectors(out);
    launch_silu_and_mul({rows_of(gate_up), rows_of(out), out.rows(), out.shape[1]},
                        device_->stream());
    launched("silu_and_mul");
  }

  void gather_rows(const TensorView& x,
                   std::span<const int32_t> rows,
                   const TensorView& out) override {
    TENON_CHECK_EQ(out.rows(), static_cast<int64_t>(rows.size()));
    TENON_CHECK_EQ(x.shape[1], out.shape[1]);
    check_vectors(x);
    check_vectors(out);
    launch_gather_rows({rows_of(x), rows_of(out), rows.data(), out.rows(), out.shape[1]},
                       device_->stream());
    launched("gather_rows");
  }

  void log_sum_exp(const TensorView& logits, std::span<float> out) override {
    TENON_CHECK_EQ(logits.rows(), static_cast<int64_t>(out.size()));
    TENON_CHECK(logits.dtype == DType::kF32);
    TENON_CHECK_EQ(logits.stride[1], 1);
    launch_log_sum_exp(
        {logits.as<const float>(), logits.stride[0], logits.rows(), logits.shape[1], out.data()},
        device_->stream());
    launched("log_sum_exp");
  }

 private:
  void launched(std::string_view what) { device_->note(cudaGetLastError(), what); }

  static const std::byte* data_of(const LinearWeight& weight) {
    return static_cast<const CudaWeight&>(weight).data();
  }
  [[nodiscard]] LtShape shape_of(const LinearWeight& weight, DType out) const {
    return {weight.rows(), weight.cols(), dtype_, out};
  }

  // Device memory with all rows of `parts`, one below the other.
  Result<Buffer> load(std::span<const WeightSource> parts, int64_t* rows) {
    TENON_RETURN_IF_ERROR(check_weight_parts(parts));
    const int64_t cols = parts[0].cols;
    if (cols % kVector != 0) {
      return unsupported("{}: {} columns; a GPU needs a multiple of {}", parts[0].name, cols,
                         kVector);
    }
    for (const WeightSource& part : parts) *rows += part.rows;
    TENON_ASSIGN_OR_RETURN(
        Buffer memory, device_->allocate(static_cast<size_t>(dtype_bytes(dtype_, *rows * cols))));
    std::byte* target = memory.data();
    for (const WeightSource& part : parts) {
      TENON_RETURN_IF_ERROR(upload_.put(part, dtype_, target));
      target += dtype_bytes(dtype_, part.rows * cols);
    }
    return memory;
  }

  void normalise(const TensorView& residual,
                 const TensorView* x,
                 std::span<const float> weight,
                 float eps,
                 const TensorView& out) {
    TENON_CHECK(residual.dtype == DType::kF32);
    TENON_CHECK_EQ(residual.rows(), out.rows());
    TENON_CHECK_EQ(residual.shape[1], out.shape[1]);
    TENON_CHECK_EQ(out.shape[1], static_cast<int64_t>(weight.size()));
    TENON_CHECK_LE(out.shape[1], kMaxNormColumns);
    check_vectors(residual);
    check_vectors(out);
    RmsNormArgs args;
    args.residual = rows_of(residual);
    if (x != nullptr) {
      TENON_CHECK(is_half(x->dtype));
      TENON_CHECK_EQ(x->rows(), out.rows());
      TENON_CHECK_EQ(x->shape[1], out.shape[1]);
      check_vectors(*x);
      args.x = rows_of(*x);
    }
    args.out = rows_of(out);
    args.weight = weight.data();
    args.eps = eps;
    args.rows = out.rows();
    args.cols = out.shape[1];
    launch_rms_norm(args, device_->stream());
    launched("rms_norm");
  }

  CudaDevice* device_;
  DType dtype_;
  std::unique_ptr<LtMatmul> lt_;
  WeightUpload upload_;
};

}  // namespace

Result<std::unique_ptr<Ops>> make_cuda_ops(CudaDevice* device,
                                           ThreadPool* pool,
                                           DType activation_dtype) {
  if (!is_half(activation_dtype)) {
    return unsupported("activations of type {} on a GPU (supported: BF16, F16)",
                       dtype_traits(activation_dtype).name);
  }
  TENON_ASSIGN_OR_RETURN(std::unique_ptr<LtMatmul> lt, LtMatmul::create(device));
  return std::unique_ptr<Ops>(
      std::make_unique<CudaOps>(device, pool, activation_dtype, std::move(lt)));
}

}  // namespace tenon
