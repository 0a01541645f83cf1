// The FlashInfer kernels that the backend launches, as plain functions: this header and its callers
// need no CUDA compiler and none of FlashInfer's headers.
//
// Every combination of kernel, element type, head size and tile is an explicit instantiation in a
// unit of its own (fa2_*.cu, fa3_*.cu, decode_*.cu); find_*() are the lists of what there is. The
// launchers configure their kernel once and then only launch: no attribute or occupancy queries, no
// copies. FlashInfer's own planners and dispatchers are not used.
//
// All pointers are device memory. Ownership: none. Thread safety: the engine thread only.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

struct CUstream_st;

namespace tenon::flashinfer {

// What a launcher returns: a cudaError_t, 0 when the launch was taken.
using CudaError = int;
using Stream = CUstream_st*;

// The cells of a layer's pages. Strides in elements; V has the strides of K.
struct PagedKv {
  void* k = nullptr;
  void* v = nullptr;
  int64_t page_stride = 0;
  int64_t head_stride = 0;
  int64_t token_stride = 0;
  int32_t page_size = 0;
  int32_t num_kv_heads = 0;
};

// What all attention kernels take.
struct AttentionArgs {
  const void* q = nullptr;     // [tokens, q heads * head size]
  int64_t q_row_stride = 0;    // elements
  void* out = nullptr;         // [tokens, q heads * head size]
  int64_t out_row_stride = 0;  // elements; only FA3 writes rows that are not dense
  float* lse = nullptr;        // [tokens, q heads], base 2; null: not wanted
  PagedKv kv;
  int32_t num_q_heads = 0;
  float scale = 0.0F;    // applied to q . k
  float v_scale = 1.0F;  // applied to v
};

// Work of the FA2 template and of the CUDA-core decode kernel: blocks of (row, query tile, chunk of
// keys), for every KV head. `first_row` has been added to the row arrays by the caller.
struct BlockPlan {
  const int32_t* block_rows = nullptr;     // [blocks] row of the launch
  const int32_t* block_tiles = nullptr;    // [blocks] query tile (FA2 only)
  const int32_t* block_chunks = nullptr;   // [blocks] chunk of keys
  const bool* block_valid = nullptr;       // [blocks]
  const int32_t* chunk_size = nullptr;     // keys, one number
  const int32_t* q_indptr = nullptr;       // [rows + 1] tokens
  const int32_t* out_indptr = nullptr;     // [rows + 1] rows of the partials; null: not split
  const int32_t* page_indptr = nullptr;    // [rows + 1]
  const int32_t* last_page_len = nullptr;  // [rows]
  const int32_t* page_indices = nullptr;
  int32_t num_rows = 0;
  int32_t num_blocks = 0;        // of the grid: constant for a graph
  void* partial_out = nullptr;   // [partials, q heads * head size]; element type of `out`
  float* partial_lse = nullptr;  // [partials, q heads], base 2
};

using BlockKernel = CudaError (*)(const AttentionArgs&, const BlockPlan&, Stream);

// FA2 template: tile is 16, 64 or 128 rows of (token, head of the group). Null: not built.
BlockKernel find_fa2(DType dtype, int32_t head_dim, int32_t tile);
// Groups: query heads per KV head. Null: not built.
BlockKernel find_cuda_core_decode(DType dtype, int32_t head_dim, int32_t group);

// A tile of queries and the query heads [head_begin, head_begin + Fa3Plan::heads_per_tile). Device
// format, read with two loads.
struct alignas(16) Fa3Tile {
  int32_t tile = 0;
  int32_t head_begin = 0;
  int32_t q_begin = 0;   // token
  int32_t kv_begin = 0;  // paged: into page_indices; ragged: token
  int32_t q_len = 0;
  int32_t kv_len = 0;
  int32_t row = 0;
  int32_t reserved = 0;
};

// Work of the FA3 kernels: tiles of queries, those that share keys together and the heaviest first;
// the thread blocks draw from a common counter.
struct Fa3Plan {
  const Fa3Tile* tiles = nullptr;
  int32_t* counter = nullptr;  // 0; the last block sets it back to 0
  int32_t num_tiles = 0;
  int32_t heads_per_tile = 0;
  int32_t total_blocks = 0;               // of all launches that draw from this counter
  int32_t num_blocks = 0;                 // of this one
  int32_t num_tokens = 0;                 // of q (and of k and v when ragged)
  const int32_t* page_indices = nullptr;  // paged only
};

// Ragged: kv.k and kv.v are [tokens, kv heads * head size] with rows token_stride apart.
using Fa3Kernel = CudaError (*)(const AttentionArgs&, const Fa3Plan&, Stream);
enum class Fa3Keys : uint8_t { kPaged, kRagged };
Fa3Kernel find_fa3(DType dtype, int32_t head_dim, Fa3Keys keys);
// Query tokens of a tile of the Hopper kernel, which serves head size 128: at 64, with its three
// computing warpgroups, it lost single rows under the work scheduler used here.
inline constexpr int32_t kFa3Tile = 128;

// Partials to outputs.
struct MergeArgs {
  DType dtype = DType::kBF16;
  int32_t head_dim = 0;
  int32_t num_q_heads = 0;
  int32_t num_tokens = 0;
  const int32_t* token_begin = nullptr;  // [num_tokens + 1] first partial of a token
  const void* partial_out = nullptr;
  const float* partial_lse = nullptr;  // base 2
  void* out = nullptr;                 // row of the first token
  int64_t out_row_stride = 0;          // elements
  float* lse = nullptr;                // natural log; null: not wanted
  bool overlap = false;                // start before the kernel in front of it has ended
};
CudaError launch_merge(const MergeArgs& args, Stream stream);
// Base 2 to natural log, in place.
CudaError launch_natural_lse(float* lse, int64_t count, Stream stream);

}  // namespace tenon::flashinfer
