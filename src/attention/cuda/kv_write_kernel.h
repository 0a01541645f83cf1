// The launcher behind kv_write.h, in plain pointers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "tensor/dtype.h"

namespace tenon {

struct KvWriteArgs {
  void* q = nullptr;  // rotated in place; unused without rotary_dim
  void* k = nullptr;  // rotated in place if there is a rotary_dim
  const void* v = nullptr;
  int64_t q_stride = 0, k_stride = 0, v_stride = 0;  // elements between tokens
  const int64_t* slots = nullptr;
  const int32_t* positions = nullptr;
  const float* cos = nullptr;  // [positions, rotary_dim / 2]
  const float* sin = nullptr;
  void* cache = nullptr;
  int64_t block_stride = 0, head_stride = 0, token_stride = 0, v_offset = 0;  // elements
  int64_t token_scale_offset = 0;  // bytes from a block's start; kI8 only
  int32_t swizzle_piece = 0;       // KvView::swizzle_piece(); 0: cells are not swizzled
  float k_scale = 1.0F, v_scale = 1.0F;
  const float* k_head_scales = nullptr;  // [kv_heads], instead of k_scale; null: none
  const float* v_head_scales = nullptr;
  int32_t tokens = 0;
  int32_t q_heads = 0, kv_heads = 0;
  int32_t head_dim_k = 0, head_dim_v = 0;
  int32_t rotary_dim = 0;  // 0: no RoPE
  int32_t block_size = 0;
  bool interleaved = false;
  DType dtype = DType::kBF16;        // of q, k, v
  DType cache_dtype = DType::kBF16;  // of the cache
};
// Whether all accesses can be of eight elements.
[[nodiscard]] bool kv_write_in_eights(const KvWriteArgs& args);

void launch_kv_write(const KvWriteArgs& args, cudaStream_t stream);
// Of it, caches of kI8: a scale for each token and head needs all of a head's values at once.
void launch_kv_write_i8(const KvWriteArgs& args, cudaStream_t stream);

}  // namespace tenon
