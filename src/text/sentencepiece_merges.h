// Merge rules of a SentencePiece BPE vocabulary, which itself only has scores.
#pragma once

#include <span>
#include <vector>

#include "text/bpe_tokenizer.h"
#include "text/vocabulary.h"

namespace tenon {

// Every way to join two pieces into a third, best score first; the order in which Hugging Face
// writes them to tokenizer.json: among equal scores the longer left part (in characters) first,
// then the longer right part, then the lower id. `scores` has one entry for each id; ids in
// `skipped` take no part.
[[nodiscard]] std::vector<BpeMerge> merges_from_scores(const Vocabulary& vocabulary,
                                                       std::span<const float> scores,
                                                       const std::vector<bool>& skipped);

}  // namespace tenon
