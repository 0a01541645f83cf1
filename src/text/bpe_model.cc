#include "text/bpe_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "text/byte_alphabet.h"
#include "text/utf8.h"

namespace tenon {
namespace {

uint64_t pair_key(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}
uint32_t high_half(uint64_t value) {
  return static_cast<uint32_t>(value >> 32);
}
int32_t low_half(uint64_t value) {
  return static_cast<int32_t>(static_cast<uint32_t>(value));
}

}  // namespace

BpeModel::BpeModel(std::shared_ptr<const Vocabulary> vocabulary,
                   BpeOptions options,
                   std::vector<bool> hidden)
    : vocabulary_(std::move(vocabulary)), options_(options), hidden_(std::move(hidden)) {
  byte_ids_.fill(-1);
  for (int byte = 0; byte < 256; ++byte) {
    std::optional<int32_t> id;
    if (options_.byte_level) {
      id = piece(byte_to_alphabet(static_cast<uint8_t>(byte)));
    } else if (options_.byte_fallback) {
      id = vocabulary_->find(fmt::format("<0x{:02X}>", byte));
    }
    if (id) byte_ids_[static_cast<size_t>(byte)] = *id;
  }
}

bool BpeModel::has_all_bytes() const {
  return std::none_of(byte_ids_.begin(), byte_ids_.end(), [](int32_t id) { return id < 0; });
}

std::optional<int32_t> BpeModel::piece(std::string_view text) const {
  const std::optional<int32_t> id = vocabulary_->find(text);
  if (id && static_cast<size_t>(*id) < hidden_.size() && hidden_[static_cast<size_t>(*id)])
    return std::nullopt;
  return id;
}

void BpeModel::add_merge(int32_t left, int32_t right, int32_t merged) {
  const uint32_t rank = next_rank_++;
  if (static_cast<size_t>(merged) < hidden_.size() && hidden_[static_cast<size_t>(merged)]) return;
  merges_.set(pair_key(left, right), pair_key(static_cast<int32_t>(rank), merged));
  if (vocabulary_->text(right).starts_with(kWordMark) &&
      !vocabulary_->text(left).ends_with(kWordMark)) {
    joins_word_mark_ = true;
  }
}

bool BpeModel::cuts_before_word_mark() const {
  return !options_.byte_level && !options_.ignore_merges && !joins_word_mark_ &&
         piece(kWordMark).has_value();
}

void BpeModel::add_bytes(std::string_view word, std::vector<Scratch::Symbol>& symbols) const {
  bool unknown_run = false;
  for (const char byte : word) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(byte)];
    if (id >= 0) {
      symbols.push_back({id, 0, 0});
    } else if (options_.unk && !(unknown_run && options_.fuse_unk)) {
      symbols.push_back({*options_.unk, 0, 0});
    }
    unknown_run = id < 0;
  }
}

void BpeModel::add_characters(std::string_view word, std::vector<Scratch::Symbol>& symbols) const {
  // An unknown token is written only when the next known character comes: that is how Hugging Face
  // orders it relative to byte pieces.
  bool unknown_pending = false;
  for (size_t i = 0; i < word.size();) {
    const Utf8Char character = decode_utf8(word, i);
    const std::string_view text = word.substr(i, character.valid ? character.length : 1);
    i += text.size();
    if (character.valid) {
      if (const std::optional<int32_t> id = piece(text)) {
        if (unknown_pending) symbols.push_back({*options_.unk, 0, 0});
        unknown_pending = false;
        symbols.push_back({*id, 0, 0});
        continue;
      }
    }
    if (options_.byte_fallback && std::all_of(text.begin(), text.end(), [&](char byte) {
          return byte_ids_[static_cast<uint8_t>(byte)] >= 0;
        })) {
      for (const char byte : text) symbols.push_back({byte_ids_[static_cast<uint8_t>(byte)], 0, 0});
      continue;
    }
    if (!options_.unk) continue;
    if (unknown_pending && !options_.fuse_unk) symbols.push_back({*options_.unk, 0, 0});
    unknown_pending = true;
  }
  if (unknown_pending) symbols.push_back({*options_.unk, 0, 0});
}

void BpeModel::add_symbols(std::string_view word, std::vector<Scratch::Symbol>& symbols) const {
  if (options_.byte_level) {
    add_bytes(word, symbols);
  } else {
    add_characters(word, symbols);
  }
  const auto count = static_cast<int32_t>(symbols.size());
  for (int32_t i = 0; i < count; ++i) {
    symbols[static_cast<size_t>(i)].prev = i - 1;
    symbols[static_cast<size_t>(i)].next = i + 1 < count ? i + 1 : -1;
  }
}

const uint64_t* BpeModel::merge_of(const std::vector<Scratch::Symbol>& symbols,
                                   int32_t position) const {
  const Scratch::Symbol& left = symbols[static_cast<size_t>(position)];
  if (left.id < 0 || left.next < 0) return nullptr;
  return merges_.find(pair_key(left.id, symbols[static_cast<size_t>(left.next)].id));
}

void BpeModel::encode_word(std::string_view word,
                           Scratch& scratch,
                           std::vector<int32_t>& out) const {
  if (word.empty()) return;
  if (options_.ignore_merges) {
    std::string_view text = word;
    if (options_.byte_level) {
      scratch.text.clear();
      append_in_alphabet(word, scratch.text);
      text = scratch.text;
    }
    if (const std::optional<int32_t> id = piece(text)) {
      out.push_back(*id);
      return;
    }
  }

  std::vector<Scratch::Symbol>& symbols = scratch.symbols;
  std::vector<uint64_t>& heap = scratch.heap;
  symbols.clear();
  heap.clear();
  add_symbols(word, symbols);

  const auto candidate = [&](int32_t position) {
    const uint64_t* merge = merge_of(symbols, position);
    if (merge == nullptr) return false;
    heap.push_back(pair_key(static_cast<int32_t>(high_half(*merge)), position));
    return true;
  };
  for (int32_t i = 0; i + 1 < static_cast<int32_t>(symbols.size()); ++i) candidate(i);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());

  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t best = heap.back();
    heap.pop_back();
    const int32_t position = low_half(best);
    const uint64_t* merge = merge_of(symbols, position);
    // An earlier merge may have changed the pair since it was queued.
    if (merge == nullptr || high_half(*merge) != high_half(best)) continue;

    Scratch::Symbol& left = symbols[static_cast<size_t>(position)];
    Scratch::Symbol& right = symbols[static_cast<size_t>(left.next)];
    left.id = low_half(*merge);
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].prev = position;
    if (left.prev >= 0 && candidate(left.prev))
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    if (candidate(position)) std::push_heap(heap.begin(), heap.end(), std::greater<>());
  }
  for (const Scratch::Symbol& symbol : symbols) {
    if (symbol.id >= 0) out.push_back(symbol.id);
  }
}

}  // namespace tenon
