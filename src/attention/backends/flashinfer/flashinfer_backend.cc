#include "attention/backends/flashinfer/flashinfer_backend.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "attention/backends/flashinfer/kernels.h"
#include "attention/backends/flashinfer/plan.h"
#include "attention/cuda/kv_block_mover.h"
#include "attention/cuda/kv_write.h"
#include "base/check.h"
#include "tensor/cuda/cuda_check.h"
#include "tensor/cuda/cuda_device.h"

namespace tenon {
namespace {

using flashinfer::AttentionArgs;
using flashinfer::BlockKernel;
using flashinfer::BlockLaunch;
using flashinfer::BlockPlan;
using flashinfer::Fa3Kernel;
using flashinfer::Fa3Keys;
using flashinfer::Fa3Launch;
using flashinfer::Fa3Plan;
using flashinfer::MergeArgs;
using flashinfer::Plan;
using flashinfer::PlanCapacity;
using flashinfer::Planner;
using flashinfer::PlanShape;

constexpr int32_t kHopperSms = 132;  // to size a workspace without a device

class FlashinferMetadata final : public AttentionMetadata {
 public:
  [[nodiscard]] std::string describe() const override { return plan.describe(); }
  Plan plan;
};

// The kernels of one element type and shape of heads.
struct Kernels {
  std::array<BlockKernel, 3> fa2{};  // tiles of 16, 64, 128
  BlockKernel cuda_core = nullptr;
  Fa3Kernel ragged = nullptr;
  Fa3Kernel paged = nullptr;

  [[nodiscard]] BlockKernel block(const BlockLaunch& launch) const {
    if (launch.cuda_core) return cuda_core;
    return fa2[launch.tile == 16 ? 0 : launch.tile == 64 ? 1 : 2];
  }
};

// One layer's attention, for kernels that read pages and for those that read the step's own K and
// V.
struct LayerArgs {
  AttentionArgs paged;
  AttentionArgs own;
};

class FlashinferBackend final : public AttentionBackend {
 public:
  explicit FlashinferBackend(const BackendContext& context);
  ~FlashinferBackend() override;
  FlashinferBackend(const FlashinferBackend&) = delete;
  FlashinferBackend& operator=(const FlashinferBackend&) = delete;

  [[nodiscard]] const BackendInfo& info() const override { return info_; }
  [[nodiscard]] std::vector<std::string> check(const AttentionRequirements& wanted) const override;
  [[nodiscard]] int64_t workspace_size(const AttentionLimits& limits) const override;
  Status prepare(const AttentionLimits& limits) override;
  using AttentionBackend::build_metadata;
  Result<const AttentionMetadata*> build_metadata(const BatchView& batch,
                                                  const GraphBounds* graph) override;
  std::unique_ptr<AttentionImpl> make_impl(const LayerParams& params) override;
  void copy_blocks(KvPool& pool, std::span<const BlockCopy> copies) override;
  void swap_blocks(const KvPool& src, KvPool& dst, std::span<const BlockCopy> copies) override;

  // One layer's attention.
  void run(const LayerArgs& layer, const Plan& plan);
  [[nodiscard]] CudaDevice* device() const { return device_; }
  [[nodiscard]] const AttentionRequirements& group() const { return group_; }

 private:
  struct Slot {
    Buffer host;
    std::unique_ptr<Fence> uploaded;
    FlashinferMetadata metadata;
    bool used = false;
  };
  struct Carve {
    int64_t partial_out = 0, partial_lse = 0, bytes = 0;  // offsets behind the plan; all of it
  };
  [[nodiscard]] Carve carve(const PlanCapacity& capacity) const;

  void run_blocks(const AttentionArgs& args,
                  const Plan& plan,
                  const BlockLaunch& launch,
                  cudaStream_t stream);
  void run_fa3(const LayerArgs& layer, const Fa3Plan& plan, Fa3Keys keys, cudaStream_t stream);
  [[nodiscard]] Fa3Plan fa3_plan(const Plan& plan, const Fa3Launch& launch) const;
  void side_by_side(const LayerArgs& layer, const Plan& plan);
  void finish_fa3(const AttentionArgs& args, const Plan& plan);

