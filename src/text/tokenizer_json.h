// tokenizer.json of Hugging Face `tokenizers`.
#pragma once

#include <string>
#include <string_view>

#include "text/bpe_tokenizer.h"

namespace tenon {

// `name` is the file in messages. BOS and EOS are those of the post-processor; a caller who knows
// better (from tokenizer_config.json) overwrites them. `truncation` and `padding` are of no concern
// here: they belong to batches for training, and a prompt is never cut silently. Errors:
// kUnsupported for anything that cannot be reproduced exactly, naming it; kDataLoss,
// kInvalidArgument.
Result<BpeTokenizerParts> parse_tokenizer_json(std::string_view json, const std::string& name);

}  // namespace tenon
