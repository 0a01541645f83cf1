// The steps around the model in a tokenizer.json: normalizer, pre-tokenizer, post-processor,
// decoder. A type or option that is not reproduced exactly is kUnsupported. `where` names the JSON
// value in messages.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "text/bpe_tokenizer.h"

namespace tenon {

Status read_normalizer(const nlohmann::json& value,
                       const std::string& where,
                       Normalizer& normalizer);
// Sets `byte_level` when a ByteLevel step is there; it must be the last.
Status read_pre_tokenizer(const nlohmann::json& value,
                          const std::string& where,
                          PreTokenizer& pre_tokenizer,
                          bool& byte_level);
// Fills prefix and suffix. Requires: parts.vocabulary and parts.added.
Status read_post_processor(const nlohmann::json& value,
                           const std::string& where,
                           BpeTokenizerParts& parts);
// Fills the decodes_ and strips_ flags. Requires: parts.bpe.
Status read_decoder(const nlohmann::json& value,
                    const std::string& where,
                    BpeTokenizerParts& parts);

}  // namespace tenon