  template <typename T>
  [[nodiscard]] const T* at(int64_t offset) const {
    return reinterpret_cast<const T*>(memory_.data() + offset);
  }

  const AttentionRequirements group_;
  CudaDevice* const device_;  // null when the context names no GPU: check() says so
  PlanShape shape_;
  Kernels kernels_;
  BackendInfo info_;
  AttentionLimits limits_;
  Buffer memory_;  // the plan of the step, then the partials
  Carve carve_;
  std::unique_ptr<Planner> planner_;
  std::array<Slot, kMetadataRing> slots_;
  size_t next_slot_ = 0;
  std::unique_ptr<KvBlockMover> mover_;
  // Between the side stream and the stream of all work in priority.
  cudaStream_t decode_stream_ = nullptr;
  cudaEvent_t fork_ = nullptr, join_ = nullptr;
};

class FlashinferImpl final : public AttentionImpl {
 public:
  FlashinferImpl(FlashinferBackend* backend, const LayerParams& params)
      : backend_(backend), params_(params) {}

  void write_kv(const TensorView& k, const TensorView& v, std::span<const int64_t> slots) override {
    write_kv_on_gpu(backend_->device(), params_.kv, k, v, slots);
  }
  bool rope_and_write_kv(const AttentionInput& in,
                         std::span<const int64_t> slots,
                         const RopeInput& rope) override {
    rope_and_write_kv_on_gpu(backend_->device(), params_.kv, in, slots, rope);
    return true;
  }
  void forward(const AttentionInput& in, const AttentionMetadata& metadata) override;

