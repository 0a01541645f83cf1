// The prefix pass of cascade attention (FlashInfer, arXiv 2501.01005; Hydragen, arXiv 2402.05099):
// query tokens from anywhere in the batch against a range of pages that all of them see, without a
// mask. Its kernel is the prefill kernel (prefill_kernel.cuh) with other queries and results: a
// tile's tokens come from a list, and what it leaves are partial results in f32, which
// cascade_merge.h puts together with those of other ranges.
//
// Ownership:     everything is borrowed; device memory must live until the launch has finished.
// Thread safety: free functions without state.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "attention/backends/flash/prefill.h"

namespace tenon::flash {

// A work item: tokens of one KV head's group against some keys. Device format; the fields are where
// PrefillTile has its own.
struct alignas(16) PrefixTile {
  int32_t token_begin;  // in PrefixArrays::tokens
  int32_t num_tokens;
  int32_t num_keys;
  int32_t visible;     // num_keys
  int32_t page_begin;  // in page_indices; the keys begin with that page
  int32_t kv_head;
  int32_t first_row;  // of the partial results: (token, head of the group) pairs, token by token
  int32_t reserved;
};
static_assert(sizeof(PrefixTile) == sizeof(PrefillTile));

// Device memory of the pass.
struct PrefixArrays {
  const int32_t* num_tiles = nullptr;
  const int32_t* tokens = nullptr;
  float* out = nullptr;  // [rows, head_dim]
  float* lse = nullptr;  // [rows], natural logarithm
};

// Query rows (tokens times the group) of a tile, and the keys of one step of its pass.
[[nodiscard]] int32_t prefix_tile_rows(int32_t head_dim);
[[nodiscard]] int32_t prefix_block_keys(int32_t head_dim);

// Whether the shape is one that launch_prefix() takes.
[[nodiscard]] bool prefix_supports(const PrefillShape& shape);

// Fields as of PrefillParams.
struct PrefixParams {
  PrefillShape shape;
  float scale = 0.0F;
  float out_scale = 1.0F;  // of the partial results
  int32_t num_tokens = 0;
  const void* q = nullptr;
  int64_t q_stride = 0;
  PrefillPages pages;
  const PrefixTile* tiles = nullptr;
  const int32_t* page_indices = nullptr;
  PrefixArrays arrays;
  int32_t* counters = nullptr;
  int32_t blocks = 0;  // of the grid, at most one a multiprocessor; 0: as many
};

// Launches on `stream` of the current device; the number of tiles is read there. Returns the first
// error of the launch itself.
cudaError_t launch_prefix(const PrefixParams& params, cudaStream_t stream);

}  // namespace tenon::flash
