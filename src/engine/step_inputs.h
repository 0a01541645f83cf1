// The arrays of one step: what attention plans from, on the host, and what kernels read, on the
// device.
//
// The device side of a step of T tokens is packed into one buffer of fixed address, so that it
// takes one copy and a captured graph finds it again; the stream's order keeps steps apart. The
// host side is a ring, because a copy may still read the last step's while the next is written.
//
// Ownership:     owns its memory. Thread safety: the engine thread only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/batch_view.h"
#include "attention/cascade.h"
#include "base/status.h"
#include "models/model.h"
#include "scheduler/scheduler.h"
#include "tensor/device.h"

namespace tenon {

class StepInputs {
 public:
  struct Limits {
    int32_t max_tokens = 0;
    int32_t max_rows = 0;
    int32_t max_pages = 0;  // of all rows
    int32_t max_logits_rows = 0;
    int32_t block_size = 0;
  };
  // Errors: kResourceExhausted.
  Status prepare(Device* device, const Limits& limits);

  // Fills the arrays for the rows of `plan`. pending_states[i] stands for the last token of row i
  // when the host does not know it yet; the sampler resolves it.
  void build(const StepPlan& plan,
             const Scheduler& scheduler,
             std::span<const int32_t> pending_states);
  // Rows of one token that compute nothing, up to num_rows. Requires: every row has one token.
  void pad_rows(int32_t num_rows);
  // One row of one token on one key in the null block for each of num_rows: the shape of a decode
  // step, for capturing one.
  void build_decode_shape(int32_t num_rows);
  // Token indices whose logits are wanted, as logits_rows() on the device.
  void set_logits_rows(std::span<const int32_t> rows);
  // Finds which decode rows share prefixes, for the view of the batch.
  void share_prefixes();
  // Enqueues the copy to the device.
  void upload();

  [[nodiscard]] const BatchView& batch() const { return batch_; }
  [[nodiscard]] bool has_pending() const { return has_pending_; }
  // First token of row i.
  [[nodiscard]] int32_t first_token(size_t row) const { return query_start_loc_[row]; }
  [[nodiscard]] int32_t last_token(size_t row) const { return query_start_loc_[row + 1] - 1; }

  // Memory of the device, for the tokens of this step.
  [[nodiscard]] std::span<int32_t> token_ids() const;
  [[nodiscard]] ModelInput model_input(const AttentionMetadata* attention) const;
  [[nodiscard]] std::span<const int32_t> logits_rows() const;

 private:
  void finish_batch();

  Device* device_ = nullptr;
  Limits limits_;
  static constexpr size_t kRing = 4;
  std::vector<Buffer> host_;  // [kRing]
  size_t slot_ = 0;
  Buffer on_device_;

  std::vector<int32_t> token_ids_, positions_, query_start_loc_, seq_lens_, page_indptr_,
      page_indices_, logits_rows_;
  std::vector<int64_t> slot_mapping_;
  PrefixPlanner prefixes_;
  BatchView batch_;
  bool has_pending_ = false;
};

}  // namespace tenon