 private:
  FlashinferBackend* const backend_;
  const LayerParams params_;
};

CudaDevice* cuda_device(Device* device) {
  return device != nullptr && device->type() == DeviceType::kCuda ? static_cast<CudaDevice*>(device)
                                                                  : nullptr;
}

FlashinferBackend::FlashinferBackend(const BackendContext& context)
    : group_(context.requirements), device_(cuda_device(context.device)) {
  const DType dtype = group_.kv_dtype;
  const int32_t dim = group_.head_dim_qk;
  shape_.num_q_heads = group_.num_q_heads;
  shape_.num_kv_heads = std::max(group_.num_kv_heads, 1);
  shape_.head_dim = dim;
  shape_.block_size = group_.block_size;
  shape_.num_sms = device_ != nullptr ? device_->num_sms() : kHopperSms;
  shape_.split = context.split;
  kernels_.fa2 = {flashinfer::find_fa2(dtype, dim, 16), flashinfer::find_fa2(dtype, dim, 64),
                  flashinfer::find_fa2(dtype, dim, 128)};
  kernels_.cuda_core = flashinfer::find_cuda_core_decode(dtype, dim, shape_.group());
  kernels_.ragged = flashinfer::find_fa3(dtype, dim, Fa3Keys::kRagged);
  kernels_.paged = flashinfer::find_fa3(dtype, dim, Fa3Keys::kPaged);
  shape_.cuda_core = kernels_.cuda_core != nullptr;
  shape_.fa3 = kernels_.ragged != nullptr && kernels_.paged != nullptr;

  info_.name = "flashinfer";
  info_.summary = "FlashInfer's FA3, FA2 and decode kernels, planned by Tenon";
  info_.devices = {DeviceType::kCuda};
  info_.q_dtypes = {DType::kBF16, DType::kF16};
  info_.kv_dtypes = {DType::kBF16, DType::kF16};
  info_.max_head_dim = 256;
  info_.head_dim_multiple = 64;
  info_.layouts = {KvLayout::kLBHNC, KvLayout::kLBNHC};
  info_.features = static_cast<uint32_t>(AttentionFeature::kLse);
  info_.graphs = GraphSupport::kUniformDecode;
  info_.max_decode_query_len = 1;
  info_.preference = 200;
}

FlashinferBackend::~FlashinferBackend() {
  if (join_ != nullptr) (void)cudaEventDestroy(join_);
  if (fork_ != nullptr) (void)cudaEventDestroy(fork_);
  if (decode_stream_ != nullptr) (void)cudaStreamDestroy(decode_stream_);
}

std::vector<std::string> FlashinferBackend::check(const AttentionRequirements& wanted) const {
  std::vector<std::string> reasons = AttentionBackend::check(wanted);
  if (wanted.head_dim_qk != wanted.head_dim_v) {
    reasons.push_back(fmt::format("head_dim_qk {} and head_dim_v {} differ", wanted.head_dim_qk,
                                  wanted.head_dim_v));
  }
  if (wanted.head_dim_qk == 192) reasons.emplace_back("head_dim_qk 192 (supported: 64, 128, 256)");
  if (wanted.q_dtype != wanted.kv_dtype) {
    reasons.push_back(fmt::format("query dtype {} with KV cache dtype {}: must be the same",
                                  dtype_traits(wanted.q_dtype).name,
                                  dtype_traits(wanted.kv_dtype).name));
  }
  // FlashInfer keeps strides in 32 bits.
  const int64_t block_elements =
      int64_t{2} * wanted.block_size * wanted.num_kv_heads * wanted.head_dim_qk;
  if (block_elements > std::numeric_limits<int32_t>::max()) {
    reasons.push_back(fmt::format("a block of {} elements (at most {})", block_elements,
                                  std::numeric_limits<int32_t>::max()));
  }
  return reasons;
}

FlashinferBackend::Carve FlashinferBackend::carve(const PlanCapacity& capacity) const {
  constexpr int64_t kAlignment = 256;
  const auto up = [](int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; };
  Carve carve;
  carve.partial_out = up(capacity.plan_bytes);
  carve.partial_lse = carve.partial_out + up(capacity.partials * shape_.num_q_heads *
                                             shape_.head_dim * shape_.element_bytes);
  carve.bytes = carve.partial_lse +
                up(capacity.partials * shape_.num_q_heads * static_cast<int64_t>(sizeof(float)));
  return carve;
}

int64_t FlashinferBackend::workspace_size(const AttentionLimits& limits) const {
  return carve(flashinfer::plan_capacity(shape_, limits)).bytes;
}

Status FlashinferBackend::prepare(const AttentionLimits& limits) {
  TENON_CHECK(device_ != nullptr);
  if (limits.max_num_seqs <= 0 || limits.max_num_batched_tokens <= 0 || limits.max_seq_len <= 0) {
    return invalid_argument("attention limits must be positive: {} rows, {} tokens, {} keys",
                            limits.max_num_seqs, limits.max_num_batched_tokens, limits.max_seq_len);
  }
  const PlanCapacity capacity = flashinfer::plan_capacity(shape_, limits);
  carve_ = carve(capacity);
  TENON_ASSIGN_OR_RETURN(memory_, device_->allocate(static_cast<size_t>(carve_.bytes)));
  for (Slot& slot : slots_) {
    TENON_ASSIGN_OR_RETURN(slot.host,
                           device_->allocate_host(static_cast<size_t>(capacity.plan_bytes)));
    slot.uploaded = device_->make_fence();
  }
  planner_ = std::make_unique<Planner>(shape_, limits);
  mover_ = std::make_unique<KvBlockMover>(device_);
  if (decode_stream_ == nullptr) {
    int least = 0;
    int greatest = 0;
    TENON_RETURN_IF_CUDA_ERROR(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    TENON_RETURN_IF_CUDA_ERROR(cudaStreamCreateWithPriority(&decode_stream_, cudaStreamNonBlocking,
                                                            (least + greatest) / 2));
    TENON_RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&fork_, cudaEventDisableTiming));
    TENON_RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&join_, cudaEventDisableTiming));
  }
  limits_ = limits;
  return device_->status();
}

