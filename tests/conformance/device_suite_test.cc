// The suite's own checks of what only devices have (16-bit types, fused RoPE, graphs, work that
// runs later), against a backend on a make-believe device: right, it passes; with any of the usual
// mistakes, it fails.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "tests/conformance/conformance_run.h"

namespace tenon {
namespace {

enum class Mistake {
  kNone,
  kLastKeyMissing,     // a loop that ends one key early
  kUnroundedCells,     // keys stored as the wrong 16 bits
  kRopeOfQueriesOnly,  // k stored as it came
  kPlanInTheGraph,     // a graph that replays the plan it was captured with
  kWritesPastTheRow,
  kNoLse,
};

// Host memory that says it is a GPU. Work is kept until somebody waits, or recorded.
class PretendDevice final : public Device {
 public:
  using Work = std::function<void()>;
  PretendDevice() : host_(make_cpu_device()) { info_.name = "pretend"; }

  void enqueue(Work work) { (capturing_ ? recorded_ : pending_).push_back(std::move(work)); }

  DeviceType type() const override { return DeviceType::kCuda; }
  const DeviceInfo& info() const override { return info_; }
  Result<Buffer> allocate(size_t bytes) override { return host_->allocate(bytes); }
  Result<Buffer> allocate_host(size_t bytes) override { return host_->allocate(bytes); }
  int64_t available_bytes() const override { return host_->available_bytes(); }
  void upload(void* device, const void* host, size_t bytes) override { write(device, host, bytes); }
  void download(void* host, const void* device, size_t bytes) override {
    read(host, device, bytes);
  }
  void write(void* device, const void* host, size_t bytes) override {
    finish();
    host_->write(device, host, bytes);
  }
  void read(void* host, const void* device, size_t bytes) override {
    finish();
    host_->read(host, device, bytes);
  }
  std::unique_ptr<Fence> make_fence() override { return host_->make_fence(); }
  std::unique_ptr<StreamTimer> make_timer() override { return host_->make_timer(); }
  Status synchronize() override {
    finish();
    return ok_status();
  }
  Status status() const override { return ok_status(); }
  Status begin_capture() override {
    capturing_ = true;
    return ok_status();
  }
  Result<std::unique_ptr<DeviceGraph>> end_capture() override {
    class Graph final : public DeviceGraph {
     public:
      Graph(PretendDevice* device, std::vector<Work> work)
          : device_(device), work_(std::move(work)) {}
      void launch() override {
        for (const Work& work : work_) device_->enqueue(work);
      }

     private:
      PretendDevice* device_;
      std::vector<Work> work_;
    };
    capturing_ = false;
    return std::unique_ptr<DeviceGraph>(std::make_unique<Graph>(this, std::move(recorded_)));
  }
  void enter(StepSection) override {}
  void start_profile() override {}
  double profile_seconds(StepSection) override { return 0; }

 private:
  void finish() {
    std::vector<Work> work;
    work.swap(pending_);
    for (const Work& item : work) item();
  }

  std::unique_ptr<Device> host_;
  DeviceInfo info_;
  bool capturing_ = false;
  std::vector<Work> pending_, recorded_;
};

float load(DType dtype, const void* base, int64_t at) {
  const uint16_t bits = static_cast<const uint16_t*>(base)[at];
  return dtype == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}
void store(DType dtype, void* base, int64_t at, float value) {
  static_cast<uint16_t*>(base)[at] = dtype == DType::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
}

// The plan of a step, as kernels see it: a copy in "device memory".
struct Plan {
  std::vector<int32_t> query_start_loc, seq_lens, page_indptr, page_indices;
};

struct Shared {
  PretendDevice* device = nullptr;
  Mistake mistake = Mistake::kNone;
  AttentionRequirements requirements;
  Plan plan;
};

class PretendMetadata final : public AttentionMetadata {
 public:
  std::string describe() const override { return "pretend"; }
  Plan plan;
};

class PretendImpl final : public AttentionImpl {
 public:
  PretendImpl(Shared* shared, const LayerParams& params) : shared_(shared), params_(params) {}

  void write_kv(const TensorView& k, const TensorView& v, std::span<const int64_t> slots) override {
    shared_->device->enqueue([=, this] { write_now(k, v, slots); });
  }
  bool rope_and_write_kv(const AttentionInput& in,
                         std::span<const int64_t> slots,
                         const RopeInput& rope) override {
    shared_->device->enqueue([=, this] {
      if (shared_->mistake == Mistake::kRopeOfQueriesOnly) write_now(in.k, in.v, slots);
      rotate(in.q, params_.num_q_heads, rope);
      rotate(in.k, params_.num_kv_heads, rope);
      if (shared_->mistake != Mistake::kRopeOfQueriesOnly) write_now(in.k, in.v, slots);
    });
    return true;
  }
  void forward(const AttentionInput& in, const AttentionMetadata& metadata) override {
    const Plan copy = static_cast<const PretendMetadata&>(metadata).plan;
    const bool baked = shared_->mistake == Mistake::kPlanInTheGraph;
    shared_->device->enqueue([=, this] { attend(in, baked ? copy : shared_->plan); });
  }

