// From PrefillParams to a launch of one instantiation. Included by the units that instantiate.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>

#include "attention/backends/flash/prefill_config.h"
#include "attention/backends/flash/prefill_kernel.cuh"

namespace tenon::flash {

// Writes tensor maps; keeps the first error.
class TensorMapWriter {
 public:
  TensorMapWriter();
  // A tensor of 16-bit numbers: sizes[0] of stride 1, then sizes[i] of strides[i - 1] elements.
  struct Tensor {
    const void* base;
    int dims;
    uint64_t sizes[5];
    int64_t strides[4];
    uint32_t box[5];
  };
  // `swizzles`: the copy swizzles (128 bytes), or else memory is as it shall be.
  void write(CUtensorMap& map, const Tensor& tensor, bool bf16, bool swizzles = true);
  [[nodiscard]] cudaError_t error() const { return error_; }

 private:
  decltype(&cuTensorMapEncodeTiled) encode_ = nullptr;
  cudaError_t error_ = cudaSuccess;
};

// The maps of a layer's pages, and what the kernel has to know of them.
template <class Traits>
void write_page_maps(const PrefillShape& shape,
                     const PrefillPages& in,
                     TensorMapWriter& writer,
                     PrefillKernelParams& out) {
  const auto box_keys = static_cast<uint32_t>(out.box_keys);
  TensorMapWriter::Tensor pages;
  if constexpr (Traits::kWide) {
    out.page_step = static_cast<int32_t>(in.page_stride / in.head_stride);
    pages = {in.base,
             5,
             {64, 8, Traits::kSlices, static_cast<uint64_t>(shape.page_size / 8),
              static_cast<uint64_t>(in.num_pages) * static_cast<uint64_t>(out.page_step)},
             {in.token_stride, 64, 8 * in.token_stride, in.head_stride},
             {64, 8, Traits::kSlices, box_keys / 8, 1}};
  } else {
    pages = {in.base,
             4,
             {static_cast<uint64_t>(shape.head_dim), static_cast<uint64_t>(shape.page_size),
              static_cast<uint64_t>(shape.num_kv_heads), static_cast<uint64_t>(in.num_pages)},
             {in.token_stride, in.head_stride, in.page_stride},
             {64, box_keys, 1, 1}};
  }
  writer.write(out.page_k_map, pages, shape.bf16, !in.swizzled);
  pages.base = static_cast<const uint16_t*>(in.base) + in.v_offset;
  writer.write(out.page_v_map, pages, shape.bf16, !in.swizzled);
}

// The kernel with `blocks` blocks at most, 0: one a multiprocessor.
template <class Traits>
cudaError_t start_prefill_kernel(const PrefillKernelParams& params,
                                 int32_t blocks,
                                 cudaStream_t stream) {
  int device = 0;
  int multiprocessors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  }
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(prefill_kernel<Traits>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSharedBytes);
  }
  if (error != cudaSuccess) return error;
  blocks = blocks > 0 ? std::min(multiprocessors, blocks) : multiprocessors;
  prefill_kernel<Traits>
      <<<static_cast<unsigned>(blocks), Traits::kThreads, Traits::kSharedBytes, stream>>>(params);
  return cudaGetLastError();
}

template <class Traits>
cudaError_t launch_prefill_as(const PrefillParams& in, cudaStream_t stream) {
  PrefillKernelParams out{};
  const PrefillShape& shape = in.shape;
  const int32_t pack = prefill_pack(shape);
  out.tiles = in.tiles;
  out.page_indices = in.page_indices;
  out.counters = in.counters;
  out.num_items = in.plan.num_tiles * in.plan.heads_per_tile;
  out.heads_per_tile = in.plan.heads_per_tile;
  out.pack_shift = std::countr_zero(static_cast<uint32_t>(pack));
  out.group = shape.num_q_heads / shape.num_kv_heads;
  out.num_q_heads = shape.num_q_heads;
  out.head_dim = shape.head_dim;
  out.page_size = shape.page_size;
  out.box_keys = Traits::kGather ? 0 : prefill_box_keys(shape.page_size, Traits::kKeys);
  out.causal = in.causal ? 1 : 0;
  out.scale = in.scale;
  out.scale_log2 = in.scale * 1.4426950408889634F;
  out.out = in.out;
  out.out_stride = in.out_stride;
  out.lse = in.lse;
  out.extras = in.extras;
  out.scale_log2 *= in.pages.k_scale;
  out.out_scale = in.pages.v_scale;
  out.k = in.k;
  out.v = in.v;
  out.k_stride = in.k_stride;
  out.v_stride = in.v_stride;
  out.pages = in.pages;

  const auto dim = static_cast<uint64_t>(shape.head_dim);
  const auto tokens = static_cast<uint64_t>(in.num_tokens);
  const auto q_heads = static_cast<uint64_t>(shape.num_q_heads);
  const auto kv_heads = static_cast<uint64_t>(shape.num_kv_heads);
  const auto upack = static_cast<uint32_t>(pack);
  TensorMapWriter writer;
  writer.write(out.q_map,
               {in.q,
                3,
                {dim, q_heads, tokens},
                {shape.head_dim, in.q_stride},
                {64, upack, Traits::kRows / upack}},
               shape.bf16);
  if constexpr (!Traits::kGather) {
    if (in.k != nullptr) {
      writer.write(
          out.k_map,
          {in.k, 3, {dim, kv_heads, tokens}, {shape.head_dim, in.k_stride}, {64, 1, Traits::kKeys}},
          shape.bf16);
      writer.write(
          out.v_map,
          {in.v, 3, {dim, kv_heads, tokens}, {shape.head_dim, in.v_stride}, {64, 1, Traits::kKeys}},
          shape.bf16);
    }
    if (in.pages.base != nullptr) write_page_maps<Traits>(shape, in.pages, writer, out);
  }
  if (writer.error() != cudaSuccess) return writer.error();

  return start_prefill_kernel<Traits>(
      out, in.max_blocks > 0 ? std::min(in.max_blocks, out.num_items) : out.num_items, stream);
}