Result<const AttentionMetadata*> FlashinferBackend::build_metadata(const BatchView& batch,
                                                                   const GraphBounds* graph) {
  TENON_RETURN_IF_ERROR(validate_batch_rows(batch, group_.block_size));
  TENON_RETURN_IF_ERROR(check_batch_limits(batch, limits_));
  Slot& slot = slots_[next_slot_];
  if (slot.used) TENON_RETURN_IF_ERROR(slot.uploaded->wait());
  TENON_RETURN_IF_ERROR(planner_->plan(batch, graph, {slot.host.data(), slot.host.size()}));
  next_slot_ = (next_slot_ + 1) % slots_.size();
  slot.metadata.plan = planner_->result();
  device_->upload(memory_.data(), slot.host.data(), static_cast<size_t>(slot.metadata.plan.bytes));
  slot.uploaded->record();
  slot.used = true;
  return &slot.metadata;
}

std::unique_ptr<AttentionImpl> FlashinferBackend::make_impl(const LayerParams& params) {
  TENON_CHECK(planner_ != nullptr);  // after prepare()
  TENON_CHECK_EQ(params.num_q_heads, group_.num_q_heads);
  TENON_CHECK_EQ(params.num_kv_heads, group_.num_kv_heads);
  TENON_CHECK_EQ(params.head_dim_qk, group_.head_dim_qk);
  TENON_CHECK_EQ(params.head_dim_v, group_.head_dim_v);
  TENON_CHECK_EQ(params.kv.block_size, group_.block_size);
  TENON_CHECK(params.kv.dtype == group_.kv_dtype);
  // Refused by check().
  TENON_CHECK(!params.sliding_window.has_value());
  TENON_CHECK(params.logits_soft_cap == 0.0F);
  TENON_CHECK(params.alibi_slopes.empty() && params.sinks.empty());
  TENON_CHECK(!params.shares_kv);
  TENON_CHECK(params.kv.scales.k_heads.empty() && params.kv.scales.v_heads.empty());
  return std::make_unique<FlashinferImpl>(this, params);
}

void FlashinferBackend::copy_blocks(KvPool& pool, std::span<const BlockCopy> copies) {
  mover_->copy(pool, copies);
}

void FlashinferBackend::swap_blocks(const KvPool& src,
                                    KvPool& dst,
                                    std::span<const BlockCopy> copies) {
  mover_->swap(src, dst, copies);
}

void FlashinferBackend::run(const LayerArgs& layer, const Plan& plan) {
  if (plan.fa3_ahead > 0) {
    side_by_side(layer, plan);
  } else {
    for (size_t i = 0; i < plan.num_block_launches; ++i) {
      run_blocks(layer.paged, plan, plan.blocks[i], device_->stream());
    }
    for (size_t i = 0; i < plan.num_fa3_launches; ++i) {
      run_fa3(layer, fa3_plan(plan, plan.fa3[i]), plan.fa3[i].keys, device_->stream());
    }
  }
  finish_fa3(layer.paged, plan);
}

