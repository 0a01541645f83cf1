#include "text/tokenizer.h"

#include "text/detokenizer.h"

namespace tenon {

std::string Tokenizer::decode_bytes(std::span<const int32_t> ids,
                                    const DecodeOptions& options) const {
  std::string bytes;
  bool first = strips_leading_space();
  for (const int32_t id : ids) {
    if (options.skip_special && is_special(id)) continue;
    std::string_view piece = token_bytes(id);
    if (piece.empty()) continue;
    if (first && piece.front() == ' ') piece.remove_prefix(1);
    first = false;
    bytes += piece;
  }
  return bytes;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, const DecodeOptions& options) const {
  std::string text;
  Utf8Assembler assembler;
  assembler.push(decode_bytes(ids, options), text);
  assembler.finish(text);
  return text;
}

}  // namespace tenon
