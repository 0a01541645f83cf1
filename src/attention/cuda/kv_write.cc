#include "attention/cuda/kv_write.h"

#include "attention/cuda/kv_write_kernel.h"
#include "base/check.h"

namespace tenon {
namespace {

bool is_half(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16;
}

bool is_cell(DType dtype) {
  return is_half(dtype) || dtype == DType::kF8E4M3 || dtype == DType::kI8;
}

KvWriteArgs common_args(const KvView& kv,
                        const HeadScales& scales,
                        const TensorView& k,
                        const TensorView& v,
                        std::span<const int64_t> slots) {
  TENON_CHECK(is_half(k.dtype) && k.dtype == v.dtype);
  TENON_CHECK(is_cell(kv.dtype));
  // Scales by head lie on the host in the view; the kernel needs them on the device.
  TENON_CHECK(kv.scales.k_heads.empty() || scales.k != nullptr);
  TENON_CHECK(kv.scales.v_heads.empty() || scales.v != nullptr);
  TENON_CHECK_EQ(k.rows(), static_cast<int64_t>(slots.size()));
  TENON_CHECK_EQ(v.rows(), k.rows());
  TENON_CHECK_EQ(k.shape[1], int64_t{kv.num_kv_heads} * kv.head_dim_k);
  TENON_CHECK_EQ(v.shape[1], int64_t{kv.num_kv_heads} * kv.head_dim_v);
  TENON_CHECK_EQ(k.stride[1], 1);
  TENON_CHECK_EQ(v.stride[1], 1);
  // The kernel divides slots by the block size in 32 bits.
  TENON_CHECK_LT(kv.num_blocks * kv.block_size, int64_t{1} << 32);
  KvWriteArgs args;
  args.k = k.data;
  args.v = v.data;
  args.k_stride = k.stride[0];
  args.v_stride = v.stride[0];
  args.slots = slots.data();
  args.cache = kv.base;
  args.block_stride = kv.block_stride;
  args.head_stride = kv.head_stride;
  args.token_stride = kv.token_stride;
  args.v_offset = kv.v_offset;
  args.token_scale_offset = kv.token_scale_offset;
  args.swizzle_piece = kv.swizzled ? static_cast<int32_t>(kv.swizzle_piece()) : 0;
  args.k_scale = kv.scales.k;
  args.v_scale = kv.scales.v;
  args.k_head_scales = scales.k;
  args.v_head_scales = scales.v;
  args.tokens = static_cast<int32_t>(k.rows());
  args.kv_heads = kv.num_kv_heads;
  args.head_dim_k = kv.head_dim_k;
  args.head_dim_v = kv.head_dim_v;
  args.block_size = kv.block_size;
  args.dtype = k.dtype;
  args.cache_dtype = kv.dtype;
  return args;
}

}  // namespace

void write_kv_on_gpu(CudaDevice* device,
                     const KvView& kv,
                     const TensorView& k,
                     const TensorView& v,
                     std::span<const int64_t> slots,
                     const HeadScales& scales) {
  launch_kv_write(common_args(kv, scales, k, v, slots), device->stream());
  device->note(cudaGetLastError(), "write_kv");
}

void rope_and_write_kv_on_gpu(CudaDevice* device,
                              const KvView& kv,
                              const AttentionInput& in,
                              std::span<const int64_t> slots,
                              const RopeInput& rope,
                              const HeadScales& scales) {
  KvWriteArgs args = common_args(kv, scales, in.k, in.v, slots);
  TENON_CHECK(in.q.dtype == in.k.dtype);
  TENON_CHECK_EQ(in.q.rows(), in.k.rows());
  TENON_CHECK_EQ(in.q.shape[1] % kv.head_dim_k, 0);
  TENON_CHECK_EQ(in.q.stride[1], 1);
  TENON_CHECK_EQ(rope.positions.size(), slots.size());
  TENON_CHECK_LE(rope.table.rotary_dim, kv.head_dim_k);
  args.q = in.q.data;
  args.q_stride = in.q.stride[0];
  args.q_heads = static_cast<int32_t>(in.q.shape[1] / kv.head_dim_k);
  args.positions = rope.positions.data();
  args.cos = rope.table.cos.data();
  args.sin = rope.table.sin.data();
  args.rotary_dim = rope.table.rotary_dim;
  args.interleaved = rope.table.interleaved;
  launch_kv_write(args, device->stream());
  device->note(cudaGetLastError(), "rope_and_write_kv");
}

}  // namespace tenon