// Three streams by priority. The blocks of FA3 that start first keep their SMs until all prefill is
// done; decode takes the others, and as its blocks end, more of FA3's follow.
void FlashinferBackend::side_by_side(const LayerArgs& layer, const Plan& plan) {
  const cudaStream_t stream = device_->stream();
  device_->note(cudaEventRecord(fork_, stream), "fork");
  device_->note(cudaStreamWaitEvent(decode_stream_, fork_, 0), "fork");
  device_->fork_side();

  Fa3Plan ahead = fa3_plan(plan, plan.fa3[0]);
  Fa3Plan rest = ahead;
  ahead.num_blocks = plan.fa3_ahead;
  rest.num_blocks = shape_.num_sms - plan.fa3_ahead;
  run_fa3(layer, ahead, plan.fa3[0].keys, device_->side_stream());
  for (size_t i = 0; i < plan.num_block_launches; ++i) {
    run_blocks(layer.paged, plan, plan.blocks[i], decode_stream_);
  }
  run_fa3(layer, rest, plan.fa3[0].keys, stream);
  for (size_t i = 1; i < plan.num_fa3_launches; ++i) {
    run_fa3(layer, fa3_plan(plan, plan.fa3[i]), plan.fa3[i].keys, stream);
  }

  device_->join_side();
  device_->note(cudaEventRecord(join_, decode_stream_), "join");
  device_->note(cudaStreamWaitEvent(stream, join_, 0), "join");
}

Fa3Plan FlashinferBackend::fa3_plan(const Plan& plan, const Fa3Launch& launch) const {
  Fa3Plan result;
  result.tiles = at<flashinfer::Fa3Tile>(launch.tiles);
  result.counter = const_cast<int32_t*>(at<int32_t>(launch.counter));
  result.num_tiles = launch.num_tiles;
  result.heads_per_tile = launch.heads_per_tile;
  result.total_blocks = shape_.num_sms;
  result.num_blocks = shape_.num_sms;
  result.num_tokens = plan.num_tokens;
  result.page_indices = at<int32_t>(plan.page_indices);
  return result;
}

void FlashinferBackend::run_blocks(const AttentionArgs& args,
                                   const Plan& plan,
                                   const BlockLaunch& launch,
                                   cudaStream_t stream) {
  BlockPlan block;
  block.block_rows = at<int32_t>(launch.block_rows);
  block.block_tiles = at<int32_t>(launch.block_tiles);
  block.block_chunks = at<int32_t>(launch.block_chunks);
  block.block_valid = at<bool>(launch.block_valid);
  block.chunk_size = at<int32_t>(launch.chunk_size);
  block.q_indptr = at<int32_t>(plan.q_indptr) + launch.first_row;
  block.page_indptr = at<int32_t>(plan.page_indptr) + launch.first_row;
  block.last_page_len = at<int32_t>(plan.last_page_len) + launch.first_row;
  block.page_indices = at<int32_t>(plan.page_indices);
  block.num_rows = launch.num_rows;
  block.num_blocks = launch.num_blocks;
  std::byte* const partials = memory_.data() + carve_.partial_out;
  if (launch.split) {
    block.out_indptr = at<int32_t>(launch.out_indptr);
    block.partial_out = partials;
    block.partial_lse = reinterpret_cast<float*>(memory_.data() + carve_.partial_lse);
  }
  const int64_t width = int64_t{shape_.num_q_heads} * shape_.head_dim;
  const bool dense = args.out_row_stride == width;
  AttentionArgs whole = args;
  if (!dense) whole.out = partials;
  device_->note(static_cast<cudaError_t>(kernels_.block(launch)(whole, block, stream)),
                launch.cuda_core ? "FlashInfer decode" : "FlashInfer FA2");

  const int64_t first = int64_t{launch.first_token} * shape_.num_q_heads;
  float* const lse = args.lse == nullptr ? nullptr : args.lse + first;
  const auto row_bytes = static_cast<size_t>(width * shape_.element_bytes);
  const auto out_bytes = static_cast<size_t>(args.out_row_stride * shape_.element_bytes);
  std::byte* const out =
      static_cast<std::byte*>(args.out) + static_cast<size_t>(launch.first_token) * out_bytes;
  if (!launch.split && !dense) {
    device_->note(cudaMemcpy2DAsync(out, out_bytes,
                                    partials + static_cast<size_t>(launch.first_token) * row_bytes,
                                    row_bytes, row_bytes, static_cast<size_t>(launch.num_tokens),
                                    cudaMemcpyDeviceToDevice, stream),
                  "attention output");
  }
  if (launch.split) {
    MergeArgs merge;
    merge.dtype = group_.kv_dtype;
    merge.head_dim = shape_.head_dim;
    merge.num_q_heads = shape_.num_q_heads;
    merge.num_tokens = launch.num_tokens;
    merge.token_begin = at<int32_t>(launch.token_begin);
    merge.partial_out = block.partial_out;
    merge.partial_lse = block.partial_lse;
    merge.out = out;
    merge.out_row_stride = args.out_row_stride;
    merge.lse = lse;
    merge.overlap = true;
    device_->note(static_cast<cudaError_t>(flashinfer::launch_merge(merge, stream)), "merge");
  } else if (lse != nullptr) {
    device_->note(static_cast<cudaError_t>(flashinfer::launch_natural_lse(
                      lse, int64_t{launch.num_tokens} * shape_.num_q_heads, stream)),
                  "natural LSE");
  }
}