 private:
  void write_now(const TensorView& k, const TensorView& v, std::span<const int64_t> slots) {
    const KvView& kv = params_.kv;
    for (size_t t = 0; t < slots.size(); ++t) {
      if (slots[t] < 0) continue;
      for (int32_t head = 0; head < kv.num_kv_heads; ++head) {
        const int64_t cell = kv.k_offset(slots[t] / kv.block_size, head, slots[t] % kv.block_size);
        for (int32_t i = 0; i < kv.head_dim_k; ++i) {
          float key = load(k.dtype, k.data,
                           static_cast<int64_t>(t) * k.stride[0] + head * kv.head_dim_k + i);
          if (shared_->mistake == Mistake::kUnroundedCells && i == 5) key *= 1.01F;
          store(kv.dtype, kv.base, cell + i, key);
        }
        for (int32_t i = 0; i < kv.head_dim_v; ++i) {
          store(kv.dtype, kv.base, cell + kv.v_offset + i,
                load(v.dtype, v.data,
                     static_cast<int64_t>(t) * v.stride[0] + head * kv.head_dim_v + i));
        }
      }
    }
  }

  void rotate(const TensorView& x, int32_t heads, const RopeInput& rope) {
    const int32_t half = rope.table.rotary_dim / 2;
    for (size_t t = 0; t < rope.positions.size(); ++t) {
      for (int32_t head = 0; head < heads; ++head) {
        for (int32_t i = 0; i < half; ++i) {
          const int64_t row = static_cast<int64_t>(t) * x.stride[0] + head * params_.head_dim_qk;
          const int64_t a = row + (rope.table.interleaved ? 2 * i : i);
          const int64_t b = row + (rope.table.interleaved ? 2 * i + 1 : i + half);
          const auto entry = static_cast<size_t>(rope.positions[t] * half + i);
          const float x0 = load(x.dtype, x.data, a), x1 = load(x.dtype, x.data, b);
          const float cos = rope.table.cos[entry], sin = rope.table.sin[entry];
          store(x.dtype, x.data, a, x0 * cos - x1 * sin);
          store(x.dtype, x.data, b, x1 * cos + x0 * sin);
        }
      }
    }
  }

  void attend(const AttentionInput& in, const Plan& plan) {
    const KvView& kv = params_.kv;
    const int32_t group = params_.num_q_heads / params_.num_kv_heads;
    for (size_t row = 0; row < plan.seq_lens.size(); ++row) {
      const int32_t first = plan.query_start_loc[row];
      const int32_t queries = plan.query_start_loc[row + 1] - first;
      for (int32_t i = 0; i < queries; ++i) {
        int32_t keys = std::max(0, plan.seq_lens[row] - queries + i + 1);
        if (plan.seq_lens[row] == 0) keys = 0;
        if (shared_->mistake == Mistake::kLastKeyMissing && keys > 100) --keys;
        for (int32_t head = 0; head < params_.num_q_heads; ++head) {
          const int64_t token = first + i;
          const auto key_at = [&](int32_t key) {
            const int32_t page =
                plan.page_indices[static_cast<size_t>(plan.page_indptr[row] + key / kv.block_size)];
            return kv.k_offset(page, head / group, key % kv.block_size);
          };
          std::vector<float> scores;
          float top = -std::numeric_limits<float>::infinity();
          for (int32_t key = 0; key < keys; ++key) {
            float score = 0;
            for (int32_t d = 0; d < params_.head_dim_qk; ++d) {
              score += load(in.q.dtype, in.q.data,
                            token * in.q.stride[0] + head * params_.head_dim_qk + d) *
                       load(kv.dtype, kv.base, key_at(key) + d);
            }
            scores.push_back(score * params_.scale);
            top = std::max(top, scores.back());
          }
          float sum = 0;
          std::vector<float> out(static_cast<size_t>(params_.head_dim_v));
          for (int32_t key = 0; key < keys; ++key) {
            const float exact = std::exp(scores[static_cast<size_t>(key)] - top);
            const float weight = kv.dtype == DType::kF16 ? f16_to_f32(f32_to_f16(exact))
                                                         : bf16_to_f32(f32_to_bf16(exact));
            sum += weight;
            for (int32_t d = 0; d < params_.head_dim_v; ++d) {
              out[static_cast<size_t>(d)] +=
                  weight * load(kv.dtype, kv.base, key_at(key) + kv.v_offset + d);
            }
          }
          for (int32_t d = 0; d < params_.head_dim_v; ++d) {
            store(in.out.dtype, in.out.data,
                  token * in.out.stride[0] + head * params_.head_dim_v + d,
                  keys == 0 ? 0 : out[static_cast<size_t>(d)] / sum);
          }
          if (!in.lse.empty() && shared_->mistake != Mistake::kNoLse) {
            in.lse[static_cast<size_t>(token * params_.num_q_heads + head)] =
                keys == 0 ? -std::numeric_limits<float>::infinity() : top + std::log(sum);
          }
        }
      }
    }
    if (shared_->mistake == Mistake::kWritesPastTheRow) {
      store(in.out.dtype, in.out.data, in.out.shape[1], 1.0F);
    }
  }

