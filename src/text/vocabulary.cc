#include "text/vocabulary.h"

#include <functional>

namespace tenon {
namespace {

uint64_t hash_of(std::string_view text) {
  return std::hash<std::string_view>{}(text);
}
uint32_t tag_of(uint64_t hash) {
  return static_cast<uint32_t>(hash >> 32);
}

}  // namespace

void Vocabulary::reserve(size_t count, size_t bytes) {
  entries_.reserve(count);
  arena_.reserve(bytes);
  size_t capacity = 16;
  while (capacity < count * 2) capacity *= 2;
  if (capacity > slots_.size()) rehash(capacity);
}

size_t Vocabulary::slot_of(std::string_view piece, uint64_t hash) const {
  const size_t mask = slots_.size() - 1;
  size_t index = static_cast<size_t>(hash) & mask;
  for (;; index = (index + 1) & mask) {
    const Slot& slot = slots_[index];
    if (slot.id_plus_one == 0) return index;
    if (slot.tag == tag_of(hash) && text(static_cast<int32_t>(slot.id_plus_one - 1)) == piece)
      return index;
  }
}

void Vocabulary::rehash(size_t capacity) {
  std::vector<Slot> old(capacity);
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.id_plus_one == 0) continue;
    slots_[slot_of(text(static_cast<int32_t>(slot.id_plus_one - 1)),
                   hash_of(text(static_cast<int32_t>(slot.id_plus_one - 1))))] = slot;
  }
}

bool Vocabulary::add(int32_t id, std::string_view piece) {
  if (has(id)) return false;
  const uint64_t hash = hash_of(piece);
  size_t slot = 0;
  if (!piece.empty()) {
    if ((indexed_ + 1) * 2 > slots_.size()) rehash(slots_.empty() ? 16 : slots_.size() * 2);
    slot = slot_of(piece, hash);
    if (slots_[slot].id_plus_one != 0) return false;
  }
  if (id >= size()) entries_.resize(static_cast<size_t>(id) + 1);
  entries_[static_cast<size_t>(id)] = {arena_.size(), static_cast<uint32_t>(piece.size()), true};
  arena_ += piece;
  if (!piece.empty()) {
    slots_[slot] = {tag_of(hash), static_cast<uint32_t>(id) + 1};
    ++indexed_;
  }
  return true;
}

std::optional<int32_t> Vocabulary::find(std::string_view piece) const {
  if (piece.empty() || slots_.empty()) return std::nullopt;
  const Slot& slot = slots_[slot_of(piece, hash_of(piece))];
  if (slot.id_plus_one == 0) return std::nullopt;
  return static_cast<int32_t>(slot.id_plus_one - 1);
}

}  // namespace tenon
