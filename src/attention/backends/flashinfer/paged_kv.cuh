// FlashInfer's view of pages from Tenon's. Included by fa2.cuh and decode.cuh.
#pragma once

#include <flashinfer/page.cuh>

#include "attention/backends/flashinfer/kernels.h"

namespace tenon::flashinfer {
namespace fi = ::flashinfer;

template <typename T, int kHeadDim>
fi::paged_kv_t<T, int32_t> make_paged_kv(const PagedKv& kv, const BlockPlan& plan) {
  // Order of the strides: page, token, head.
  const int64_t strides[3] = {kv.page_stride, kv.token_stride, kv.head_stride};
  return fi::paged_kv_t<T, int32_t>(
      static_cast<uint32_t>(kv.num_kv_heads), static_cast<uint32_t>(kv.page_size), kHeadDim,
      static_cast<uint32_t>(plan.num_rows), fi::QKVLayout::kNHD, static_cast<T*>(kv.k),
      static_cast<T*>(kv.v), strides, const_cast<int32_t*>(plan.page_indices),
      const_cast<int32_t*>(plan.page_indptr), const_cast<int32_t*>(plan.last_page_len));
}

}  // namespace tenon::flashinfer
