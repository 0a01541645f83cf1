// Tokenizers: text <-> token ids, equal token for token to Hugging Face `tokenizers`.
//
// Ownership:     values returned own their memory. Thread safety: const members are safe from any
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tenon {

// Half-open byte range of a text.
struct TextRange {
  size_t begin = 0;
  size_t end = 0;
};

struct EncodeOptions {
  bool add_special = true;    // BOS/EOS as the model's own rule says
  bool parse_special = true;  // control and user-defined tokens in the text become their ids
  // Parts of the text that came from a user: inside them (and across their edges) no added token is
  // ever recognised, whatever parse_special says. Sorted, disjoint. The text is otherwise encoded
  // as one piece, so merges and pre-tokenisation are those of the whole.
  std::span<const TextRange> untrusted = {};
};

struct DecodeOptions {
  bool skip_special = true;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // Library level: any bytes are accepted; invalid UTF-8 goes through byte pieces where the
  // vocabulary has them.
  [[nodiscard]] virtual Result<std::vector<int32_t>> encode(std::string_view text,
                                                            const EncodeOptions& options) const = 0;
  [[nodiscard]] Result<std::vector<int32_t>> encode(std::string_view text) const {
    return encode(text, EncodeOptions{});
  }

  // The bytes a token stands for inside a running text (a special token: its literal text).
  [[nodiscard]] virtual std::string_view token_bytes(int32_t id) const = 0;
  // How the vocabulary file spells the token ("Ġthe", "<0x0A>").
  [[nodiscard]] virtual std::string_view token_text(int32_t id) const = 0;
  [[nodiscard]] virtual bool is_special(int32_t id) const = 0;
  [[nodiscard]] virtual std::optional<int32_t> find_token(std::string_view text) const = 0;
  [[nodiscard]] virtual int32_t vocab_size() const = 0;
  [[nodiscard]] virtual std::optional<int32_t> bos_id() const = 0;
  [[nodiscard]] virtual std::optional<int32_t> eos_id() const = 0;
  // Tokens that end a turn or a text by the tokenizer's own word (EOS, EOT).
  [[nodiscard]] virtual const std::vector<int32_t>& end_ids() const = 0;
  [[nodiscard]] virtual bool adds_bos() const = 0;
  // SentencePiece drops the space it put in front of a text when it decodes from the beginning.
  [[nodiscard]] virtual bool strips_leading_space() const = 0;

  // Bytes of all ids (may be invalid UTF-8 when ids are cut inside a character).
  [[nodiscard]] std::string decode_bytes(std::span<const int32_t> ids,
                                         const DecodeOptions& options = {}) const;
  // The same with invalid parts replaced by U+FFFD (Unicode's maximal-subpart rule).
  [[nodiscard]] std::string decode(std::span<const int32_t> ids,
                                   const DecodeOptions& options = {}) const;
};

// What comes with a model besides weights.
struct TextAssets {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::string chat_template;  // Jinja source; empty if the model ships none
};

// From a GGUF file's metadata, or a folder with tokenizer.json (and tokenizer_config.json,
// chat_template.jinja, special_tokens_map.json where present). A tokenizer that cannot be
// reproduced exactly is refused with kUnsupported, naming what is missing.
Result<TextAssets> load_text_assets(const std::string& model_path);
Result<std::shared_ptr<const Tokenizer>> load_tokenizer_json(std::string_view json,
                                                             const std::string& name);

}  // namespace tenon