// Whether pages and heads can be counted as one dimension, so that a tensor map is left for the
// slices of a head.
inline bool prefill_pages_wide(const PrefillPages& pages) {
  return pages.base != nullptr && pages.head_stride > 0 &&
         pages.page_stride % pages.head_stride == 0 &&
         pages.page_stride / pages.head_stride <= INT32_MAX / std::max<int64_t>(pages.num_pages, 1);
}

// The instantiation for a padded head size; one translation unit each.
template <int kDim>
cudaError_t launch_prefill_dim(const PrefillParams& params, cudaStream_t stream);

template <int kDim, bool kBf16>
cudaError_t launch_prefill_extras(const PrefillParams& params, cudaStream_t stream) {
  constexpr int kKeys = prefill_block_keys_extras(kDim);
  constexpr int kConsumers = prefill_consumers(kDim);
  const bool bulk =
      params.pages.base == nullptr || prefill_box_keys(params.shape.page_size, kKeys) != 0;
  if (bulk) {
    return launch_prefill_as<
        PrefillTraits<kDim, kKeys, kConsumers, kBf16, PrefillCopy::kBulk, true>>(params, stream);
  }
  return launch_prefill_as<
      PrefillTraits<kDim, kKeys, kConsumers, kBf16, PrefillCopy::kGather, true>>(params, stream);
}

template <int kDim, bool kBf16, Cells kCells>
cudaError_t launch_prefill_cells(const PrefillParams& params, cudaStream_t stream) {
  return launch_prefill_as<
      PrefillTraits<kDim, prefill_block_keys_quantised(kDim), prefill_consumers(kDim), kBf16,
                    PrefillCopy::kConvert, true, kCells>>(params, stream);
}

template <int kDim, bool kBf16>
cudaError_t launch_prefill_type(const PrefillParams& params, cudaStream_t stream) {
  constexpr int kKeys = prefill_block_keys(kDim);
  constexpr int kConsumers = prefill_consumers(kDim);
  switch (params.pages.cells) {
    case Cells::kF8: return launch_prefill_cells<kDim, kBf16, Cells::kF8>(params, stream);
    case Cells::kI8: return launch_prefill_cells<kDim, kBf16, Cells::kI8>(params, stream);
    case Cells::kHalf: break;
  }
  if (params.has_extras || params.pages.k_scale != 1.0F || params.pages.v_scale != 1.0F) {
    return launch_prefill_extras<kDim, kBf16>(params, stream);
  }
  const bool bulk =
      params.pages.base == nullptr || prefill_box_keys(params.shape.page_size, kKeys) != 0;
  if (!bulk) {
    constexpr int kGatherKeys = std::min(kKeys, 128);  // each lane follows a power of two of keys
    return launch_prefill_as<
        PrefillTraits<kDim, kGatherKeys, kConsumers, kBf16, PrefillCopy::kGather>>(params, stream);
  }
  if constexpr (kDim % 64 == 0) {
    if (!params.plan.any_ragged && params.shape.head_dim == kDim &&
        prefill_pages_wide(params.pages)) {
      return launch_prefill_as<PrefillTraits<kDim, kKeys, kConsumers, kBf16, PrefillCopy::kWide>>(
          params, stream);
    }
  }
  return launch_prefill_as<PrefillTraits<kDim, kKeys, kConsumers, kBf16, PrefillCopy::kBulk>>(
      params, stream);
}

// Defines launch_prefill_dim<DIM>.
#define TENON_FLASH_PREFILL_DIM(DIM)                                                      \
  template <>                                                                             \
  cudaError_t launch_prefill_dim<DIM>(const PrefillParams& params, cudaStream_t stream) { \
    return params.shape.bf16 ? launch_prefill_type<DIM, true>(params, stream)             \
                             : launch_prefill_type<DIM, false>(params, stream);           \
  }

}  // namespace tenon::flash
