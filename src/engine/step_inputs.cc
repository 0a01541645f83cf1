#include "engine/step_inputs.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace tenon {
namespace {

// Byte offsets in the packed arrays of a step of `tokens` tokens.
struct Offsets {
  explicit Offsets(size_t tokens)
      : token_ids(tokens * sizeof(int64_t)),
        positions(token_ids + tokens * sizeof(int32_t)),
        logits_rows(positions + tokens * sizeof(int32_t)) {}
  size_t slots = 0;  // first: the widest type
  size_t token_ids, positions, logits_rows;
};

template <typename T>
void append(std::byte* to, size_t offset, const std::vector<T>& values) {
  if (!values.empty()) std::memcpy(to + offset, values.data(), values.size() * sizeof(T));
}

}  // namespace

Status StepInputs::prepare(Device* device, const Limits& limits) {
  device_ = device;
  limits_ = limits;
  const auto tokens = static_cast<size_t>(limits.max_tokens);
  const auto rows = static_cast<size_t>(limits.max_rows);
  token_ids_.reserve(tokens);
  positions_.reserve(tokens);
  slot_mapping_.reserve(tokens);
  query_start_loc_.reserve(rows + 1);
  seq_lens_.reserve(rows);
  page_indptr_.reserve(rows + 1);
  page_indices_.reserve(static_cast<size_t>(limits.max_pages));
  logits_rows_.reserve(static_cast<size_t>(limits.max_logits_rows));
  prefixes_.prepare(limits.max_rows);
  const size_t bytes =
      Offsets(tokens).logits_rows + static_cast<size_t>(limits.max_logits_rows) * sizeof(int32_t);
  for (size_t i = 0; i < kRing; ++i) {
    TENON_ASSIGN_OR_RETURN(Buffer host, device->allocate_host(bytes));
    host_.push_back(std::move(host));
  }
  TENON_ASSIGN_OR_RETURN(on_device_, device->allocate(bytes));
  return ok_status();
}

void StepInputs::build(const StepPlan& plan,
                       const Scheduler& scheduler,
                       std::span<const int32_t> pending_states) {
  token_ids_.clear();
  positions_.clear();
  slot_mapping_.clear();
  query_start_loc_.assign(1, 0);
  seq_lens_.clear();
  page_indptr_.assign(1, 0);
  page_indices_.clear();
  logits_rows_.clear();
  batch_ = {};
  has_pending_ = false;
  const int32_t block_size = limits_.block_size;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const PlanRow& row = plan.rows[i];
    const ScheduledRequest& request = scheduler.request(row.slot);
    const int32_t end = row.start + row.num_tokens;
    for (int32_t position = row.start; position < end; ++position) {
      int32_t token = request.tokens[static_cast<size_t>(position)];
      if (token == kPendingToken) {
        token = ~pending_states[i];
        has_pending_ = true;
      }
      token_ids_.push_back(token);
      positions_.push_back(position);
      const int64_t block = request.block_table[static_cast<size_t>(position / block_size)];
      slot_mapping_.push_back(block * block_size + position % block_size);
    }
    query_start_loc_.push_back(static_cast<int32_t>(token_ids_.size()));
    seq_lens_.push_back(end);
    page_indices_.insert(page_indices_.end(), request.block_table.begin(),
                         request.block_table.begin() + num_pages(end, block_size));
    page_indptr_.push_back(static_cast<int32_t>(page_indices_.size()));
    batch_.max_query_len = std::max(batch_.max_query_len, row.num_tokens);
    batch_.max_seq_len = std::max(batch_.max_seq_len, end);
    switch (row.kind) {
      case RowKind::kDecode: batch_.num_decode_tokens += row.num_tokens; break;
      case RowKind::kExtend: batch_.num_extend_tokens += row.num_tokens; break;
      case RowKind::kPrefill: batch_.num_prefill_tokens += row.num_tokens; break;
    }
  }
  batch_.num_decode_rows = plan.num_decode_rows;
  batch_.num_extend_rows = plan.num_extend_rows;
  batch_.num_prefill_rows = plan.num_prefill_rows;
  finish_batch();
}

