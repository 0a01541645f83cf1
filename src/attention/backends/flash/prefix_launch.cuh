// From PrefixParams to a launch of one instantiation. Included by the units that instantiate.
#pragma once

#include "attention/backends/flash/prefill_launch.cuh"
#include "attention/backends/flash/prefix.h"

namespace tenon::flash {

// The kernel's keys of a block; each lane of a gather follows a power of two of them.
[[nodiscard]] constexpr int32_t prefix_keys(int32_t padded_dim, PrefillCopy copy) {
  const int32_t keys = prefill_block_keys(padded_dim);
  return copy == PrefillCopy::kGather ? std::min(keys, 128) : keys;
}

template <int kDim, bool kBf16, PrefillCopy kCopy>
cudaError_t launch_prefix_as(const PrefixParams& in, cudaStream_t stream) {
  using Traits = PrefillTraits<kDim, prefix_keys(kDim, kCopy), prefill_consumers(kDim), kBf16,
                               kCopy, false, Cells::kHalf, true, true, 2, true>;
  const PrefillShape& shape = in.shape;
  PrefillKernelParams out{};
  out.tiles = reinterpret_cast<const PrefillTile*>(in.tiles);
  out.page_indices = in.page_indices;
  out.counters = in.counters;
  out.heads_per_tile = 1;
  out.group = shape.num_q_heads / shape.num_kv_heads;
  out.num_q_heads = shape.num_q_heads;
  out.head_dim = shape.head_dim;
  out.page_size = shape.page_size;
  out.box_keys = Traits::kGather ? 0 : prefill_box_keys(shape.page_size, Traits::kKeys);
  out.scale = in.scale;
  out.scale_log2 = in.scale * 1.4426950408889634F;
  out.out_scale = in.out_scale;
  out.pages = in.pages;
  out.prefix = in.arrays;

  const auto dim = static_cast<uint64_t>(shape.head_dim);
  TensorMapWriter writer;
  writer.write(
      out.q_map,
      {in.q,
       3,
       {dim, static_cast<uint64_t>(shape.num_q_heads), static_cast<uint64_t>(in.num_tokens)},
       {shape.head_dim, in.q_stride},
       {64, static_cast<uint32_t>(out.group), 1}},
      shape.bf16);
  if constexpr (!Traits::kGather) write_page_maps<Traits>(shape, in.pages, writer, out);
  if (writer.error() != cudaSuccess) return writer.error();
  return start_prefill_kernel<Traits>(out, in.blocks, stream);
}

// The instantiation for a padded head size; one translation unit each.
template <int kDim>
cudaError_t launch_prefix_dim(const PrefixParams& params, cudaStream_t stream);

template <int kDim, bool kBf16>
cudaError_t launch_prefix_type(const PrefixParams& params, cudaStream_t stream) {
  if (prefill_box_keys(params.shape.page_size, prefill_block_keys(kDim)) == 0) {
    return launch_prefix_as<kDim, kBf16, PrefillCopy::kGather>(params, stream);
  }
  if constexpr (kDim % 64 == 0) {
    if (params.shape.head_dim == kDim && prefill_pages_wide(params.pages)) {
      return launch_prefix_as<kDim, kBf16, PrefillCopy::kWide>(params, stream);
    }
  }
  return launch_prefix_as<kDim, kBf16, PrefillCopy::kBulk>(params, stream);
}

// Defines launch_prefix_dim<DIM>.
#define TENON_FLASH_PREFIX_DIM(DIM)                                                     \
  template <>                                                                           \
  cudaError_t launch_prefix_dim<DIM>(const PrefixParams& params, cudaStream_t stream) { \
    return params.shape.bf16 ? launch_prefix_type<DIM, true>(params, stream)            \
                             : launch_prefix_type<DIM, false>(params, stream);          \
  }

}  // namespace tenon::flash
