// The plan of one step: which rows go to which FlashInfer kernel, and the tables those kernels
// read.
//
// FlashInfer's own planners are replaced: its FA3 planner takes up to 2 ms, all of them copy from
// one pinned buffer that a second plan may overwrite too early, and they query the driver each
// time. Here a plan is written in O(rows + tiles + pages) into memory the caller provides, in one
// piece, to be copied to one device buffer of the same layout. For a graph the layout and every
// launch depend on the number of rows alone.
//
// Ownership:     a Plan owns nothing on the device; offsets are into the plan buffer.
// Thread safety: plain data and pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "attention/backends/flashinfer/kernels.h"

namespace tenon::flashinfer {

// Keys that a block of the FA2 template takes at a time; chunks of split rows are multiples of it.
inline constexpr int32_t kKeyTile = 128;

struct PlanShape {
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t element_bytes = 2;
  int32_t block_size = 0;
  int32_t num_sms = 0;
  bool cuda_core = false;  // the CUDA-core decode kernel serves this group
  bool fa3 = false;        // the Hopper kernels serve this head size and element type
  AttentionSplit split = AttentionSplit::kAuto;
  int32_t max_fa3_ahead = 64;  // SMs that prefill may keep from concurrent decode

  [[nodiscard]] int32_t group() const { return num_q_heads / num_kv_heads; }
  [[nodiscard]] int64_t key_bytes() const { return int64_t{2} * head_dim * element_bytes; }
};

// One launch over rows [first_row, first_row + num_rows) in blocks of (query tile, chunk of keys).
struct BlockLaunch {
  bool cuda_core = false;
  int32_t tile = 0;  // FA2: packed query rows
  int32_t first_row = 0;
  int32_t num_rows = 0;
  int32_t first_token = 0;
  int32_t num_tokens = 0;
  bool split = false;      // partials and a merge
  int32_t chunk_keys = 0;  // per block at most
  int32_t num_blocks = 0;  // of the grid, padding included
  // Offsets in bytes.
  int64_t block_rows = 0, block_tiles = 0, block_chunks = 0, block_valid = 0, chunk_size = 0;
  int64_t out_indptr = 0, token_begin = 0;
};

struct Fa3Launch {
  Fa3Keys keys = Fa3Keys::kPaged;
  int32_t first_row = 0;
  int32_t num_rows = 0;
  int32_t first_token = 0;
  int32_t num_tokens = 0;
  int32_t num_tiles = 0;
  int32_t heads_per_tile = 0;
  int64_t tiles = 0, counter = 0;  // offsets in bytes
};

struct Plan {
  static constexpr size_t kMaxBlockLaunches = 2;
  static constexpr size_t kMaxFa3Launches = 2;

  std::array<BlockLaunch, kMaxBlockLaunches> blocks;
  size_t num_block_launches = 0;
  std::array<Fa3Launch, kMaxFa3Launches> fa3;
  size_t num_fa3_launches = 0;
  // Blocks of FA3 to start ahead of concurrent decode, so that they keep their SMs; 0: none run
  // concurrently.
  int32_t fa3_ahead = 0;
  int32_t num_tokens = 0;
  int64_t q_indptr = 0, page_indptr = 0, last_page_len = 0, page_indices = 0;  // offsets in bytes
  int64_t bytes = 0;                                                           // of the plan buffer

  [[nodiscard]] std::string describe() const;
};

// How the keys of a launch's rows are cut.
struct Chunking {
  bool split = false;
  int32_t chunk_keys = 0;
  double seconds = 0;  // estimate of the launch, merge included
};
struct ChunkingRow {
  int32_t tiles = 0;
  int32_t q_len = 0;
  int32_t seq_len = 0;
};
// Blocks that run at once for each KV head.
[[nodiscard]] int32_t resident_blocks(const PlanShape& shape, bool cuda_core);
// The fastest by a model of the launch; split, all blocks run at once.
[[nodiscard]] Chunking choose_chunking(const PlanShape& shape,
                                       bool cuda_core,
                                       std::span<const ChunkingRow> rows);

// Worst case over all steps within the limits.
struct PlanCapacity {
  int64_t plan_bytes = 0;
  int64_t partials = 0;  // rows of [q heads * head size] elements and [q heads] floats
};
[[nodiscard]] PlanCapacity plan_capacity(const PlanShape& shape, const AttentionLimits& limits);

class Planner {
 public:
  Planner(const PlanShape& shape, const AttentionLimits& limits);

  // Writes the tables to `buffer` (plan_capacity bytes). Requires: a valid batch within the limits.
  // With `graph`: kFailedPrecondition when the rows' lengths differ so much that a launch without
  // the graph is clearly faster.
  Status plan(const BatchView& batch, const GraphBounds* graph, std::span<std::byte> buffer);
  [[nodiscard]] const Plan& result() const { return plan_; }

 private:
  struct Rows {
    int32_t begin = 0;
    int32_t end = 0;
    [[nodiscard]] bool empty() const { return begin == end; }
  };
  class Writer;

  Status plan_rows(const BatchView& batch, const GraphBounds* graph, Writer& writer);
  [[nodiscard]] bool fa3_is_faster(const BatchView& batch, Rows rows) const;
  Status add_blocks(const BatchView& batch, BlockLaunch launch, Writer& writer);
  Status add_decode(const BatchView& batch, Rows rows, const GraphBounds* graph, Writer& writer);
  Status add_prefill(const BatchView& batch, Rows rows, Writer& writer);
  void add_fa3(const BatchView& batch, Rows rows, Fa3Keys keys, Writer& writer);
  void gather(const BatchView& batch, const BlockLaunch& launch);

  const PlanShape shape_;
  Plan plan_;
  std::vector<ChunkingRow> rows_;  // of the launch being planned
  std::vector<ChunkingRow> graph_rows_;
  std::vector<int32_t> order_;  // rows, most keys first
};

}  // namespace tenon::flashinfer