void StepInputs::pad_rows(int32_t num_rows) {
  TENON_CHECK_EQ(token_ids_.size(), seq_lens_.size());
  while (static_cast<int32_t>(seq_lens_.size()) < num_rows) {
    token_ids_.push_back(0);
    positions_.push_back(0);
    slot_mapping_.push_back(-1);
    query_start_loc_.push_back(static_cast<int32_t>(token_ids_.size()));
    seq_lens_.push_back(0);
    page_indptr_.push_back(static_cast<int32_t>(page_indices_.size()));
  }
  batch_.num_decode_rows = batch_.num_decode_tokens = num_rows;
  finish_batch();
}

void StepInputs::build_decode_shape(int32_t num_rows) {
  const auto rows = static_cast<size_t>(num_rows);
  token_ids_.assign(rows, 0);
  positions_.assign(rows, 0);
  slot_mapping_.assign(rows, -1);
  query_start_loc_.assign(1, 0);
  page_indptr_.assign(1, 0);
  for (int32_t i = 1; i <= num_rows; ++i) {
    query_start_loc_.push_back(i);
    page_indptr_.push_back(i);
  }
  seq_lens_.assign(rows, 1);
  page_indices_.assign(rows, 0);
  logits_rows_.clear();
  batch_ = {};
  has_pending_ = false;
  batch_.num_decode_rows = batch_.num_decode_tokens = num_rows;
  batch_.max_query_len = batch_.max_seq_len = 1;
  finish_batch();
}

void StepInputs::finish_batch() {
  batch_.query_start_loc = query_start_loc_;
  batch_.seq_lens = seq_lens_;
  batch_.page_indptr = page_indptr_;
  batch_.page_indices = page_indices_;
  batch_.slot_mapping = slot_mapping_;
}

void StepInputs::share_prefixes() {
  const PrefixTree& tree = prefixes_.find(batch_, limits_.block_size);
  batch_.prefix_groups = tree.groups;
  batch_.prefix_rows = tree.rows;
}

void StepInputs::set_logits_rows(std::span<const int32_t> rows) {
  TENON_CHECK_LE(static_cast<int32_t>(rows.size()), limits_.max_logits_rows);
  logits_rows_.assign(rows.begin(), rows.end());
}

void StepInputs::upload() {
  const Offsets offsets(token_ids_.size());
  slot_ = (slot_ + 1) % kRing;
  std::byte* host = host_[slot_].data();
  append(host, offsets.slots, slot_mapping_);
  append(host, offsets.token_ids, token_ids_);
  append(host, offsets.positions, positions_);
  append(host, offsets.logits_rows, logits_rows_);
  device_->upload(on_device_.data(), host,
                  offsets.logits_rows + logits_rows_.size() * sizeof(int32_t));
}

std::span<int32_t> StepInputs::token_ids() const {
  const Offsets offsets(token_ids_.size());
  return {reinterpret_cast<int32_t*>(on_device_.data() + offsets.token_ids), token_ids_.size()};
}

ModelInput StepInputs::model_input(const AttentionMetadata* attention) const {
  const size_t tokens = token_ids_.size();
  const Offsets offsets(tokens);
  ModelInput input;
  input.token_ids = token_ids();
  input.positions = {reinterpret_cast<const int32_t*>(on_device_.data() + offsets.positions),
                     tokens};
  input.slot_mapping = {reinterpret_cast<const int64_t*>(on_device_.data() + offsets.slots),
                        tokens};
  input.attention = attention;
  return input;
}

std::span<const int32_t> StepInputs::logits_rows() const {
  const Offsets offsets(token_ids_.size());
  return {reinterpret_cast<const int32_t*>(on_device_.data() + offsets.logits_rows),
          logits_rows_.size()};
}

}  // namespace tenon
