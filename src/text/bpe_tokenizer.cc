#include "text/bpe_tokenizer.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "text/byte_alphabet.h"
#include "text/utf8.h"

namespace tenon {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;  // positions are 32-bit

// Invalid bytes travel through normalisation and pre-tokenisation as characters of one private-use
// block (256 code points of plane 16) that the text itself does not use, and are bytes again when
// BPE sees them.
class InvalidBytes {
 public:
  // Errors: kInvalidArgument if the text uses every block.
  Status escape(MarkedText& text) {
    std::array<bool, kBlocks> used{};
    for (size_t i = 0; i < text.text.size();) {
      const Utf8Char character = decode_utf8(text.text, i);
      if (character.valid && character.code >= kFirst)
        used[std::min<size_t>((character.code - kFirst) / 256, kBlocks - 1)] = true;
      i += character.length;
    }
    const auto block = std::find(used.begin(), used.end(), false) - used.begin();
    if (block == kBlocks)
      return invalid_argument("the text is not valid UTF-8 and uses all of plane 16");
    base_ = kFirst + static_cast<char32_t>(block) * 256;

    MarkedText out;
    for (size_t i = 0; i < text.text.size();) {
      const Utf8Char character = decode_utf8(text.text, i);
      const size_t before = out.text.size();
      if (character.valid) {
        out.text.append(text.text, i, character.length);
      } else {
        for (size_t k = 0; k < character.length; ++k)
          append_utf8(base_ + static_cast<uint8_t>(text.text[i + k]), out.text);
      }
      if (!text.marks.empty()) out.marks.append(out.text.size() - before, text.marks[i]);
      i += character.length;
    }
    text = std::move(out);
    return ok_status();
  }

  // The word with its invalid bytes restored; `buffer` holds the result if anything had to change.
  std::string_view restore(std::string_view word, std::string& buffer) const {
    if (base_ == 0 || word.find('\xF4') == std::string_view::npos) return word;
    buffer.clear();
    for (size_t i = 0; i < word.size();) {
      const Utf8Char character = decode_utf8(word, i);
      if (character.code >= base_ && character.code < base_ + 256) {
        buffer += static_cast<char>(character.code - base_);
      } else {
        buffer.append(word, i, character.length);
      }
      i += character.length;
    }
    return buffer;
  }

 private:
  static constexpr char32_t kFirst = 0x100000;
  static constexpr size_t kBlocks = 255;  // the last block holds noncharacters
  char32_t base_ = 0;
};

// Remembers where in the output the ids of recent words begin, for texts that repeat them. Words
// must stay alive.
class WordCache {
 public:
  explicit WordCache(size_t text_size) {
    if (text_size >= kWorthwhile) slots_.resize(kSlots);
  }
  // Appends the word's ids if it is known; else runs `encode` and remembers.
  template <typename Encode>
  void append(std::string_view word, std::vector<int32_t>& out, Encode&& encode) {
    if (slots_.empty() || word.size() > kLongest) return encode();
    Slot& slot = slots_[std::hash<std::string_view>{}(word) % kSlots];
    if (slot.word == word) {
      for (uint32_t i = 0; i < slot.count; ++i) out.push_back(out[slot.begin + i]);
      return;
    }
    const size_t begin = out.size();
    encode();
    slot = {word, begin, static_cast<uint32_t>(out.size() - begin)};
  }

 private:
  static constexpr size_t kWorthwhile = 2048;
  static constexpr size_t kSlots = 8192;
  static constexpr size_t kLongest = 64;
  struct Slot {
    std::string_view word;
    size_t begin = 0;
    uint32_t count = 0;
  };
  std::vector<Slot> slots_;
};

class BpeTokenizer;

// One call of encode().
class Encoding {
 public:
  Encoding(const BpeTokenizer& tokenizer, const EncodeOptions& options)
      : tokenizer_(tokenizer), options_(options) {}
  Result<std::vector<int32_t>> run(std::string_view text);

 private:
  Status add_gap(std::string_view text, size_t offset);
  Status add_normalized(const MarkedText& text, size_t offset);
  Status add_words(std::string_view text, bool begins_input);
  [[nodiscard]] std::string marks_of(size_t offset, size_t size) const;

  const BpeTokenizer& tokenizer_;
  const EncodeOptions& options_;
  Regex::Matcher matcher_;
  InvalidBytes invalid_;
  BpeModel::Scratch scratch_;
  std::string restored_;
  std::vector<int32_t> ids_;
};

class BpeTokenizer final : public Tokenizer {
 public:
  BpeTokenizer(BpeTokenizerParts parts,
               BpeModel model,
               AddedTokenMatcher raw,
               AddedTokenMatcher normalized)
      : parts_(std::move(parts)),
        model_(std::move(model)),
        raw_(std::move(raw)),
        normalized_(std::move(normalized)) {
    parts_.merges = {};
    special_.resize(static_cast<size_t>(vocab_size()));
    std::vector<bool> added(special_.size());
    for (const AddedToken& token : parts_.added) {
      added[static_cast<size_t>(token.id)] = true;
      special_[static_cast<size_t>(token.id)] = token.special;
    }
    fill_bytes(added);
  }

