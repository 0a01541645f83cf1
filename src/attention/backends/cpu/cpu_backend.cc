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
  float* partials = nullptr;  // [capacity.partials][state of the largest direct item]
  int64_t partial_rows = 0;
  // What prefix levels leave: for each decode token and KV head two states of `group` rows, of the
  // whole segments before the level's end and of the one it ends in.
  float* states = nullptr;
  std::atomic<int32_t>* remaining = nullptr;  // units of each split pair still to come
};

int64_t state_floats(int64_t rows, int64_t dim_v) {
  return round_up(rows * (dim_v + 2), 16);
}

SoftmaxState state_at(float* memory, int64_t index, int64_t rows, int64_t dim_v) {
  float* acc = memory + index * state_floats(rows, dim_v);
  float* max = acc + rows * dim_v;
  return {acc, max, max + rows};
}

void lay_out(const PlanShape& shape,
             const AttentionRequirements& group,
             const AttentionLimits& limits,
             Carver& carver,
             Workspace& workspace) {
  const PlanCapacity capacity = cpu_attention::plan_capacity(shape, limits);
  const int64_t rows = round_up(shape.max_item_rows(), cpu_attention::kRowPadding);
  const int64_t dim_k = padded(group.head_dim_qk);
  const int64_t dim_v = padded(group.head_dim_v);
  workspace.threads.resize(static_cast<size_t>(shape.threads));
  for (Scratch& scratch : workspace.threads) {
    scratch.q = carver.take<float>(rows * dim_k);
    scratch.scores = carver.take<float>(rows * kTileKeys);
    scratch.alpha = carver.take<float>(rows);
    scratch.tile = carver.take<float>(kTileKeys * std::max(dim_k, dim_v));
    scratch.k_columns = carver.take<float>(dim_k * kTileKeys);
    scratch.token_scales = carver.take<float>(2 * kTileKeys);
    scratch.positions = carver.take<int32_t>(shape.max_item_queries());
    scratch.total = take_state(carver, rows, dim_v);
    scratch.part = take_state(carver, rows, dim_v);
  }
  workspace.partial_rows = shape.max_direct_item_rows();
  workspace.partials =
      carver.take<float>(capacity.partials * state_floats(workspace.partial_rows, dim_v));
  workspace.states = carver.take<float>(capacity.states * shape.num_kv_heads * 2 *
                                        state_floats(shape.group, dim_v));
  workspace.remaining = carver.take<std::atomic<int32_t>>(capacity.pairs);
  for (Plan& plan : workspace.plans) {
    Plan::Memory memory;
    const auto take = [&]<typename T>(std::span<T>& span, int64_t count) {
      span = {carver.take<T>(count), static_cast<size_t>(count)};
    };
    take(memory.items, capacity.items);
    take(memory.pairs, capacity.pairs);
    take(memory.members, capacity.members);
    take(memory.prefix_pages, capacity.states);
    if (memory.items.data() == nullptr) continue;  // only counting
    memory.tree.reserve(static_cast<int32_t>(capacity.states));
    memory.max_states = capacity.states;
    plan.attach(std::move(memory));
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
  const AttentionSplit split_;
  const CascadeMode cascade_;
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

  // An item at work.
  struct Job {
    const Call& call;
    const WorkItem& item;
    const Scratch& scratch;
    HeadTask task;
    int32_t segment = 0;  // of the first key

    // The batch's token of query i.
    [[nodiscard]] int32_t token(int32_t i) const;
    [[nodiscard]] int32_t all_rows() const { return task.num_heads * task.row_stride; }
  };

  void write_token(const float* k, const float* v, int64_t slot) const;
  void run_item(const Call& call, const WorkItem& item, const Scratch& scratch) const;
  [[nodiscard]] HeadTask make_task(const Job& job) const;
  void load_queries(const Job& job) const;
  void attend_segment(const Job& job, int32_t segment, bool fresh, const SoftmaxState& to) const;
  void run_whole(const Job& job) const;
  void run_split(const Job& job) const;
  // The states that prefix levels left for the job's queries: total and open part.
  void load_states(const Job& job) const;
  void store_states(const Job& job) const;
  // Calls move(where a state is kept, where the kernels want it, rows) for each of them.
  template <typename Move>
  void move_states(const Job& job, const Move& move) const;
  void finish(const Job& job, const SoftmaxState& state) const;
  void finish_row(const Call& call, int64_t token, int64_t head, const SoftmaxState& row) const;
  [[nodiscard]] SoftmaxState partial(int64_t index) const;

  CpuBackend* const backend_;
  const LayerParams params_;
};

CpuBackend::CpuBackend(const BackendContext& context)
    : group_(context.requirements),
      isa_(context.isa),
      split_(context.split),
      cascade_(context.cascade),
      kernels_(cpu_attention::find_kernels(context.isa)),
      pool_(context.pool) {
  info_.name = "cpu";
  info_.summary = fmt::format("blocked online softmax, SIMD ({}), split-KV over threads",
                              kernels_ == nullptr ? isa_ : kernels_->isa);
  info_.devices = {DeviceType::kCpu};
  info_.q_dtypes = {DType::kF32};
  info_.kv_dtypes = {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kI8};
  info_.max_head_dim = 4096;
  info_.layouts = {KvLayout::kLBHNC, KvLayout::kBLHNC, KvLayout::kLBNHC};
  using enum AttentionFeature;
  info_.features = features({kNonCausal, kSlidingWindow, kLogitsSoftCap, kAlibi, kSinks, kKvSharing,
                             kCascade, kLse, kKvScalePerHead});
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
  shape.cell_bytes = static_cast<int32_t>(
      dtype_bytes(group_.kv_dtype, int64_t{group_.head_dim_qk} + group_.head_dim_v));
  shape.cascade = cascade_;
  shape.split = split_;
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
  const int64_t at = slot % kv.block_size;
  TENON_CHECK_LT(block, kv.num_blocks);
  auto* base = static_cast<std::byte*>(kv.base);
  for (int32_t head = 0; head < kv.num_kv_heads; ++head) {
    const int64_t cell = kv.k_offset(block, head, at);
    float* scales = kv.token_scale_offset != 0 ? kv.token_scales(block, head) + at : nullptr;
    backend_->kernels().store_cells(k + int64_t{head} * kv.head_dim_k, kv.scales.k_of(head),
                                    kv.head_dim_k, kv.dtype, base + dtype_bytes(kv.dtype, cell),
                                    scales);
    backend_->kernels().store_cells(v + int64_t{head} * kv.head_dim_v, kv.scales.v_of(head),
                                    kv.head_dim_v, kv.dtype,
                                    base + dtype_bytes(kv.dtype, cell + kv.v_offset),
                                    scales == nullptr ? nullptr : scales + kv.block_size);
  }
}

void CpuImpl::write_kv(const TensorView& k, const TensorView& v, std::span<const int64_t> slots) {
  if (params_.shares_kv) return;         // the layer that owns the cells has written them
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
  for (int i = 0; i < plan.num_phases(); ++i) {
    const std::span<const WorkItem> items = plan.phase(i);
    backend_->pool().parallel_for(static_cast<int64_t>(items.size()), 1,
                                  [&](int64_t begin, int64_t end, int thread) {
                                    for (int64_t at = begin; at < end; ++at) {
                                      run_item(call, items[static_cast<size_t>(at)],
                                               workspace.threads[static_cast<size_t>(thread)]);
                                    }
                                  });
  }
}

int32_t CpuImpl::Job::token(int32_t i) const {
  if (item.level >= 0) {
    return call.plan.members()[static_cast<size_t>(item.query_begin + i)].token;
  }
  return call.plan.batch().query_start_loc[static_cast<size_t>(item.row)] + item.query_begin + i;
}

HeadTask CpuImpl::make_task(const Job& job) const {
  const WorkItem& item = job.item;
  const BatchView& batch = job.call.plan.batch();
  const auto row = static_cast<size_t>(item.row);
  HeadTask task;
  task.kv = &params_.kv;
  task.pages = batch.page_indices.data() + batch.page_indptr[row];
  task.kv_head = item.kv_head;
  task.num_heads = item.num_heads;
  task.group = params_.num_q_heads / params_.num_kv_heads;
  task.rows = item.query_count * task.group;
  task.row_stride = item.packed
                        ? static_cast<int32_t>(round_up(task.rows, cpu_attention::kRowPadding))
                        : task.rows;
  task.positions = job.scratch.positions;
  task.key_end = item.level >= 0 ? item.key_end : batch.seq_lens[row];
  if (params_.sliding_window) task.window = *params_.sliding_window;
  task.causal = backend_->group().causal;
  task.packed = item.packed;
  task.soft_cap = params_.logits_soft_cap;
  if (!params_.alibi_slopes.empty()) {
    task.slopes = params_.alibi_slopes.data() + int64_t{item.kv_head} * task.group;
  }
  return task;
}

void CpuImpl::load_queries(const Job& job) const {
  const HeadTask& task = job.task;
  const BatchView& batch = job.call.plan.batch();
  const auto row = static_cast<size_t>(job.item.row);
  const int32_t context = batch.seq_lens[row] - batch.query_len(job.item.row);
  const int32_t dim = params_.head_dim_qk;
  const float cell_scale = params_.kv.dtype == DType::kF8E4M3 ? cpu_attention::kF8Factor : 1.0F;
  for (int32_t i = 0; i < job.item.query_count; ++i) {
    job.scratch.positions[i] =
        job.item.level < 0
            ? context + job.item.query_begin + i
            : job.call.plan.members()[static_cast<size_t>(job.item.query_begin + i)].position;
    const float* q = job.call.q.row<const float>(job.token(i));
    // The padding of scratch.q is zero from the start and stays so.
    for (int32_t head = 0; head < task.num_heads; ++head) {
      const int32_t kv_head = task.kv_head + head;
      const float scale = params_.scale * cell_scale * params_.kv.scales.k_of(kv_head);
      for (int32_t h = 0; h < task.group; ++h) {
        const int64_t to = int64_t{head} * task.row_stride + int64_t{i} * task.group + h;
        backend_->kernels().scale(q + (int64_t{kv_head} * task.group + h) * dim, scale, dim,
                                  job.scratch.q + to * padded(dim));
      }
    }
  }
}

void CpuImpl::run_item(const Call& call, const WorkItem& item, const Scratch& scratch) const {
  Job job{call, item, scratch, {}, item.key_begin / kSegmentKeys};
  job.task = make_task(job);
  load_queries(job);
  if (item.pair >= 0) return run_split(job);
  run_whole(job);
}

// The job's part of a segment, onto `to`.
void CpuImpl::attend_segment(const Job& job,
                             int32_t segment,
                             bool fresh,
                             const SoftmaxState& to) const {
  backend_->kernels().attend(job.task, std::max(job.item.key_begin, segment * kSegmentKeys),
                             std::min(job.item.key_end, (segment + 1) * kSegmentKeys), fresh,
                             job.scratch, to);
}

void CpuImpl::run_whole(const Job& job) const {
  const Kernels& kernels = backend_->kernels();
  const HeadTask& task = job.task;
  const Scratch& scratch = job.scratch;
  const int32_t dim = padded(params_.head_dim_v);
  const bool resumes = job.item.key_begin > 0;
  // From here on in part: the first segment seen of a job that starts from nothing is its total.
  int32_t segment = job.segment;
  bool fresh = true;
  if (resumes) {
    load_states(job);
    fresh = job.item.key_begin % kSegmentKeys == 0;
  } else {
    segment = std::max(segment, task.visible_begin(0) / kSegmentKeys);
    if (job.item.level < 0 || (segment + 1) * kSegmentKeys <= job.item.key_end) {
      // attend() leaves it empty if nothing is seen.
      attend_segment(job, segment++, /*fresh=*/true, scratch.total);
    } else {
      kernels.clear(job.all_rows(), dim, scratch.total);
    }
  }
  const int32_t end = std::min(job.item.key_end, task.visible_end(task.rows - 1));
  bool open = !fresh;  // part holds a segment that is not in the total
  for (; segment * kSegmentKeys < end; ++segment) {
    attend_segment(job, segment, fresh, scratch.part);
    fresh = true;
    open = job.item.level >= 0 && (segment + 1) * kSegmentKeys > job.item.key_end;
    if (!open) kernels.merge(job.all_rows(), dim, scratch.total, scratch.part);
  }
  if (job.item.level < 0) {
    if (open) kernels.merge(job.all_rows(), dim, scratch.total, scratch.part);
    return finish(job, scratch.total);
  }
  if (!open) kernels.clear(job.all_rows(), dim, scratch.part);
  store_states(job);
}

SoftmaxState CpuImpl::partial(int64_t index) const {
  const Workspace& workspace = backend_->workspace();
  return state_at(workspace.partials, index, workspace.partial_rows, padded(params_.head_dim_v));
}

void CpuImpl::run_split(const Job& job) const {
  const Kernels& kernels = backend_->kernels();
  const int32_t dim = padded(params_.head_dim_v);
  const SplitPair& pair = job.call.plan.pairs()[static_cast<size_t>(job.item.pair)];
  const auto partial_of = [&](int32_t segment) {
    return partial(int64_t{pair.first_partial} + segment - pair.first_segment);
  };
  for (int32_t segment = job.segment; segment * kSegmentKeys < job.item.key_end; ++segment) {
    const bool fresh = job.item.key_begin <= segment * kSegmentKeys;
    const SoftmaxState to = partial_of(segment);
    if (!fresh) {  // goes on where a prefix level stopped
      load_states(job);
      kernels.copy(job.all_rows(), dim, job.scratch.part, to);
    }
    attend_segment(job, segment, fresh, to);
  }
  std::atomic<int32_t>& remaining = backend_->workspace().remaining[job.item.pair];
  if (remaining.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  // Last one out merges, in the order in which one thread would have.
  const SoftmaxState& total = job.scratch.total;
  if (job.call.plan.prefix_end(job.item.row) > 0) {
    load_states(job);
  } else {
    kernels.clear(job.all_rows(), dim, total);
  }
  for (int32_t segment = 0; segment < pair.segments; ++segment) {
    kernels.merge(job.all_rows(), dim, total, partial_of(pair.first_segment + segment));
  }
  finish(job, total);
}

template <typename Move>
void CpuImpl::move_states(const Job& job, const Move& move) const {
  const HeadTask& task = job.task;
  const int32_t dim = padded(params_.head_dim_v);
  for (int32_t i = 0; i < job.item.query_count; ++i) {
    for (int32_t head = 0; head < task.num_heads; ++head) {
      const int64_t index =
          (int64_t{job.token(i)} * params_.num_kv_heads + task.kv_head + head) * 2;
      const int64_t row = int64_t{head} * task.row_stride + int64_t{i} * task.group;
      const auto rows_of = [&](const SoftmaxState& state) -> SoftmaxState {
        return {state.acc + row * dim, state.max + row, state.sum + row};
      };
      float* states = backend_->workspace().states;
      move(state_at(states, index, task.group, dim), rows_of(job.scratch.total), task.group);
      move(state_at(states, index + 1, task.group, dim), rows_of(job.scratch.part), task.group);
    }
  }
}

void CpuImpl::load_states(const Job& job) const {
  move_states(job, [&](const SoftmaxState& stored, const SoftmaxState& used, int32_t rows) {
    backend_->kernels().copy(rows, padded(params_.head_dim_v), stored, used);
  });
}

void CpuImpl::store_states(const Job& job) const {
  move_states(job, [&](const SoftmaxState& stored, const SoftmaxState& used, int32_t rows) {
    backend_->kernels().copy(rows, padded(params_.head_dim_v), used, stored);
  });
}

void CpuImpl::finish(const Job& job, const SoftmaxState& state) const {
  const HeadTask& task = job.task;
  const int32_t dim = padded(params_.head_dim_v);
  for (int32_t head = 0; head < task.num_heads; ++head) {
    for (int32_t r = 0; r < task.rows; ++r) {
      const int64_t at = int64_t{head} * task.row_stride + r;
      finish_row(job.call, job.token(r / task.group),
                 int64_t{task.kv_head + head} * task.group + r % task.group,
                 {state.acc + at * dim, state.max + at, state.sum + at});
    }
  }
}

// The one place where a row's sink comes in.
void CpuImpl::finish_row(const Call& call,
                         int64_t token,
                         int64_t head,
                         const SoftmaxState& row) const {
  const int32_t dim = params_.head_dim_v;
  float* out = call.out.row<float>(token) + head * dim;
  float* lse = call.lse.empty()
                   ? nullptr
                   : &call.lse[static_cast<size_t>(token * params_.num_q_heads + head)];
  if (*row.sum == 0.0F) {  // no keys: no softmax, and no sink either
    std::fill_n(out, dim, 0.0F);
    if (lse != nullptr) *lse = -std::numeric_limits<float>::infinity();
    return;
  }
  double max = *row.max;
  double sum = *row.sum;
  if (!params_.sinks.empty()) {
    const double sink = params_.sinks[static_cast<size_t>(head)];
    const double top = std::max(max, sink);
    // What weighs the values keeps its maximum; only what they are divided by grows.
    sum += std::exp(sink - max);
    if (!std::isfinite(sum)) {  // the sink is all there is
      if (lse != nullptr) *lse = static_cast<float>(top);
      std::fill_n(out, dim, 0.0F);
      return;
    }
  }
  const int64_t kv_head = head / (params_.num_q_heads / params_.num_kv_heads);
  const float cell_scale = params_.kv.dtype == DType::kF8E4M3 ? cpu_attention::kF8Factor : 1.0F;
  const float v_scale = params_.kv.scales.v_of(static_cast<int32_t>(kv_head)) * cell_scale;
  backend_->kernels().scale(row.acc, v_scale / static_cast<float>(sum), dim, out);
  if (lse != nullptr) *lse = static_cast<float>(max + std::log(sum));
}

}  // namespace

std::unique_ptr<AttentionBackend> make_cpu_attention(const BackendContext& context) {
  return std::make_unique<CpuBackend>(context);
}

}  // namespace tenon
