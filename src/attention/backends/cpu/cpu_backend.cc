#include "attention/backends/cpu/cpu_backend.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <new>

#include "attention/backends/cpu/kernels.h"
#include "attention/backends/cpu/plan.h"
#include "base/check.h"

namespace tenon {
namespace {

using cpu_attention::HeadTask;
using cpu_attention::Kernels;
using cpu_attention::kSegmentKeys;
using cpu_attention::kTileKeys;
using cpu_attention::Plan;
using cpu_attention::PlanCapacity;
using cpu_attention::PlanShape;
using cpu_attention::Scratch;
using cpu_attention::SoftmaxState;
using cpu_attention::SplitPair;
using cpu_attention::WorkItem;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

int32_t padded(int32_t dim) {
  return static_cast<int32_t>(round_up(dim, cpu_attention::kDimPadding));
}

// Hands out aligned pieces of one buffer; with a null base it only counts. Sizing and carving run
// the same code, so workspace_size() cannot disagree with what prepare() takes.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}

  template <typename T>
  T* take(int64_t count) {
    const int64_t begin = used_;
    used_ +=
        round_up(count * static_cast<int64_t>(sizeof(T)), 64);  // no line shared by two threads
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + begin);
  }
  [[nodiscard]] int64_t used() const { return used_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

SoftmaxState take_state(Carver& carver, int64_t rows, int64_t dim) {
  return {carver.take<float>(rows * dim), carver.take<float>(rows), carver.take<float>(rows)};
}

// All memory of the backend.
struct Workspace {
  std::vector<Scratch> threads;
  std::array<Plan, AttentionBackend::kMetadataRing> plans;
  float* partials = nullptr;  // [capacity.partials][partial_floats]
  int64_t partial_rows = 0;
  int64_t partial_floats = 0;
  std::atomic<int32_t>* remaining = nullptr;  // units of each split pair still to come
};

void lay_out(const PlanShape& shape,
             const AttentionRequirements& group,
             const AttentionLimits& limits,
             Carver& carver,
             Workspace& workspace) {
  const PlanCapacity capacity = cpu_attention::plan_capacity(shape, limits);
  const int64_t rows = round_up(shape.max_tile_rows(), cpu_attention::kRowPadding);
  const int64_t dim_k = padded(group.head_dim_qk);
  const int64_t dim_v = padded(group.head_dim_v);
  workspace.threads.resize(static_cast<size_t>(shape.threads));
  for (Scratch& scratch : workspace.threads) {
    scratch.q = carver.take<float>(rows * dim_k);
    scratch.scores = carver.take<float>(rows * kTileKeys);
    scratch.alpha = carver.take<float>(rows);
    scratch.tile = carver.take<float>(kTileKeys * std::max(dim_k, dim_v));
    scratch.k_columns = carver.take<float>(dim_k * kTileKeys);
    scratch.total = take_state(carver, rows, dim_v);
    scratch.part = take_state(carver, rows, dim_v);
  }
  workspace.partial_rows = shape.direct_rows();
  workspace.partial_floats = round_up(workspace.partial_rows * (dim_v + 2), 16);
  workspace.partials = carver.take<float>(capacity.partials * workspace.partial_floats);
  workspace.remaining = carver.take<std::atomic<int32_t>>(capacity.pairs);
  for (Plan& plan : workspace.plans) {
    auto* items = carver.take<WorkItem>(capacity.items);
    auto* pairs = carver.take<SplitPair>(capacity.pairs);
    if (items == nullptr) continue;
    plan.attach({items, static_cast<size_t>(capacity.items)},
                {pairs, static_cast<size_t>(capacity.pairs)});
  }
  if (workspace.remaining != nullptr) {
    for (int64_t i = 0; i < capacity.pairs; ++i) new (workspace.remaining + i) std::atomic<int32_t>;
  }
}

class CpuBackend final : public AttentionBackend {
 public:
  explicit CpuBackend(const BackendContext& context);

  [[nodiscard]] const BackendInfo& info() const override { return info_; }
  [[nodiscard]] std::vector<std::string> check(const AttentionRequirements& wanted) const override;
  [[nodiscard]] int64_t workspace_size(const AttentionLimits& limits) const override;
  Status prepare(const AttentionLimits& limits) override;
  using AttentionBackend::build_metadata;
  Result<const AttentionMetadata*> build_metadata(const BatchView& batch,
                                                  const GraphBounds* graph) override;
  std::unique_ptr<AttentionImpl> make_impl(const LayerParams& params) override;

  [[nodiscard]] const AttentionRequirements& group() const { return group_; }
  [[nodiscard]] const Kernels& kernels() const { return *kernels_; }
  [[nodiscard]] const Workspace& workspace() const { return workspace_; }
  [[nodiscard]] ThreadPool& pool() { return pool_ != nullptr ? *pool_ : serial_; }

 private:
  [[nodiscard]] PlanShape shape() const;

  const AttentionRequirements group_;
  const std::string isa_;
  const Kernels*
      kernels_;  // null when this CPU lacks the instruction set asked for: check() says so
  ThreadPool* const pool_;
  ThreadPool serial_{1};
  BackendInfo info_;
  AttentionLimits limits_;
  Buffer memory_;
  Workspace workspace_;
  size_t next_plan_ = 0;
};

class CpuImpl final : public AttentionImpl {
 public:
  CpuImpl(CpuBackend* backend, const LayerParams& params) : backend_(backend), params_(params) {}

  void write_kv(const TensorView& k, const TensorView& v, std::span<const int64_t> slots) override;
  void forward(const AttentionInput& in, const AttentionMetadata& metadata) override;

 private:
  // The tensors of one forward() call.
  struct Call {
    const Plan& plan;
    const TensorView& q;
    const TensorView& out;
    std::span<float> lse;
  };

  void write_token(const float* k, const float* v, int64_t slot) const;
  void run_item(const Call& call, const WorkItem& item, const Scratch& scratch) const;
  [[nodiscard]] HeadTask make_task(const Call& call, const WorkItem& item) const;
  void load_queries(const Call& call,
                    const WorkItem& item,
                    const HeadTask& task,
                    const Scratch& scratch) const;
  void run_split(const Call& call,
                 const WorkItem& item,
                 const HeadTask& task,
                 const Scratch& scratch) const;
  void finish(const Call& call,
              const WorkItem& item,
              const HeadTask& task,
              const SoftmaxState& state) const;
  [[nodiscard]] SoftmaxState partial(int64_t index) const;

  CpuBackend* const backend_;
  const LayerParams params_;
};

CpuBackend::CpuBackend(const BackendContext& context)
    : group_(context.requirements),
      isa_(context.isa),
      kernels_(cpu_attention::find_kernels(context.isa)),
      pool_(context.pool) {
  info_.name = "cpu";
  info_.summary = fmt::format("blocked online softmax, SIMD ({}), split-KV over threads",
                              kernels_ == nullptr ? isa_ : kernels_->isa);
  info_.devices = {DeviceType::kCpu};
  info_.q_dtypes = {DType::kF32};
  info_.kv_dtypes = {DType::kF32, DType::kF16, DType::kBF16};
  info_.max_head_dim = 4096;
  info_.layouts = {KvLayout::kLBHNC, KvLayout::kBLHNC, KvLayout::kLBNHC};
  info_.features = static_cast<uint32_t>(AttentionFeature::kNonCausal) |
                   static_cast<uint32_t>(AttentionFeature::kSlidingWindow) |
                   static_cast<uint32_t>(AttentionFeature::kLogitsSoftCap) |
                   static_cast<uint32_t>(AttentionFeature::kLse);
  info_.max_decode_query_len = std::numeric_limits<int32_t>::max();
  info_.batch_invariant = true;
  info_.preference = 100;
}

std::vector<std::string> CpuBackend::check(const AttentionRequirements& wanted) const {
  std::vector<std::string> reasons = AttentionBackend::check(wanted);
  if (kernels_ == nullptr) {
    reasons.push_back(
        fmt::format("instruction set '{}' is not available here (available: auto, {})", isa_,
                    fmt::join(cpu_attention::available_isas(), ", ")));
  }
  return reasons;
}

PlanShape CpuBackend::shape() const {
  PlanShape shape;
  shape.num_kv_heads = group_.num_kv_heads;
  shape.group = group_.num_q_heads / group_.num_kv_heads;
  shape.block_size = group_.block_size;
  shape.threads = pool_ != nullptr ? pool_->num_threads() : 1;
  return shape;
}

int64_t CpuBackend::workspace_size(const AttentionLimits& limits) const {
  Carver counter(nullptr);
  Workspace unused;
  lay_out(shape(), group_, limits, counter, unused);
  return counter.used();
}

Status CpuBackend::prepare(const AttentionLimits& limits) {
  if (limits.max_num_seqs <= 0 || limits.max_num_batched_tokens <= 0 || limits.max_seq_len <= 0) {
    return invalid_argument("attention limits must be positive: {} rows, {} tokens, {} keys",
                            limits.max_num_seqs, limits.max_num_batched_tokens, limits.max_seq_len);
  }
  const int64_t bytes = workspace_size(limits);
  memory_ = Buffer::try_allocate(static_cast<size_t>(bytes));
  if (memory_.data() == nullptr) {
    return resource_exhausted("attention workspace: cannot get {} bytes", bytes);
  }
  Carver carver(memory_.data());
  lay_out(shape(), group_, limits, carver, workspace_);
  limits_ = limits;
  return ok_status();
}

Result<const AttentionMetadata*> CpuBackend::build_metadata(const BatchView& batch,
                                                            const GraphBounds* /*graph*/) {
  TENON_RETURN_IF_ERROR(validate_batch_rows(batch, group_.block_size));
  TENON_RETURN_IF_ERROR(check_batch_limits(batch, limits_));
  Plan& plan = workspace_.plans[next_plan_];
  next_plan_ = (next_plan_ + 1) % workspace_.plans.size();
  plan.build(shape(), batch);
  return &plan;
}

std::unique_ptr<AttentionImpl> CpuBackend::make_impl(const LayerParams& params) {
  TENON_CHECK(kernels_ != nullptr);
  TENON_CHECK_EQ(params.num_q_heads, group_.num_q_heads);
  TENON_CHECK_EQ(params.num_kv_heads, group_.num_kv_heads);
  TENON_CHECK_EQ(params.head_dim_qk, group_.head_dim_qk);
  TENON_CHECK_EQ(params.head_dim_v, group_.head_dim_v);
  TENON_CHECK_EQ(params.kv.block_size, group_.block_size);
  TENON_CHECK_GT(params.sliding_window.value_or(1), 0);
  return std::make_unique<CpuImpl>(this, params);
}

void CpuImpl::write_token(const float* k, const float* v, int64_t slot) const {
  const KvView& kv = params_.kv;
  const int64_t block = slot / kv.block_size;
  TENON_CHECK_LT(block, kv.num_blocks);
  auto* base = static_cast<std::byte*>(kv.base);
  for (int32_t head = 0; head < kv.num_kv_heads; ++head) {
    const int64_t cell = kv.k_offset(block, head, slot % kv.block_size);
    backend_->kernels().store_cells(k + int64_t{head} * kv.head_dim_k, kv.scales.k, kv.head_dim_k,
                                    kv.dtype, base + dtype_bytes(kv.dtype, cell));
    backend_->kernels().store_cells(v + int64_t{head} * kv.head_dim_v, kv.scales.v, kv.head_dim_v,
                                    kv.dtype, base + dtype_bytes(kv.dtype, cell + kv.v_offset));
  }
}

void CpuImpl::write_kv(const TensorView& k, const TensorView& v, std::span<const int64_t> slots) {
  constexpr int64_t kTokensAtOnce = 16;  // fewer are not worth waking a thread
  backend_->pool().parallel_for(
      static_cast<int64_t>(slots.size()), kTokensAtOnce, [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; ++t) {
          const int64_t slot = slots[static_cast<size_t>(t)];
          if (slot >= 0) write_token(k.row<const float>(t), v.row<const float>(t), slot);
        }
      });
}

void CpuImpl::forward(const AttentionInput& in, const AttentionMetadata& metadata) {
  const TensorView& q = in.q;
  const TensorView& out = in.out;
  const std::span<float> lse = in.lse;
  const auto& plan = static_cast<const Plan&>(metadata);
  TENON_CHECK(q.dtype == DType::kF32 && out.dtype == DType::kF32);
  const Workspace& workspace = backend_->workspace();
  for (size_t i = 0; i < plan.pairs().size(); ++i) {
    workspace.remaining[i].store(plan.pairs()[i].units, std::memory_order_relaxed);
  }
  const Call call{plan, q, out, lse};
  backend_->pool().parallel_for(static_cast<int64_t>(plan.items().size()), 1,
                                [&](int64_t begin, int64_t end, int thread) {
                                  for (int64_t i = begin; i < end; ++i) {
                                    run_item(call, plan.items()[static_cast<size_t>(i)],
                                             workspace.threads[static_cast<size_t>(thread)]);
                                  }
                                });
}

HeadTask CpuImpl::make_task(const Call& call, const WorkItem& item) const {
  const BatchView& batch = call.plan.batch();
  const auto row = static_cast<size_t>(item.row);
  HeadTask task;
  task.kv = &params_.kv;
  task.pages = batch.page_indices.data() + batch.page_indptr[row];
  task.kv_head = item.kv_head;
  task.group = params_.num_q_heads / params_.num_kv_heads;
  task.rows = item.query_count * task.group;
  task.seq_len = batch.seq_lens[row];
  task.first_position = task.seq_len - batch.query_len(item.row) + item.query_begin;
  if (params_.sliding_window) task.window = *params_.sliding_window;
  task.causal = backend_->group().causal;
  task.packed = item.packed;
  task.soft_cap = params_.logits_soft_cap;
  return task;
}

void CpuImpl::load_queries(const Call& call,
                           const WorkItem& item,
                           const HeadTask& task,
                           const Scratch& scratch) const {
  const int32_t dim = params_.head_dim_qk;
  const int64_t token = call.plan.batch().query_start_loc[static_cast<size_t>(item.row)];
  // The padding of scratch.q is zero from the start and stays so.
  for (int32_t r = 0; r < task.rows; ++r) {
    const int64_t head = int64_t{item.kv_head} * task.group + r % task.group;
    const float* src =
        call.q.row<const float>(token + item.query_begin + r / task.group) + head * dim;
    backend_->kernels().scale(src, params_.scale * params_.kv.scales.k, dim,
                              scratch.q + int64_t{r} * padded(dim));
  }
}

void CpuImpl::run_item(const Call& call, const WorkItem& item, const Scratch& scratch) const {
  const HeadTask task = make_task(call, item);
  load_queries(call, item, task, scratch);
  if (item.pair >= 0) return run_split(call, item, task, scratch);
  const Kernels& kernels = backend_->kernels();
  // The first segment that is seen at all starts the total; attend() leaves it empty if there is
  // none.
  int32_t segment = task.visible_begin(0) / kSegmentKeys;
  const int32_t end = task.visible_end(task.rows - 1);
  kernels.attend(task, segment * kSegmentKeys, (segment + 1) * kSegmentKeys, scratch,
                 scratch.total);
  for (++segment; segment * kSegmentKeys < end; ++segment) {
    kernels.attend(task, segment * kSegmentKeys, (segment + 1) * kSegmentKeys, scratch,
                   scratch.part);
    kernels.merge(task.rows, padded(params_.head_dim_v), scratch.total, scratch.part);
  }
  finish(call, item, task, scratch.total);
}

SoftmaxState CpuImpl::partial(int64_t index) const {
  const Workspace& workspace = backend_->workspace();
  float* acc = workspace.partials + index * workspace.partial_floats;
  float* max = acc + workspace.partial_rows * padded(params_.head_dim_v);
  return {acc, max, max + workspace.partial_rows};
}

void CpuImpl::run_split(const Call& call,
                        const WorkItem& item,
                        const HeadTask& task,
                        const Scratch& scratch) const {
  const Kernels& kernels = backend_->kernels();
  const SplitPair& pair = call.plan.pairs()[static_cast<size_t>(item.pair)];
  for (int32_t segment = item.segment_begin; segment < item.segment_end; ++segment) {
    kernels.attend(task, segment * kSegmentKeys, (segment + 1) * kSegmentKeys, scratch,
                   partial(int64_t{pair.first_partial} + segment));
  }
  std::atomic<int32_t>& remaining = backend_->workspace().remaining[item.pair];
  if (remaining.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  // Last one out merges, in the order in which one thread would have.
  const SoftmaxState total = partial(pair.first_partial);
  for (int32_t segment = 1; segment < pair.segments; ++segment) {
    kernels.merge(task.rows, padded(params_.head_dim_v), total,
                  partial(int64_t{pair.first_partial} + segment));
  }
  finish(call, item, task, total);
}

void CpuImpl::finish(const Call& call,
                     const WorkItem& item,
                     const HeadTask& task,
                     const SoftmaxState& state) const {
  const int32_t dim = params_.head_dim_v;
  const int64_t first = call.plan.batch().query_start_loc[static_cast<size_t>(item.row)];
  for (int32_t r = 0; r < task.rows; ++r) {
    const int64_t token = first + item.query_begin + r / task.group;
    const int64_t head = int64_t{item.kv_head} * task.group + r % task.group;
    float* out = call.out.row<float>(token) + head * dim;
    const bool empty = state.sum[r] == 0.0F;
    if (empty) {
      std::fill_n(out, dim, 0.0F);
    } else {
      backend_->kernels().scale(state.acc + int64_t{r} * padded(dim),
                                params_.kv.scales.v / state.sum[r], dim, out);
    }
    if (!call.lse.empty()) {
      call.lse[static_cast<size_t>(token * params_.num_q_heads + head)] =
          empty ? -std::numeric_limits<float>::infinity()
                : static_cast<float>(state.max[r] + std::log(static_cast<double>(state.sum[r])));
    }
  }
}

}  // namespace

std::unique_ptr<AttentionBackend> make_cpu_attention(const BackendContext& context) {
  return std::make_unique<CpuBackend>(context);
}

}  // namespace tenon
