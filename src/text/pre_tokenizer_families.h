// The pre-tokenizers that GGUF files name in `tokenizer.ggml.pre`, as the Hugging Face tokenizers
// of these models define them. Thread safety: pure functions.
#pragma once

#include <string_view>

#include "base/status.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"

namespace tenon {

struct PreTokenizerFamily {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  bool ignore_merges = false;
  bool add_bos = false;  // where the file does not say
};

// Errors: kUnsupported, with the names that are known.
Result<PreTokenizerFamily> pre_tokenizer_family(std::string_view name);

}  // namespace tenon
