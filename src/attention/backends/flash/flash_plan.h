// The plan of one step of the flash backend: which rows go which way, and what their kernels read.
//
// A plan is written straight into a pinned buffer that is copied to the device in one piece. Its
// parts lie one after the other; for a batch of decode rows alone their places depend on the number
// of rows only, so that a captured graph finds the next plan where it found this one.
//
// Ownership:     a FlashPlan borrows the buffer it was written to. Thread safety: plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "attention/backends/flash/cascade_plan.h"
#include "attention/backends/flash/decode.h"
#include "attention/backends/flash/prefill.h"

namespace tenon::flash {

struct PlanShape {
  DecodePlanShape narrow;  // tiles of 8 or 16 packed query rows
  DecodePlanShape wide;    // tiles of 64
  PrefillShape prefill;
  CascadeShape cascade;
  bool has_prefill = false;  // the prefill kernel takes this shape; else wide tiles do its rows
  // Rows without earlier keys read pages like all others: cells are not the step's activations.
  bool pages_only = false;
  int32_t cell_bytes = 2;  // of an element in the pages
  AttentionSplit split = AttentionSplit::kAuto;
  int32_t multiprocessors = 0;
  int32_t head_dim = 0;
};

// One launch of the decode kernel. Offsets are bytes into the plan's buffer.
struct DecodePart {
  int32_t rows = 0;
  int32_t tiles = 0;
  int32_t blocks = 0;     // of the grid; 0: nothing to do
  int32_t stretches = 0;  // of which `blocks` at least
  int64_t tiles_at = 0;
  int64_t stretches_at = 0;
};

struct PrefillPart {
  int32_t rows = 0;
  PrefillPlan plan;
  int32_t max_blocks = 0;
  int64_t tiles_at = 0;
};

// Rows of at least `prefill_from` packed query rows (tokens times the group) go to the prefill
// kernel.
struct Ways {
  int64_t prefill_from = 0;
  int32_t decode_blocks = 0;  // beside the prefill kernel; 0: one kernel after the other

  // A single query token is a matter of the decode kernel, whatever the group, unless all rows are
  // the prefill kernel's.
  [[nodiscard]] bool is_prefill(int32_t query_len, int64_t group) const {
    return prefill_from == 0 || (query_len > 1 && query_len * group >= prefill_from);
  }
};

class FlashPlan final : public AttentionMetadata {
 public:
  // Bytes that the plan of any step within `limits` takes at most.
  static int64_t max_bytes(const PlanShape& shape, const AttentionLimits& limits);

  // Cascade attention of the step, and where the decode kernel begins with each row then.
  struct Passes {
    CascadePart part;
    std::span<const DecodeRowStart> rows;  // of the batch, or empty
  };

  // Writes the plan of `batch` into `buffer` of max_bytes(). `rows` is room for one entry a row.
  void build(const PlanShape& shape,
             const BatchView& batch,
             const Passes& passes,
             std::byte* buffer,
             std::vector<PrefillRow>& rows);

  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] CascadeUse cascade() const override { return cascade_part.use; }

  DecodePart narrow, wide;
  PrefillPart prefill;
  CascadePart cascade_part;
  int32_t prefix_blocks = 0;  // of the prefix pass's grid
  int64_t pages_at = 0;
  int64_t bytes = 0;          // of the buffer
  bool side_by_side = false;  // the decode kernel runs beside the prefill kernel or the prefix pass

 private:
  // Which rows the prefill kernel gets, and how the kernels share the device.
  [[nodiscard]] static Ways choose(const PlanShape& shape,
                                   const BatchView& batch,
                                   const Passes& passes);
};

}  // namespace tenon::flash