  Shared* shared_;
  const LayerParams params_;
};

class PretendBackend final : public AttentionBackend {
 public:
  PretendBackend(const BackendContext& context, PretendDevice* device, Mistake mistake) {
    shared_ = {device, mistake, context.requirements, {}};
    info_.name = "pretend";
    info_.devices = {DeviceType::kCuda};
    info_.q_dtypes = info_.kv_dtypes = {DType::kBF16, DType::kF16};
    info_.max_head_dim = 256;
    info_.layouts = {KvLayout::kLBHNC};
    info_.features = static_cast<uint32_t>(AttentionFeature::kLse);
    info_.graphs = GraphSupport::kUniformDecode;
  }
  const BackendInfo& info() const override { return info_; }
  int64_t workspace_size(const AttentionLimits&) const override { return 0; }
  Status prepare(const AttentionLimits& limits) override {
    limits_ = limits;
    return ok_status();
  }
  Result<const AttentionMetadata*> build_metadata(const BatchView& batch,
                                                  const GraphBounds* graph) override {
    TENON_RETURN_IF_ERROR(check_batch_limits(batch, limits_));
    if (graph != nullptr && graph->num_rows != batch.num_rows()) {
      return Status(StatusCode::kFailedPrecondition, "another number of rows");
    }
    const auto copy = [](std::span<const int32_t> values) {
      return std::vector<int32_t>(values.begin(), values.end());
    };
    metadata_.plan = {copy(batch.query_start_loc), copy(batch.seq_lens), copy(batch.page_indptr),
                      copy(batch.page_indices)};
    // The upload: in the order of the stream, and not a part of any graph.
    shared_.device->enqueue([this, plan = metadata_.plan] { shared_.plan = plan; });
    return &metadata_;
  }
  std::unique_ptr<AttentionImpl> make_impl(const LayerParams& params) override {
    return std::make_unique<PretendImpl>(&shared_, params);
  }

 private:
  Shared shared_;
  BackendInfo info_;
  AttentionLimits limits_;
  PretendMetadata metadata_;
};

// How many cases fail, of those without and with a graph.
struct Failures {
  int plain = 0, graph = 0, passed = 0;
  std::string details;
};

Failures run(Mistake mistake) {
  PretendDevice device;
  AttentionRegistry registry;
  register_attention_backends(registry);
  registry.add("pretend", [&](const BackendContext& context) {
    return std::make_unique<PretendBackend>(context, &device, mistake);
  });
  ConformanceOptions options;
  options.level = ConformanceLevel::kSmoke;
  options.device = &device;
  Failures failures;
  const auto results = run_conformance(registry, "pretend", options);
  EXPECT_TRUE(results.ok());
  for (const ConformanceResult& result : *results) {
    if (result.outcome == ConformanceOutcome::kPassed) {
      ++failures.passed;
      continue;
    }
    ++(result.name.find("graph") == std::string::npos ? failures.plain : failures.graph);
    failures.details += result.name + ": " + result.detail + "\n";
  }
  return failures;
}

TEST(DeviceConformance, PassesABackendThatIsRight) {
  const Failures failures = run(Mistake::kNone);
  EXPECT_EQ(failures.plain + failures.graph, 0) << failures.details;
  EXPECT_EQ(
      failures.passed,
      static_cast<int>(conformance_cases(ConformanceLevel::kSmoke, DeviceType::kCuda).size()));
}

TEST(DeviceConformance, FindsMistakes) {
  EXPECT_GT(run(Mistake::kLastKeyMissing).plain, 0);
  EXPECT_GT(run(Mistake::kUnroundedCells).plain, 4);
  EXPECT_EQ(run(Mistake::kRopeOfQueriesOnly).plain, 1);
  EXPECT_GT(run(Mistake::kWritesPastTheRow).plain, 4);
  EXPECT_GT(run(Mistake::kNoLse).plain, 4);
  const Failures baked = run(Mistake::kPlanInTheGraph);
  EXPECT_EQ(baked.graph, 1);
  EXPECT_EQ(baked.plain, 0) << baked.details;
}

}  // namespace
}  // namespace tenon