void FlashinferBackend::run_fa3(const LayerArgs& layer,
                                const Fa3Plan& plan,
                                Fa3Keys keys,
                                cudaStream_t stream) {
  const bool ragged = keys == Fa3Keys::kRagged;
  const cudaError_t error =
      static_cast<cudaError_t>(ragged ? kernels_.ragged(layer.own, plan, stream)
                                      : kernels_.paged(layer.paged, plan, stream));
  device_->note(error, "FlashInfer FA3");
}

// FA3 writes LSE in base 2.
void FlashinferBackend::finish_fa3(const AttentionArgs& args, const Plan& plan) {
  if (args.lse == nullptr) return;
  for (size_t i = 0; i < plan.num_fa3_launches; ++i) {
    const Fa3Launch& launch = plan.fa3[i];
    const int64_t first = int64_t{launch.first_token} * shape_.num_q_heads;
    const int64_t count = int64_t{launch.num_tokens} * shape_.num_q_heads;
    device_->note(static_cast<cudaError_t>(
                      flashinfer::launch_natural_lse(args.lse + first, count, device_->stream())),
                  "natural LSE");
  }
}

void FlashinferImpl::forward(const AttentionInput& in, const AttentionMetadata& metadata) {
  const AttentionRequirements& group = backend_->group();
  TENON_CHECK(in.q.dtype == group.q_dtype && in.out.dtype == group.q_dtype);
  const KvView& kv = params_.kv;
  AttentionArgs args;
  args.q = in.q.data;
  args.q_row_stride = in.q.stride[0];
  args.out = in.out.data;
  args.out_row_stride = in.out.stride[0];
  args.lse = in.lse.empty() ? nullptr : in.lse.data();
  auto* const base = static_cast<std::byte*>(kv.base);
  args.kv.k = base;
  args.kv.v = base + dtype_bytes(kv.dtype, kv.v_offset);
  args.kv.page_stride = kv.block_stride;
  args.kv.head_stride = kv.head_stride;
  args.kv.token_stride = kv.token_stride;
  args.kv.page_size = kv.block_size;
  args.kv.num_kv_heads = kv.num_kv_heads;
  args.num_q_heads = group.num_q_heads;
  args.scale = params_.scale * kv.scales.k;
  args.v_scale = kv.scales.v;

  LayerArgs layer{args, args};
  TENON_CHECK_EQ(in.k.stride[0], in.v.stride[0]);
  layer.own.kv.k = in.k.data;
  layer.own.kv.v = in.v.data;
  layer.own.kv.token_stride = in.k.stride[0];
  layer.own.kv.head_stride = group.head_dim_qk;
  layer.own.scale = params_.scale;
  layer.own.v_scale = 1.0F;  // the step's own are not as stored
  backend_->run(layer, static_cast<const FlashinferMetadata&>(metadata).plan);
}

}  // namespace

std::unique_ptr<AttentionBackend> make_flashinfer_attention(const BackendContext& context) {
  return std::make_unique<FlashinferBackend>(context);
}

}  // namespace tenon
