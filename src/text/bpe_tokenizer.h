// The tokenizer: added tokens, normalisation, pre-tokenisation, BPE, BOS and EOS. Loaders fill a
// BpeTokenizerParts. Ownership: shared, immutable. Thread safety: as Tokenizer.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe_model.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

namespace tenon {

struct BpeMerge {
  int32_t left, right, merged;
};

struct BpeTokenizerParts {
  std::shared_ptr<const Vocabulary> vocabulary;  // the model's pieces and the added tokens
  BpeOptions bpe;
  std::vector<BpeMerge> merges;  // best first
  std::vector<AddedToken> added;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::vector<int32_t> prefix, suffix;  // ids around a text with add_special
  bool decodes_word_marks = false;      // "▁" in a piece is a space in the text
  bool decodes_byte_pieces = false;     // "<0xNN>" is a byte
  bool strips_leading_space = false;
  std::optional<int32_t> bos, eos;
  std::vector<int32_t> end_ids;
};

// Errors: kUnsupported if the parts ask for something that cannot be done exactly.
Result<std::shared_ptr<const Tokenizer>> make_bpe_tokenizer(BpeTokenizerParts parts);

}  // namespace tenon
