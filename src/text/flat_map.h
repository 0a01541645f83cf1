// Hash map from 64-bit keys to 64-bit values for tables that are built once and read often: open
// addressing in one array, no erase. Ownership: value. Thread safety: find() from any thread once
// filled.
#pragma once

#include <cstdint>
#include <vector>

namespace tenon {

class FlatMap {
 public:
  // The key that marks an empty slot; never inserted.
  static constexpr uint64_t kNoKey = ~uint64_t{0};

  void reserve(size_t count) {
    size_t capacity = 16;
    while (capacity < count * 2) capacity *= 2;
    if (capacity > slots_.size()) rehash(capacity);
  }

  // Inserts or replaces.
  void set(uint64_t key, uint64_t value) {
    if ((count_ + 1) * 2 > slots_.size()) rehash(slots_.empty() ? 16 : slots_.size() * 2);
    Slot& slot = slots_[slot_of(key)];
    if (slot.key == kNoKey) ++count_;
    slot = {key, value};
  }

  // Null if absent.
  [[nodiscard]] const uint64_t* find(uint64_t key) const {
    if (slots_.empty()) return nullptr;
    const Slot& slot = slots_[slot_of(key)];
    return slot.key == kNoKey ? nullptr : &slot.value;
  }

  [[nodiscard]] size_t size() const { return count_; }

 private:
  struct Slot {
    uint64_t key = kNoKey;
    uint64_t value = 0;
  };

  [[nodiscard]] size_t slot_of(uint64_t key) const {
    const size_t mask = slots_.size() - 1;
    // Fibonacci hashing; the high bits are the well mixed ones.
    size_t index = static_cast<size_t>((key * 0x9E3779B97F4A7C15ULL) >> 20) & mask;
    while (slots_[index].key != key && slots_[index].key != kNoKey) index = (index + 1) & mask;
    return index;
  }

  void rehash(size_t capacity) {
    std::vector<Slot> old(capacity);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.key != kNoKey) slots_[slot_of(slot.key)] = slot;
    }
  }

  std::vector<Slot> slots_;
  size_t count_ = 0;
};

}  // namespace tenon
