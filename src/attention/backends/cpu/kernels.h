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
inline constexpr int32_t kNoWindow = std::numeric_limits<int32_t>::max();

// Unnormalised softmax of some rows over some keys. Rows that saw no key have sum 0.
struct SoftmaxState {
  float* acc = nullptr;  // [rows, padded dim_v]
  float* max = nullptr;  // [rows]
  float* sum = nullptr;  // [rows]
};

// One KV head of one batch row, for a run of its queries. Tile rows are (query, head of the group),
// query-major.
struct HeadTask {
  const KvView* kv = nullptr;
  const int32_t* pages = nullptr;  // block ids of the batch row
  int32_t kv_head = 0;
  int32_t group = 1;           // query heads of the KV head
  int32_t rows = 0;            // queries * group
  int32_t first_position = 0;  // key position of the first query
  int32_t seq_len = 0;
  int32_t window = kNoWindow;
  bool causal = true;
  bool packed = false;  // many rows: transpose K once a tile; false: dot products on K as it lies
  float soft_cap = 0.0F;

  // Keys [begin, end) are visible to tile row `row`.
  [[nodiscard]] int32_t visible_begin(int32_t row) const {
    const int32_t position = first_position + row / group;
    return window == kNoWindow || position < window ? 0 : position - window + 1;
  }
  [[nodiscard]] int32_t visible_end(int32_t row) const {
    const int32_t position = first_position + row / group;
    return causal ? (position + 1 < seq_len ? position + 1 : seq_len) : seq_len;
  }
};

// Working memory of one thread.
struct Scratch {
  float* q = nullptr;          // [padded rows, padded dim_k]: scaled queries, zero in the padding
  float* scores = nullptr;     // [padded rows, kTileKeys]
  float* alpha = nullptr;      // [padded rows]
  float* tile = nullptr;       // [kTileKeys, padded max(dim_k, dim_v)]
  float* k_columns = nullptr;  // [padded dim_k, kTileKeys]
  SoftmaxState total;
  SoftmaxState part;
};

struct Kernels {
  std::string_view isa;
  // state := softmax over the visible keys among [begin, end). Requires: begin on a tile boundary,
  // at least one row.
  void (*attend)(const HeadTask& task,
                 int32_t begin,
                 int32_t end,
                 const Scratch& scratch,
                 const SoftmaxState& state);
  // total := total merged with part, for `rows` rows of `dim` padded features.
  void (*merge)(int32_t rows, int32_t dim, const SoftmaxState& total, const SoftmaxState& part);
  // dst[i] = src[i] * scale.
  void (*scale)(const float* src, float scale, int32_t count, float* dst);
  // Stores src[i] / scale as `dtype`.
  void (*store_cells)(const float* src, float scale, int32_t count, DType dtype, void* dst);
};

// isa: "auto" (the best this CPU has), "portable", "avx2", "avx512". nullptr when it is unknown or
// this CPU lacks it.
[[nodiscard]] const Kernels* find_kernels(std::string_view isa);
// What this CPU has, best first.
[[nodiscard]] std::vector<std::string> available_isas();

}  // namespace tenon::cpu_attention
