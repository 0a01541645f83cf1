#include "scheduler/request_table.h"

#include "base/check.h"

namespace tenon {
namespace {

// Empty, but with the memory of its vectors.
void reset(ScheduledRequest& request) {
  ScheduledRequest fresh;
  for (auto member : {&ScheduledRequest::tokens, &ScheduledRequest::block_table,
                      &ScheduledRequest::host_blocks}) {
    (request.*member).clear();
    fresh.*member = std::move(request.*member);
  }
  request.chain.clear();
  fresh.chain = std::move(request.chain);
  request = std::move(fresh);
}

}  // namespace

int32_t RequestTable::insert(RequestId id) {
  if (free_slots_.empty()) {
    free_slots_.push_back(num_slots());
    slots_.emplace_back();
  }
  const int32_t slot = free_slots_.back();
  TENON_CHECK(slot_by_id_.emplace(id, slot).second);
  free_slots_.pop_back();
  Slot& entry = slots_[static_cast<size_t>(slot)];
  reset(entry.request);
  entry.request.id = id;
  entry.used = true;
  return slot;
}

void RequestTable::erase(int32_t slot) {
  Slot& entry = slots_[static_cast<size_t>(slot)];
  TENON_CHECK(entry.used);
  entry.used = false;
  slot_by_id_.erase(entry.request.id);
  free_slots_.push_back(slot);
}

bool RequestTable::holds(int32_t slot, RequestId id) const {
  const Slot& entry = slots_[static_cast<size_t>(slot)];
  return entry.used && entry.request.id == id;
}

int32_t RequestTable::slot_of(RequestId id) const {
  const auto found = slot_by_id_.find(id);
  return found == slot_by_id_.end() ? -1 : found->second;
}

const ScheduledRequest* RequestTable::find(RequestId id) const {
  const int32_t slot = slot_of(id);
  return slot < 0 ? nullptr : &at(slot);
}

}  // namespace tenon