  Result<std::vector<int32_t>> encode(std::string_view text,
                                      const EncodeOptions& options) const override {
    if (text.size() > kMaxTextBytes) {
      return invalid_argument("a text of {} bytes is too long to tokenise (limit {})", text.size(),
                              kMaxTextBytes);
    }
    return Encoding(*this, options).run(text);
  }

  std::string_view token_bytes(int32_t id) const override {
    TENON_CHECK(id >= 0 && id < vocab_size());
    const auto index = static_cast<size_t>(id);
    return std::string_view(bytes_).substr(byte_offsets_[index],
                                           byte_offsets_[index + 1] - byte_offsets_[index]);
  }
  std::string_view token_text(int32_t id) const override {
    TENON_CHECK(id >= 0 && id < vocab_size());
    return parts_.vocabulary->text(id);
  }
  bool is_special(int32_t id) const override {
    return id >= 0 && id < vocab_size() && special_[static_cast<size_t>(id)];
  }
  std::optional<int32_t> find_token(std::string_view text) const override {
    return parts_.vocabulary->find(text);
  }
  int32_t vocab_size() const override { return parts_.vocabulary->size(); }
  std::optional<int32_t> bos_id() const override { return parts_.bos; }
  std::optional<int32_t> eos_id() const override { return parts_.eos; }
  const std::vector<int32_t>& end_ids() const override { return parts_.end_ids; }
  bool adds_bos() const override {
    return parts_.bos && std::find(parts_.prefix.begin(), parts_.prefix.end(), *parts_.bos) !=
                             parts_.prefix.end();
  }
  bool strips_leading_space() const override { return parts_.strips_leading_space; }

 private:
  friend class Encoding;

  void fill_bytes(const std::vector<bool>& added) {
    byte_offsets_.reserve(special_.size() + 1);
    byte_offsets_.push_back(0);
    for (int32_t id = 0; id < vocab_size(); ++id) {
      append_bytes(parts_.vocabulary->text(id), added[static_cast<size_t>(id)]);
      byte_offsets_.push_back(bytes_.size());
    }
  }

  void append_bytes(std::string_view text, bool literal) {
    if (parts_.decodes_byte_pieces && text.size() == 6 && text.starts_with("<0x") &&
        text.back() == '>') {
      const std::string digits(text.substr(3, 2));
      if (digits.find_first_not_of("0123456789ABCDEF") == std::string::npos) {
        bytes_ += static_cast<char>(std::stoi(digits, nullptr, 16));
        return;
      }
    }
    if (!literal && parts_.bpe.byte_level) {
      if (const std::optional<std::string> spelt = bytes_from_alphabet(text)) {
        bytes_ += *spelt;
        return;
      }
    }
    if (literal || !parts_.decodes_word_marks) {
      bytes_ += text;
      return;
    }
    for (size_t i = 0; i < text.size();) {
      if (text.substr(i).starts_with(kWordMark)) {
        bytes_ += ' ';
        i += kWordMark.size();
      } else {
        bytes_ += text[i++];
      }
    }
  }

