// The end of cascade attention: a token's partial results over disjoint ranges of its keys become
// its output, weighted by their log-sum-exps. All in f32; an empty range has LSE -inf and changes
// nothing.
//
// Ownership:     everything is borrowed; device memory must live until the launch has finished.
// Thread safety: free functions without state.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tenon::flash {

// Levels of the prefix tree that a row is in at most.
inline constexpr int32_t kMaxPrefixLevels = 4;

// A token's partial rows of one level: that of piece p, KV head h and head r of its group is
// first_row + (p * num_kv_heads + h) * tile_rows + r.
struct alignas(16) MergePart {
  int32_t first_row;
  int32_t tile_rows;
  int32_t pieces;
  int32_t reserved;
};

// Device format.
struct alignas(16) MergeToken {
  int32_t token;  // of the step
  int32_t num_parts;
  int32_t reserved[2];
  MergePart parts[kMaxPrefixLevels];
};

// Device pointers.
struct MergeParams {
  const MergeToken* tokens = nullptr;
  const int32_t* num_tokens = nullptr;
  const float* prefix_out = nullptr;  // [partial rows, head_dim]
  const float* prefix_lse = nullptr;  // [partial rows], natural logarithm
  const float* suffix_out = nullptr;  // [num_tokens * num_q_heads, head_dim]
  const float* suffix_lse = nullptr;  // [num_tokens * num_q_heads]
  void* out = nullptr;                // [T, num_q_heads * head_dim]
  int64_t out_stride = 0;
  float* lse = nullptr;  // [T, num_q_heads]; null: not wanted
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;  // a multiple of 8
  bool bf16 = true;
  int32_t max_tokens = 0;  // the grid is made for
};

cudaError_t launch_cascade_merge(const MergeParams& params, cudaStream_t stream);

}  // namespace tenon::flash
