// Byte-pair encoding of one word: initial symbols, then merges by rank, lowest first, leftmost
// among equals.
//
// A word is split into characters (or bytes, for byte-level vocabularies); a character that is not
// in the vocabulary becomes its byte pieces "<0xNN>" or the unknown token. Time is n log n in the
// length of the word. Ownership:     keeps a reference to the vocabulary. Thread safety: immutable
// after filling; scratch is the caller's.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/flat_map.h"
#include "text/vocabulary.h"

namespace tenon {

struct BpeOptions {
  bool byte_level = false;     // the vocabulary is written in the byte alphabet
  bool byte_fallback = false;  // unknown characters become <0xNN> pieces
  bool fuse_unk = false;       // a run of unknown characters is one unknown token
  bool ignore_merges = false;  // a whole word that is in the vocabulary is taken as it is
  std::optional<int32_t> unk;  // nullopt: unknown characters vanish, as in Hugging Face tokenizers
};

class BpeModel {
 public:
  struct Scratch {
    struct Symbol {
      int32_t id;    // -1: merged away
      int32_t prev;  // index, -1 at the ends
      int32_t next;
    };
    std::vector<Symbol> symbols;
    std::vector<uint64_t> heap;  // rank in the high half, position in the low half
    std::string text;
  };

  // `hidden` ids (control tokens) are never produced from text, whatever the vocabulary or the
  // merges say.
  BpeModel(std::shared_ptr<const Vocabulary> vocabulary,
           BpeOptions options,
           std::vector<bool> hidden);

  void reserve_merges(size_t count) { merges_.reserve(count); }
  // Appends a merge; a pair that comes twice has the rank of its last mention. Requires: valid ids.
  void add_merge(int32_t left, int32_t right, int32_t merged);

  // Appends the ids of `word` to `out`. `word` may hold any bytes.
  void encode_word(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const;

  // No merge joins a character with a word mark "▁" that follows it, so a text may be cut there
  // before encoding.
  [[nodiscard]] bool cuts_before_word_mark() const;
  [[nodiscard]] const BpeOptions& options() const { return options_; }
  [[nodiscard]] bool has_all_bytes() const;

 private:
  [[nodiscard]] std::optional<int32_t> piece(std::string_view text) const;
  void add_symbols(std::string_view word, std::vector<Scratch::Symbol>& symbols) const;
  void add_bytes(std::string_view word, std::vector<Scratch::Symbol>& symbols) const;
  void add_characters(std::string_view word, std::vector<Scratch::Symbol>& symbols) const;
  [[nodiscard]] const uint64_t* merge_of(const std::vector<Scratch::Symbol>& symbols,
                                         int32_t position) const;

  std::shared_ptr<const Vocabulary> vocabulary_;
  BpeOptions options_;
  std::vector<bool> hidden_;
  std::array<int32_t, 256> byte_ids_;  // of the byte alphabet, or of <0xNN>; -1: none
  FlatMap merges_;                     // (left, right) -> (rank, merged)
  uint32_t next_rank_ = 0;
  bool joins_word_mark_ = false;
};

// "▁" (U+2581), which stands for a space in SentencePiece vocabularies.
inline constexpr std::string_view kWordMark = "\xE2\x96\x81";

}  // namespace tenon