  BpeTokenizerParts parts_;
  BpeModel model_;
  AddedTokenMatcher raw_, normalized_;
  std::vector<bool> special_;
  std::string bytes_;  // token_bytes of all ids, one after the other
  std::vector<size_t> byte_offsets_;
};

Result<std::vector<int32_t>> Encoding::run(std::string_view text) {
  const BpeTokenizerParts& parts = tokenizer_.parts_;
  ids_.reserve(text.size() / 3 + 8);
  if (options_.add_special) ids_ = parts.prefix;
  std::vector<AddedTokenMatcher::Match> matches;
  if (options_.parse_special) {
    const auto trusted = [&](size_t begin, size_t end) {
      const auto after =
          std::partition_point(options_.untrusted.begin(), options_.untrusted.end(),
                               [&](const TextRange& range) { return range.end <= begin; });
      return after == options_.untrusted.end() || after->begin >= end;
    };
    tokenizer_.raw_.find_all(text, trusted, matches);
  }
  size_t done = 0;
  for (const AddedTokenMatcher::Match& match : matches) {
    if (match.range.begin > done) {
      TENON_RETURN_IF_ERROR(add_gap(text.substr(done, match.range.begin - done), done));
    }
    ids_.push_back(match.id);
    done = match.range.end;
  }
  if (done < text.size()) TENON_RETURN_IF_ERROR(add_gap(text.substr(done), done));
  if (options_.add_special) ids_.insert(ids_.end(), parts.suffix.begin(), parts.suffix.end());
  return std::move(ids_);
}

std::string Encoding::marks_of(size_t offset, size_t size) const {
  std::string marks(size, '\0');
  const auto& ranges = options_.untrusted;
  auto range = std::partition_point(ranges.begin(), ranges.end(),
                                    [&](const TextRange& r) { return r.end <= offset; });
  for (; range != ranges.end() && range->begin < offset + size; ++range) {
    const size_t begin = std::max(range->begin, offset);
    const size_t end = std::min(range->end, offset + size);
    std::fill(marks.begin() + static_cast<long>(begin - offset),
              marks.begin() + static_cast<long>(end - offset), '\1');
  }
  return marks;
}

Status Encoding::add_gap(std::string_view text, size_t offset) {
  const bool looks_for_more = options_.parse_special && !tokenizer_.normalized_.empty();
  const bool valid = is_valid_utf8(text);
  invalid_ = InvalidBytes();  // the block that an earlier gap used may be this one's own text
  if (valid && !looks_for_more && tokenizer_.parts_.normalizer.empty())
    return add_words(text, offset == 0);
  MarkedText marked{std::string(text), {}};
  if (looks_for_more && !options_.untrusted.empty()) marked.marks = marks_of(offset, text.size());
  if (!valid) TENON_RETURN_IF_ERROR(invalid_.escape(marked));
  TENON_RETURN_IF_ERROR(tokenizer_.parts_.normalizer.apply(marked, matcher_));
  return add_normalized(marked, offset);
}

Status Encoding::add_normalized(const MarkedText& marked, size_t offset) {
  const std::string_view text = marked.text;
  std::vector<AddedTokenMatcher::Match> matches;
  if (options_.parse_special) {
    const auto trusted = [&](size_t begin, size_t end) {
      return marked.marks.empty() ||
             std::string_view(marked.marks).substr(begin, end - begin).find('\1') ==
                 std::string_view::npos;
    };
    tokenizer_.normalized_.find_all(text, trusted, matches);
  }
  size_t done = 0;
  for (const AddedTokenMatcher::Match& match : matches) {
    if (match.range.begin > done) {
      TENON_RETURN_IF_ERROR(
          add_words(text.substr(done, match.range.begin - done), offset == 0 && done == 0));
    }
    ids_.push_back(match.id);
    done = match.range.end;
  }
  if (done < text.size()) return add_words(text.substr(done), offset == 0 && done == 0);
  return ok_status();
}

Status Encoding::add_words(std::string_view text, bool begins_input) {
  const BpeModel& model = tokenizer_.model_;
  WordCuts cuts;
  cuts.text = text;
  cuts.pieces = {{0, text.size()}};
  cuts.begins_input = begins_input;
  TENON_RETURN_IF_ERROR(tokenizer_.parts_.pre_tokenizer.apply(cuts, matcher_));

  WordCache cache(cuts.text.size());
  const auto add_word = [&](std::string_view word) {
    cache.append(word, ids_,
                 [&] { model.encode_word(invalid_.restore(word, restored_), scratch_, ids_); });
  };
  const bool cut_marks = model.cuts_before_word_mark();
  for (const TextRange& piece : cuts.pieces) {
    const std::string_view word = cuts.text.substr(piece.begin, piece.end - piece.begin);
    size_t begin = 0;
    if (cut_marks) {
      for (size_t at = word.find(kWordMark, 1); at != word.npos;
           at = word.find(kWordMark, at + kWordMark.size())) {
        if (word.substr(0, at).ends_with(kWordMark)) continue;
        add_word(word.substr(begin, at - begin));
        begin = at;
      }
    }
    add_word(word.substr(begin));
  }
  return ok_status();
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> make_bpe_tokenizer(BpeTokenizerParts parts) {
  std::vector<bool> special(static_cast<size_t>(parts.vocabulary->size()));
  for (const AddedToken& token : parts.added) {
    TENON_CHECK(parts.vocabulary->has(token.id));
    if (token.special) special[static_cast<size_t>(token.id)] = true;
  }
  BpeModel model(parts.vocabulary, parts.bpe, std::move(special));
  if (parts.bpe.byte_level && parts.bpe.byte_fallback && !model.has_all_bytes()) {
    return unsupported("a byte-level vocabulary without all bytes, with byte_fallback");
  }
  model.reserve_merges(parts.merges.size());
  for (const BpeMerge& merge : parts.merges) model.add_merge(merge.left, merge.right, merge.merged);

  AddedTokenMatcher raw, normalized;
  Regex::Matcher matcher;
  for (const AddedToken& token : parts.added) {
    if (!token.normalized) {
      raw.add(token, token.content);
      continue;
    }
    MarkedText content{token.content, {}};
    TENON_RETURN_IF_ERROR(parts.normalizer.apply(content, matcher));
    normalized.add(token, content.text);
  }
  return std::shared_ptr<const Tokenizer>(std::make_shared<BpeTokenizer>(
      std::move(parts), std::move(model), std::move(raw), std::move(normalized)));
}

}  // namespace tenon
