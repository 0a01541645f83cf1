#include "attention/backends/flash/flash_backend.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numbers>

#include "attention/backends/flash/flash_plan.h"
#include "attention/cuda/kv_block_mover.h"
#include "attention/cuda/kv_write.h"
#include "base/check.h"
#include "tensor/cuda/cuda_device.h"

namespace tenon {
namespace {

using flash::CascadeHeader;
using flash::CascadeLayout;
using flash::CascadeRoom;
using flash::Cells;
using flash::DecodeParams;
using flash::DecodePart;
using flash::DecodeVariant;
using flash::FastDivisor;
using flash::FlashPlan;
using flash::PlanShape;
using flash::PrefillParams;
using flash::PrefillRow;

constexpr int64_t kAlignment = 256;

int64_t aligned(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Device memory of the backend, one buffer.
struct Workspace {
  int64_t plan_bytes = 0;
  int64_t partials_at = 0;
  int64_t counters_at = 0;          // of the decode kernel
  int64_t claims_at = 0;            // of the decode kernel
  int64_t prefill_counters_at = 0;  // of the prefill kernel
  int64_t prefix_counters_at = 0;   // of the prefix pass
  // Cascade attention: its plan (cascade_plan.h), partial results of the passes and of the keys
  // behind them.
  int64_t cascade_at = 0;
  int64_t cascade_bytes = 0;
  int64_t prefix_out_at = 0, prefix_lse_at = 0;
  int64_t suffix_out_at = 0, suffix_lse_at = 0;
  int64_t bytes = 0;
};

class FlashBackend final : public AttentionBackend {
 public:
  explicit FlashBackend(const BackendContext& context);

  [[nodiscard]] const BackendInfo& info() const override { return info_; }
  [[nodiscard]] std::vector<std::string> check(const AttentionRequirements& wanted) const override;
  [[nodiscard]] int64_t workspace_size(const AttentionLimits& limits) const override;
  Status prepare(const AttentionLimits& limits) override;
  Result<const AttentionMetadata*> build_metadata(const BatchView& batch,
                                                  const GraphBounds* graph) override;
  std::unique_ptr<AttentionImpl> make_impl(const LayerParams& params) override;
  void copy_blocks(KvPool& pool, std::span<const BlockCopy> copies) override;
  void swap_blocks(const KvPool& src, KvPool& dst, std::span<const BlockCopy> copies) override;

  [[nodiscard]] CudaDevice* device() { return device_; }
  [[nodiscard]] const AttentionRequirements& group() const { return group_; }
  [[nodiscard]] const PlanShape& shape() const { return shape_; }
  template <typename T>
  [[nodiscard]] T* at(int64_t offset) const {
    return reinterpret_cast<T*>(memory_.data() + offset);
  }
  [[nodiscard]] const Workspace& workspace() const { return workspace_; }
  [[nodiscard]] const CascadeLayout& cascade_layout() const { return cascade_layout_; }

 private:
  [[nodiscard]] Workspace lay_out(const AttentionLimits& limits) const;

  const AttentionRequirements group_;
  CudaDevice* const device_;  // null without a GPU: check() says so
  BackendInfo info_;
  PlanShape shape_;
  AttentionLimits limits_;
  Workspace workspace_;
  CascadeLayout cascade_layout_{{}};
  flash::CascadePlanner cascade_;
  Buffer memory_;
  Buffer pinned_;  // kMetadataRing plans, each with its part for cascade attention
  std::array<FlashPlan, kMetadataRing> plans_;
  std::array<std::unique_ptr<Fence>, kMetadataRing> copied_;  // the slot's plan is on the device
  std::vector<PrefillRow> rows_;
  size_t next_plan_ = 0;
  std::unique_ptr<KvBlockMover> mover_;
};

class FlashImpl final : public AttentionImpl {
 public:
  FlashImpl(FlashBackend* backend, const LayerParams& params);
  // Takes device memory for what differs from head to head.
  Status prepare();

  void write_kv(const TensorView& k, const TensorView& v, std::span<const int64_t> slots) override;
  bool rope_and_write_kv(const AttentionInput& in,
                         std::span<const int64_t> slots,
                         const RopeInput& rope) override;
  void forward(const AttentionInput& in, const AttentionMetadata& metadata) override;

 private:
  void decode(const AttentionInput& in,
              const FlashPlan& plan,
              const DecodePart& part,
              cudaStream_t stream) const;
  void prefill(const AttentionInput& in, const FlashPlan& plan) const;
  void attend_prefixes(const AttentionInput& in, const FlashPlan& plan, cudaStream_t stream) const;
  void merge(const AttentionInput& in, const FlashPlan& plan) const;

  FlashBackend* const backend_;
  const LayerParams params_;
  Buffer head_facts_;  // see prepare(); empty if all heads are alike
  HeadScales write_scales_;
  DecodeParams decode_;  // what does not change from step to step
  PrefillParams prefill_;
};

Cells cells_of(DType kv_dtype) {
  switch (kv_dtype) {
    case DType::kF8E4M3: return Cells::kF8;
    case DType::kI8: return Cells::kI8;
    default: return Cells::kHalf;
  }
}

// Whether layers may need the kernels with extras.
bool wants_extras(const AttentionRequirements& group) {
  return group.sliding_window || group.logits_soft_cap || group.alibi || group.sinks ||
         group.kv_scale_per_head;
}

// Whether this one does.
bool has_extras(const LayerParams& layer) {
  const KvScales& scales = layer.kv.scales;
  return layer.sliding_window || layer.logits_soft_cap > 0.0F || !layer.alibi_slopes.empty() ||
         !layer.sinks.empty() || !scales.k_heads.empty() || !scales.v_heads.empty();
}

CudaDevice* cuda_device(Device* device) {
  return device != nullptr && device->type() == DeviceType::kCuda ? static_cast<CudaDevice*>(device)
                                                                  : nullptr;
}

// Whether the prefix pass takes the group's shape: every row sees all keys of a prefix, whatever
// its position, and cells are what the prefill kernel reads.
bool shares_prefixes(const AttentionRequirements& group) {
  flash::PrefillShape shape;
  shape.num_q_heads = group.num_q_heads;
  shape.num_kv_heads = group.num_kv_heads;
  shape.head_dim = group.head_dim_qk;
  shape.page_size = group.block_size;
  return flash::prefix_supports(shape) && group.head_dim_qk == group.head_dim_v &&
         group.q_dtype == group.kv_dtype && !group.sliding_window && !group.alibi &&
         !group.logits_soft_cap && !group.kv_scale_per_head;
}

FlashBackend::FlashBackend(const BackendContext& context)
    : group_(context.requirements), device_(cuda_device(context.device)) {
  info_.name = "flash";
  info_.summary = "own kernels for Hopper: split-KV decode and wgmma prefill, side by side";
  info_.devices = {DeviceType::kCuda};
  info_.q_dtypes = {DType::kBF16, DType::kF16};
  info_.kv_dtypes = {DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kI8};
  info_.max_head_dim = 256;
  info_.head_dim_multiple = 8;
  info_.layouts = {KvLayout::kLBHNC, KvLayout::kLBNHC, KvLayout::kBLHNC};
  KvCacheSpec spec;
  spec.head_dim_k = group_.head_dim_qk;
  spec.head_dim_v = group_.head_dim_v;
  spec.block_size = group_.block_size;
  spec.dtype = group_.kv_dtype;
  if (spec.allows(KvLayout::kLBHNCSwizzled) && spec.block_size % flash::kBulkKeys == 0) {
    info_.layouts.insert(info_.layouts.begin(), KvLayout::kLBHNCSwizzled);
  }
  using enum AttentionFeature;
  info_.features = features({kNonCausal, kSlidingWindow, kLogitsSoftCap, kAlibi, kSinks, kKvSharing,
                             kCascade, kLse, kKvScalePerHead});
  // With one prefill kernel for all rows, the launch depends on the lengths.
  info_.graphs = context.split == AttentionSplit::kUnified ? GraphSupport::kNever
                                                           : GraphSupport::kUniformDecode;
  info_.max_decode_query_len = std::numeric_limits<int32_t>::max();
  // Before flashinfer: as fast or faster in nearly all measured cells (bench/results).
  info_.preference = 210;

  const int32_t group =
      group_.num_kv_heads > 0 ? std::max(group_.num_q_heads / group_.num_kv_heads, 1) : 1;
  const Cells cells = cells_of(group_.kv_dtype);
  shape_.multiprocessors = device_ != nullptr ? device_->num_sms() : 1;
  shape_.head_dim = group_.head_dim_qk;
  shape_.split = context.split;
  for (flash::DecodePlanShape* decode : {&shape_.narrow, &shape_.wide}) {
    decode->num_kv_heads = group_.num_kv_heads;
    decode->group = group;
    decode->tile_rows = decode == &shape_.wide ? 64 : group <= 8 ? 8 : 16;
    decode->page_size = std::max(group_.block_size, 1);
    decode->causal = group_.causal;
    decode->blocks = shape_.multiprocessors;
  }
  shape_.prefill.num_q_heads = group_.num_q_heads;
  shape_.prefill.num_kv_heads = group_.num_kv_heads;
  shape_.prefill.head_dim = shape_.head_dim;
  shape_.prefill.page_size = group_.block_size;
  shape_.prefill.bf16 = group_.q_dtype == DType::kBF16;
  // The prefill kernel knows positions only as what they make visible.
  shape_.has_prefill = flash::prefill_supports(shape_.prefill) && (group_.causal || !group_.alibi);
  shape_.cell_bytes = cells == Cells::kHalf ? 2 : 1;
  // What lies in the pages is not what the step's activations are.
  shape_.pages_only = cells != Cells::kHalf || group_.kv_sharing;

  if (context.cascade != CascadeMode::kOff && shares_prefixes(group_) &&
      context.split != AttentionSplit::kUnified) {
    shape_.cascade.mode = context.cascade;
    shape_.cascade.num_kv_heads = group_.num_kv_heads;
    shape_.cascade.group = group;
    shape_.cascade.head_dim = shape_.head_dim;
    shape_.cascade.page_size = group_.block_size;
    shape_.cascade.tile_rows = flash::prefix_tile_rows(shape_.head_dim);
    shape_.cascade.block_keys = flash::prefix_block_keys(shape_.head_dim);
    shape_.cascade.blocks = shape_.multiprocessors;
    shape_.cascade.max_row_tokens = std::max(shape_.narrow.tile_rows / group, 1);
  }
}

std::vector<std::string> FlashBackend::check(const AttentionRequirements& wanted) const {
  std::vector<std::string> reasons = AttentionBackend::check(wanted);
  const bool half = cells_of(wanted.kv_dtype) == Cells::kHalf;
  if (half && wanted.q_dtype != wanted.kv_dtype) {
    reasons.push_back(
        fmt::format("query dtype {} with KV cache dtype {}: types of 16 bits must be the same",
                    dtype_traits(wanted.q_dtype).name, dtype_traits(wanted.kv_dtype).name));
  }
  if (!half && wanted.head_dim_qk % 16 != 0) {
    reasons.push_back(fmt::format("head_dim_qk {} with KV cache dtype {}: not a multiple of 16",
                                  wanted.head_dim_qk, dtype_traits(wanted.kv_dtype).name));
  }
  if (wanted.head_dim_qk != wanted.head_dim_v) {
    reasons.push_back(fmt::format("head_dim_qk {} and head_dim_v {} differ", wanted.head_dim_qk,
                                  wanted.head_dim_v));
  }
  if (wanted.cascade && reasons.empty() && !shares_prefixes(wanted)) {
    reasons.push_back(
        "cascade with a sliding window, ALiBi, a logits soft cap, 8-bit cells, KV scales per head "
        "or so many query heads a KV head");
  }
  return reasons;
}

Workspace FlashBackend::lay_out(const AttentionLimits& limits) const {
  Workspace workspace;
  int64_t partial_floats = 0;
  int32_t stretches = 0;
  for (const flash::DecodePlanShape* decode : {&shape_.narrow, &shape_.wide}) {
    const int32_t most = flash::max_decode_stretches(*decode);
    stretches = std::max(stretches, most);
    const DecodeVariant variant{shape_.head_dim, true, decode->tile_rows, cells_of(group_.kv_dtype),
                                wants_extras(group_)};
    partial_floats = std::max(partial_floats, most * flash::decode_partial_floats(variant));
  }
  workspace.plan_bytes = aligned(FlashPlan::max_bytes(shape_, limits));
  workspace.partials_at = workspace.plan_bytes;
  workspace.counters_at =
      workspace.partials_at + aligned(partial_floats * static_cast<int64_t>(sizeof(float)));
  workspace.claims_at =
      workspace.counters_at + aligned(stretches * static_cast<int64_t>(sizeof(int32_t)));
  workspace.prefill_counters_at = workspace.claims_at + kAlignment;
  workspace.prefix_counters_at = workspace.prefill_counters_at + kAlignment;
  workspace.bytes = workspace.prefix_counters_at + kAlignment;

  const auto take = [&](int64_t bytes) {
    const int64_t at = workspace.bytes;
    workspace.bytes += aligned(bytes);
    return at;
  };
  const CascadeRoom room = flash::cascade_room(shape_.cascade, limits);
  const int64_t heads = group_.num_q_heads;
  workspace.cascade_bytes = aligned(CascadeLayout(room).bytes);
  workspace.cascade_at = take(workspace.cascade_bytes);
  const auto float_bytes = static_cast<int64_t>(sizeof(float));
  workspace.prefix_out_at = take(room.partial_rows * shape_.head_dim * float_bytes);
  workspace.prefix_lse_at = take(room.partial_rows * float_bytes);
  workspace.suffix_out_at = take(room.tokens * heads * shape_.head_dim * float_bytes);
  workspace.suffix_lse_at = take(room.tokens * heads * float_bytes);
  return workspace;
}

int64_t FlashBackend::workspace_size(const AttentionLimits& limits) const {
  return lay_out(limits).bytes;
}

Status FlashBackend::prepare(const AttentionLimits& limits) {
  if (device_ == nullptr) return unsupported("attention backend flash: no CUDA device");
  if (limits.max_num_seqs <= 0 || limits.max_num_batched_tokens <= 0 || limits.max_seq_len <= 0) {
    return invalid_argument("attention limits must be positive: {} rows, {} tokens, {} keys",
                            limits.max_num_seqs, limits.max_num_batched_tokens, limits.max_seq_len);
  }
  workspace_ = lay_out(limits);
  TENON_ASSIGN_OR_RETURN(memory_, device_->allocate(static_cast<size_t>(workspace_.bytes)));
  TENON_ASSIGN_OR_RETURN(pinned_,
                         device_->allocate_host(static_cast<size_t>(
                             (workspace_.plan_bytes + workspace_.cascade_bytes) * kMetadataRing)));
  cascade_layout_ = CascadeLayout(flash::cascade_room(shape_.cascade, limits));
  cascade_.prepare(shape_.cascade, limits);
  for (std::unique_ptr<Fence>& fence : copied_) fence = device_->make_fence();
  mover_ = std::make_unique<KvBlockMover>(device_);
  rows_.reserve(static_cast<size_t>(limits.max_num_seqs));
  limits_ = limits;
  return ok_status();
}

Result<const AttentionMetadata*> FlashBackend::build_metadata(const BatchView& batch,
                                                              const GraphBounds* graph) {
  TENON_RETURN_IF_ERROR(validate_batch_rows(batch, group_.block_size));
  TENON_RETURN_IF_ERROR(check_batch_limits(batch, limits_));
  if (graph != nullptr) {
    if (info_.graphs == GraphSupport::kNever) {
      return make_status(StatusCode::kFailedPrecondition,
                         "attention backend flash: no graphs with --attention-split unified");
    }
    if (batch.num_rows() != graph->num_rows || batch.num_tokens() != graph->num_rows ||
        batch.max_query_len > 1) {
      return make_status(StatusCode::kFailedPrecondition,
                         "batch of {} rows and {} tokens in a graph of {} decode rows",
                         batch.num_rows(), batch.num_tokens(), graph->num_rows);
    }
  }
  const size_t slot = next_plan_;
  next_plan_ = (next_plan_ + 1) % plans_.size();
  TENON_RETURN_IF_ERROR(copied_[slot]->wait());
  std::byte* buffer = pinned_.data() + static_cast<int64_t>(slot) *
                                           (workspace_.plan_bytes + workspace_.cascade_bytes);
  std::byte* cascade_buffer = buffer + workspace_.plan_bytes;
  FlashPlan& plan = plans_[slot];
  const flash::CascadePart part = cascade_.build(batch, cascade_buffer);
  if (part.active() && graph != nullptr) {
    return make_status(StatusCode::kFailedPrecondition,
                       "attention backend flash: no graphs of steps that share prefixes");
  }
  plan.build(shape_, batch, {part, cascade_.rows()}, buffer, rows_);
  device_->upload(memory_.data(), buffer, static_cast<size_t>(plan.bytes));
  if (part.active()) {
    device_->upload(at<std::byte>(workspace_.cascade_at), cascade_buffer,
                    static_cast<size_t>(part.bytes));
  }
  copied_[slot]->record();
  return &plan;
}

std::unique_ptr<AttentionImpl> FlashBackend::make_impl(const LayerParams& params) {
  TENON_CHECK(device_ != nullptr);
  TENON_CHECK_EQ(params.num_q_heads, group_.num_q_heads);
  TENON_CHECK_EQ(params.num_kv_heads, group_.num_kv_heads);
  TENON_CHECK_EQ(params.head_dim_qk, group_.head_dim_qk);
  TENON_CHECK_EQ(params.head_dim_v, group_.head_dim_v);
  TENON_CHECK_EQ(params.kv.block_size, group_.block_size);
  TENON_CHECK_EQ(params.kv.v_offset, int64_t{params.head_dim_qk});
  TENON_CHECK_GT(params.scale, 0.0F);
  // What a layer has, the group's requirements have announced.
  TENON_CHECK(wants_extras(group_) || !has_extras(params));
  TENON_CHECK(params.alibi_slopes.empty() ||
              params.alibi_slopes.size() == static_cast<size_t>(params.num_q_heads));
  TENON_CHECK(params.sinks.empty() ||
              params.sinks.size() == static_cast<size_t>(params.num_q_heads));
  if (params.shares_kv || !params.kv.scales.all_one()) shape_.pages_only = true;
  auto impl = std::make_unique<FlashImpl>(this, params);
  if (!impl->prepare().ok()) device_->note(cudaErrorMemoryAllocation, "flash: facts of the heads");
  return impl;
}

void FlashBackend::copy_blocks(KvPool& pool, std::span<const BlockCopy> copies) {
  mover_->copy(pool, copies);
}

void FlashBackend::swap_blocks(const KvPool& src, KvPool& dst, std::span<const BlockCopy> copies) {
  mover_->swap(src, dst, copies);
}

FlashImpl::FlashImpl(FlashBackend* backend, const LayerParams& params)
    : backend_(backend), params_(params) {
  const KvView& kv = params.kv;
  decode_.kv = kv.base;
  decode_.page_stride = kv.block_stride;
  decode_.head_stride = kv.head_stride;
  decode_.token_stride = kv.token_stride;
  decode_.swizzle = kv.swizzled ? 7 : 0;
  decode_.page_size = FastDivisor(kv.block_size);
  decode_.num_q_heads = params.num_q_heads;
  decode_.num_kv_heads = params.num_kv_heads;
  decode_.group = FastDivisor(params.num_q_heads / params.num_kv_heads);
  decode_.head_dim = params.head_dim_qk;
  decode_.score_scale = params.scale * kv.scales.k * std::numbers::log2e_v<float>;
  decode_.out_scale = kv.scales.v;
  decode_.causal = backend->group().causal;
  decode_.bf16 = backend->group().q_dtype == DType::kBF16;
  decode_.token_scale_offset = kv.token_scale_offset;
  if (params.sliding_window) decode_.extras.window = *params.sliding_window;
  decode_.extras.set_soft_cap(params.logits_soft_cap);

  prefill_.shape = backend->shape().prefill;
  prefill_.causal = backend->group().causal;
  prefill_.scale = params.scale;
  prefill_.pages.base = kv.base;
  prefill_.pages.num_pages = kv.num_blocks;
  prefill_.pages.page_stride = kv.block_stride;
  prefill_.pages.head_stride = kv.head_stride;
  prefill_.pages.token_stride = kv.token_stride;
  prefill_.pages.v_offset = kv.v_offset;
  prefill_.pages.swizzled = kv.swizzled;
  prefill_.pages.cells = cells_of(kv.dtype);
  prefill_.pages.token_scale_offset = kv.token_scale_offset;
  prefill_.pages.k_scale = kv.scales.k;
  prefill_.pages.v_scale = kv.scales.v;
  prefill_.extras = decode_.extras;
  prefill_.has_extras = has_extras(params);
}

// Scales of K and V by head (as the view says, and relative to those of all heads), slopes, sinks.
Status FlashImpl::prepare() {
  const KvScales& scales = params_.kv.scales;
  std::vector<float> facts;
  const auto add = [&](std::span<const float> values) {
    const auto at = static_cast<int64_t>(facts.size());
    facts.insert(facts.end(), values.begin(), values.end());
    return at;
  };
  const int64_t slopes_at = add(params_.alibi_slopes);
  const int64_t sinks_at = add(params_.sinks);
  const int64_t k_at = add(scales.k_heads);
  const int64_t v_at = add(scales.v_heads);
  const auto kv_heads = static_cast<size_t>(params_.num_kv_heads);
  const auto scales_at = static_cast<int64_t>(facts.size());
  if (!scales.k_heads.empty() || !scales.v_heads.empty()) {
    for (size_t head = 0; head < kv_heads; ++head) {
      facts.push_back(scales.k_of(static_cast<int32_t>(head)));
    }
    for (size_t head = 0; head < kv_heads; ++head) {
      facts.push_back(scales.v_of(static_cast<int32_t>(head)));
    }
  }
  if (facts.empty()) return ok_status();
  TENON_ASSIGN_OR_RETURN(head_facts_,
                         to_device<float>(*backend_->device(), std::span<const float>(facts)));
  const float* base = head_facts_.as<float>();
  const auto part = [&](std::span<const float> values, int64_t at) {
    return values.empty() ? nullptr : base + at;
  };
  decode_.extras.alibi = part(params_.alibi_slopes, slopes_at);
  decode_.extras.sinks = part(params_.sinks, sinks_at);
  decode_.extras.k_scales = part(scales.k_heads, k_at);
  decode_.extras.v_scales = part(scales.v_heads, v_at);
  prefill_.extras = decode_.extras;
  if (scales_at < static_cast<int64_t>(facts.size())) {
    write_scales_ = {base + scales_at, base + scales_at + params_.num_kv_heads};
  }
  return ok_status();
}

void FlashImpl::write_kv(const TensorView& k, const TensorView& v, std::span<const int64_t> slots) {
  if (params_.shares_kv) return;
  write_kv_on_gpu(backend_->device(), params_.kv, k, v, slots, write_scales_);
}

bool FlashImpl::rope_and_write_kv(const AttentionInput& in,
                                  std::span<const int64_t> slots,
                                  const RopeInput& rope) {
  if (params_.shares_kv) return false;
  rope_and_write_kv_on_gpu(backend_->device(), params_.kv, in, slots, rope, write_scales_);
  return true;
}

void FlashImpl::forward(const AttentionInput& in, const AttentionMetadata& metadata) {
  const auto& plan = static_cast<const FlashPlan&>(metadata);
  TENON_CHECK(in.q.dtype == backend_->group().q_dtype && in.out.dtype == in.q.dtype);
  TENON_CHECK(in.q.stride[1] == 1 && in.out.stride[1] == 1);
  CudaDevice* device = backend_->device();
  const cudaStream_t decode_stream = plan.side_by_side ? device->side_stream() : device->stream();
  if (plan.side_by_side) device->fork_side();
  // The prefix pass has the multiprocessors to itself, or those of the kernel that it runs beside.
  const bool pass_beside_decode = plan.side_by_side && plan.prefill.rows == 0;
  if (!pass_beside_decode) attend_prefixes(in, plan, decode_stream);
  // First, so that its blocks find their multiprocessors empty.
  decode(in, plan, plan.narrow, decode_stream);
  decode(in, plan, plan.wide, decode_stream);
  if (pass_beside_decode) attend_prefixes(in, plan, device->stream());
  prefill(in, plan);
  if (plan.side_by_side) device->join_side();
  merge(in, plan);
}

void FlashImpl::attend_prefixes(const AttentionInput& in,
                                const FlashPlan& plan,
                                cudaStream_t stream) const {
  if (!plan.cascade_part.active()) return;
  const Workspace& workspace = backend_->workspace();
  flash::PrefixParams params;
  params.shape = prefill_.shape;
  params.scale = params_.scale * params_.kv.scales.k;
  params.num_tokens = static_cast<int32_t>(in.q.rows());
  params.q = in.q.data;
  params.q_stride = in.q.stride[0];
  params.pages = prefill_.pages;
  params.tiles = backend_->at<const flash::PrefixTile>(workspace.cascade_at +
                                                       backend_->cascade_layout().tiles_at);
  params.page_indices = backend_->at<const int32_t>(plan.pages_at);
  params.arrays.num_tiles = &backend_->at<const CascadeHeader>(workspace.cascade_at)->num_tiles;
  params.arrays.tokens =
      backend_->at<const int32_t>(workspace.cascade_at + backend_->cascade_layout().tokens_at);
  params.arrays.out = backend_->at<float>(workspace.prefix_out_at);
  params.arrays.lse = backend_->at<float>(workspace.prefix_lse_at);
  params.out_scale = params_.kv.scales.v;
  params.counters = backend_->at<int32_t>(workspace.prefix_counters_at);
  params.blocks = plan.prefix_blocks;
  backend_->device()->note(flash::launch_prefix(params, stream), "flash prefix pass");
}

void FlashImpl::merge(const AttentionInput& in, const FlashPlan& plan) const {
  if (!plan.cascade_part.active()) return;
  const Workspace& workspace = backend_->workspace();
  flash::MergeParams params;
  params.tokens = backend_->at<const flash::MergeToken>(workspace.cascade_at +
                                                        backend_->cascade_layout().merges_at);
  params.num_tokens = &backend_->at<const CascadeHeader>(workspace.cascade_at)->num_tokens;
  params.prefix_out = backend_->at<const float>(workspace.prefix_out_at);
  params.prefix_lse = backend_->at<const float>(workspace.prefix_lse_at);
  params.suffix_out = backend_->at<const float>(workspace.suffix_out_at);
  params.suffix_lse = backend_->at<const float>(workspace.suffix_lse_at);
  params.out = in.out.data;
  params.out_stride = in.out.stride[0];
  params.lse = in.lse.empty() ? nullptr : in.lse.data();
  params.num_q_heads = params_.num_q_heads;
  params.num_kv_heads = params_.num_kv_heads;
  params.head_dim = params_.head_dim_qk;
  params.bf16 = params_.kv.dtype == DType::kBF16;
  params.max_tokens = plan.cascade_part.tokens;
  backend_->device()->note(flash::launch_cascade_merge(params, backend_->device()->stream()),
                           "flash merge");
}

void FlashImpl::decode(const AttentionInput& in,
                       const FlashPlan& plan,
                       const DecodePart& part,
                       cudaStream_t stream) const {
  if (part.blocks == 0) return;
  const Workspace& workspace = backend_->workspace();
  DecodeParams params = decode_;
  params.q = in.q.data;
  params.q_stride = in.q.stride[0];
  params.out = in.out.data;
  params.out_stride = in.out.stride[0];
  params.lse = in.lse.empty() ? nullptr : in.lse.data();
  params.page_indices = backend_->at<const int32_t>(plan.pages_at);
  params.tiles = backend_->at<const flash::DecodeTile>(part.tiles_at);
  params.stretches = backend_->at<const flash::DecodeStretch>(part.stretches_at);
  params.suffix_out = backend_->at<float>(workspace.suffix_out_at);
  params.suffix_lse = backend_->at<float>(workspace.suffix_lse_at);
  params.partials = backend_->at<float>(workspace.partials_at);
  params.counters = backend_->at<int32_t>(workspace.counters_at);
  params.claims = backend_->at<int32_t>(workspace.claims_at);
  params.blocks = part.blocks;
  const flash::DecodePlanShape& shape =
      &part == &plan.narrow ? backend_->shape().narrow : backend_->shape().wide;
  const DecodeVariant variant{params.head_dim, params.bf16, shape.tile_rows,
                              cells_of(params_.kv.dtype), has_extras(params_)};
  backend_->device()->note(flash::launch_decode(variant, params, stream), "flash decode");
}

void FlashImpl::prefill(const AttentionInput& in, const FlashPlan& plan) const {
  if (plan.prefill.plan.num_tiles == 0) return;
  PrefillParams params = prefill_;
  params.plan = plan.prefill.plan;
  params.num_tokens = static_cast<int32_t>(in.q.rows());
  params.q = in.q.data;
  params.q_stride = in.q.stride[0];
  params.k = in.k.data;
  params.k_stride = in.k.stride[0];
  params.v = in.v.data;
  params.v_stride = in.v.stride[0];
  params.out = in.out.data;
  params.out_stride = in.out.stride[0];
  params.lse = in.lse.empty() ? nullptr : in.lse.data();
  params.tiles = backend_->at<const flash::PrefillTile>(plan.prefill.tiles_at);
  params.page_indices = backend_->at<const int32_t>(plan.pages_at);
  params.counters = backend_->at<int32_t>(backend_->workspace().prefill_counters_at);
  params.max_blocks = plan.prefill.max_blocks;
  backend_->device()->note(flash::launch_prefill(params, backend_->device()->stream()),
                           "flash prefill");
}

}  // namespace

std::unique_ptr<AttentionBackend> make_flash_attention(const BackendContext& context) {
  return std::make_unique<FlashBackend>(context);
}

}  // namespace tenon
