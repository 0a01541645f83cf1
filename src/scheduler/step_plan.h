// What one step does, in ids and lengths. Made by plan_step(), filled with block copies by
// Scheduler::apply(), carried out by the engine in this order:
//   1. swap_out copies (device -> host)
//   2. swap_in copies (host -> device)
//   3. rows: one forward pass, K and V of row tokens written to slot block * block_size + offset
//   4. sampling for the rows with `sample` set
// Steps are executed in the order they were applied, on one stream; "before" below means that
// order, not that anybody waits. A block that is swapped out has to be read before the rows of its
// own step run, because they may write to it; it may arrive on the host any time before the step is
// committed. There are no copy-on-write copies: a shared block is full and nothing is written to
// it.
//
// Ownership:     plain data; reuse one object so that planning does not allocate.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/block_copy.h"
#include "kv_cache/index/block_allocator.h"
#include "tenon/request.h"

namespace tenon {

// By shape, as attention sees a row.
enum class RowKind : uint8_t {
  kDecode,   // one token with context
  kExtend,   // several tokens with context: a later chunk, or a prompt after a prefix hit
  kPrefill,  // no context
};

struct PlanRow {
  RequestId id = 0;
  int32_t slot = 0;        // index of the request, stable while it lives; < Scheduler::num_slots()
  int32_t start = 0;       // position of the row's first token = its num_computed before apply()
  int32_t num_tokens = 0;  // tokens [start, start + num_tokens) are computed
  RowKind kind = RowKind::kDecode;
  bool sample = false;  // the row ends at the request's last token
  // The row's one token is pending: row `pending_row` of the plan of step `pending_step` samples
  // it. 0: all tokens of the row are known.
  StepId pending_step = 0;
  int32_t pending_row = 0;
};

struct Preemption {
  RequestId id = 0;
  int32_t slot = 0;
  bool swap = false;       // else recompute
  int32_t num_copies = 0;  // its share of swap_out_copies, in order
};

struct Admission {
  RequestId id = 0;
  int32_t slot = 0;
  bool from_swap = false;  // else from the waiting queue
  bool first = false;      // never admitted before
  int32_t num_cached = 0;  // tokens whose KV comes from the prefix index: num_hits * block_size
  int32_t num_hits = 0;    // its share of hit_blocks, in order
  int32_t num_new_blocks = 0;
  int32_t num_copies = 0;  // its share of swap_in_copies, in order
};

// Work memory of plan_step(), kept with the plan so that a reused one does not allocate.
struct PlanScratch {
  std::vector<int32_t> ref_deltas;  // by block; all zero between plans
  std::vector<int32_t> touched;     // blocks with a delta
};

struct StepPlan {
  StepId step = 0;
  std::vector<PlanRow>
      rows;  // decode, then extend (short before long), then prefill; at most one a request
  int32_t num_decode_rows = 0, num_extend_rows = 0, num_prefill_rows = 0;
  int32_t num_tokens = 0;  // of all rows
  std::vector<Preemption> preemptions;
  std::vector<Admission> admissions;
  std::vector<int32_t> hit_blocks;  // of all admissions, in order

  // Filled by Scheduler::apply().
  std::vector<BlockCopy> swap_out_copies;  // src: device block, dst: host block
  std::vector<BlockCopy> swap_in_copies;   // src: host block, dst: device block

  PlanScratch scratch;

  // Nothing to do at all. A plan without rows may still preempt, and then has to be applied and
  // committed.
  [[nodiscard]] bool empty() const { return rows.empty() && preemptions.empty(); }
};

// What came out for row i of a plan.
struct RowResult {
  int32_t token =
      -1;  // sampled token; -1: none (row without `sample`, or a request that only scores)
  bool finished = false;  // the request ends here; its blocks are released
};

}  // namespace tenon
