// The pieces of a tokenizer's vocabulary: id <-> text.
// Ownership: copies the texts. Thread safety: immutable after filling.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tenon {

class Vocabulary {
 public:
  // Room for `count` ids and `bytes` of text, so that filling does not grow step by step.
  void reserve(size_t count, size_t bytes);
  // False if the id or the text is taken already (the entry is then not added). An empty text takes
  // the id alone. Requires: id >= 0.
  [[nodiscard]] bool add(int32_t id, std::string_view text);
  [[nodiscard]] std::optional<int32_t> find(std::string_view text) const;
  // Requires: 0 <= id < size(). Ids that nobody added have an empty text.
  [[nodiscard]] std::string_view text(int32_t id) const {
    const Entry& entry = entries_[static_cast<size_t>(id)];
    return std::string_view(arena_).substr(entry.offset, entry.length);
  }
  [[nodiscard]] bool has(int32_t id) const {
    return id >= 0 && id < size() && entries_[static_cast<size_t>(id)].used;
  }
  // Highest id + 1.
  [[nodiscard]] int32_t size() const { return static_cast<int32_t>(entries_.size()); }

 private:
  struct Entry {
    uint64_t offset = 0;
    uint32_t length = 0;
    bool used = false;
  };
  // Hash tag and id + 1; 0 is an empty slot.
  struct Slot {
    uint32_t tag = 0;
    uint32_t id_plus_one = 0;
  };
  [[nodiscard]] size_t slot_of(std::string_view text, uint64_t hash) const;
  void rehash(size_t capacity);

  std::string arena_;
  std::vector<Entry> entries_;
  std::vector<Slot> slots_;
  size_t indexed_ = 0;
};

}  // namespace tenon
