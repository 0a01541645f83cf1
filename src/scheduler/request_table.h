// Requests by slot and by id. A slot keeps its vectors' memory for the next request in it.
//
// Ownership:     owns the requests; references stay valid while the request lives.
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "scheduler/request.h"

namespace tenon {

class RequestTable {
 public:
  // A fresh request in a free slot. Requires: the id is not in use.
  int32_t insert(RequestId id);
  void erase(int32_t slot);

  [[nodiscard]] bool holds(int32_t slot, RequestId id) const;
  [[nodiscard]] int32_t slot_of(RequestId id) const;  // -1: none
  [[nodiscard]] const ScheduledRequest* find(RequestId id) const;
  [[nodiscard]] ScheduledRequest& at(int32_t slot) {
    return slots_[static_cast<size_t>(slot)].request;
  }
  [[nodiscard]] const ScheduledRequest& at(int32_t slot) const {
    return slots_[static_cast<size_t>(slot)].request;
  }
  [[nodiscard]] int32_t size() const { return static_cast<int32_t>(slot_by_id_.size()); }
  [[nodiscard]] int32_t num_slots() const { return static_cast<int32_t>(slots_.size()); }

 private:
  struct Slot {
    ScheduledRequest request;
    bool used = false;
  };
  std::deque<Slot> slots_;
  std::vector<int32_t> free_slots_;
  std::unordered_map<RequestId, int32_t> slot_by_id_;
};

}  // namespace tenon
