// The SIMD kernels of the `cpu` backend, one set per instruction set, chosen at run time.
//
// Arithmetic order, the same whoever asks (a decode row, a prefill tile, one thread or many), so
// that the bits of one row's output depend on nothing else in the batch:
//   - keys go in tiles of kTileKeys at absolute positions; online softmax once a tile;
//   - tiles of one segment of kSegmentKeys (absolute, too) form one state; states merge in
//   ascending order;
//   - q . k sums feature i into lane i % lanes, then folds neighbouring lanes pairwise.
// Invisible keys are left out, never multiplied by zero.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "kv_cache/layout.h"

namespace tenon::cpu_attention {

inline constexpr int32_t kTileKeys =
    64;  // K and V tiles of head_dim 64 fit the first-level cache in turn
inline constexpr int32_t kSegmentKeys =
    512;  // unit of split-KV: fine enough to balance 2k keys over threads
inline constexpr int32_t kDimPadding = 16;  // widest vector, in floats
inline constexpr int32_t kRowPadding = 4;   // rows the score kernel takes at once
// What a kF8E4M3 cell is too small by once loaded: its bits are taken for those of an f16.
inline constexpr float kF8Factor = 256.0F;
inline constexpr int32_t kNoWindow = std::numeric_limits<int32_t>::max();

// Unnormalised softmax of some rows over some keys. Rows that saw no key have sum 0.
struct SoftmaxState {
  float* acc = nullptr;  // [rows, padded dim_v]
  float* max = nullptr;  // [rows]
  float* sum = nullptr;  // [rows]
};

// Some KV heads of one block table, for some queries. Tile rows are (query, head of the group),
// query-major; the rows of the task's KV heads follow each other in steps of row_stride.
struct HeadTask {
  const KvView* kv = nullptr;
  const int32_t* pages = nullptr;      // block ids from key 0 on
  int32_t kv_head = 0;                 // the first
  int32_t num_heads = 1;               // KV heads; several walk through the keys together, because
                                       // their cells are neighbours in memory. One if `packed`
  int32_t group = 1;                   // query heads of one KV head
  int32_t rows = 0;                    // queries * group
  int32_t row_stride = 0;              // rows of one KV head in queries and states
  const int32_t* positions = nullptr;  // [queries], ascending: where each query stands in its row
  int32_t key_end = 0;                 // first key that does not concern the task
  int32_t window = kNoWindow;
  bool causal = true;
  bool packed = false;  // many rows: transpose K once a tile; false: dot products on K as it lies
  float soft_cap = 0.0F;
  const float* slopes = nullptr;  // ALiBi's, of the query heads from kv_head * group on; null: off

  [[nodiscard]] int32_t position(int32_t row) const { return positions[row / group]; }
  // Keys [begin, end) are visible to tile row `row`.
  [[nodiscard]] int32_t visible_begin(int32_t row) const {
    return window == kNoWindow || position(row) < window ? 0 : position(row) - window + 1;
  }
  [[nodiscard]] int32_t visible_end(int32_t row) const {
    return causal && position(row) + 1 < key_end ? position(row) + 1 : key_end;
  }
};

// Working memory of one thread. R rows: those of all of a task's KV heads.
struct Scratch {
  float* q = nullptr;             // [R, padded dim_k]: scaled queries, zero in the padding
  float* scores = nullptr;        // [padded rows of one head, kTileKeys]
  float* alpha = nullptr;         // [padded rows of one head]
  float* tile = nullptr;          // [kTileKeys, padded max(dim_k, dim_v)]
  float* k_columns = nullptr;     // [padded dim_k, kTileKeys]
  float* token_scales = nullptr;  // [2, kTileKeys] of K, then V
  int32_t* positions = nullptr;   // [queries]
  SoftmaxState total;             // [R]
  SoftmaxState part;              // [R]
};

struct Kernels {
  std::string_view isa;
  // Goes on with `state` over the visible keys among [begin, end); `fresh`: from nothing. Requires:
  // begin on a tile boundary, at least one row.
  void (*attend)(const HeadTask& task,
                 int32_t begin,
                 int32_t end,
                 bool fresh,
                 const Scratch& scratch,
                 const SoftmaxState& state);
  // total := total merged with part, for `rows` rows of `dim` padded features.
  void (*merge)(int32_t rows, int32_t dim, const SoftmaxState& total, const SoftmaxState& part);
  // state := that of `rows` rows that saw nothing.
  void (*clear)(int32_t rows, int32_t dim, const SoftmaxState& state);
  // to := from, for `rows` rows of `dim` padded features.
  void (*copy)(int32_t rows, int32_t dim, const SoftmaxState& from, const SoftmaxState& to);
  // dst[i] = src[i] * scale.
  void (*scale)(const float* src, float scale, int32_t count, float* dst);
  // Stores src[i] / scale as `dtype`. With kI8, as integers of at most 127 and the scale that takes
  // in *token_scale: quotient * (127 / largest), rounded to nearest even.
  void (*store_cells)(
      const float* src, float scale, int32_t count, DType dtype, void* dst, float* token_scale);
};

// isa: "auto" (the best this CPU has), "portable", "avx2", "avx512". nullptr when it is unknown or
// this CPU lacks it.
[[nodiscard]] const Kernels* find_kernels(std::string_view isa);
// What this CPU has, best first.
[[nodiscard]] std::vector<std::string> available_isas();

}  // namespace tenon::cpu_attention
