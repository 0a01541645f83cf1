// The tokenizer in a GGUF file's metadata (tokenizer.ggml.*).
#pragma once

#include <memory>

#include "formats/gguf.h"
#include "text/tokenizer.h"

namespace tenon {

// Errors: kUnsupported (a tokenizer that cannot be reproduced exactly, naming why), kDataLoss,
// kInvalidArgument.
Result<std::shared_ptr<const Tokenizer>> load_tokenizer_gguf(const GgufFile& file);

}  // namespace tenon
