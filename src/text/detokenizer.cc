#include "text/detokenizer.h"

#include "text/utf8.h"

namespace tenon {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

}  // namespace

void Utf8Assembler::push(std::string_view bytes, std::string& out) {
  if (pending_.empty() && is_valid_utf8(bytes)) {
    out += bytes;
    return;
  }
  pending_ += bytes;
  size_t done = 0;
  while (done < pending_.size()) {
    const Utf8Char character = decode_utf8(pending_, done);
    if (character.cut) break;
    if (character.valid) {
      out.append(pending_, done, character.length);
    } else {
      out += kReplacement;
    }
    done += character.length;
  }
  pending_.erase(0, done);
}

void Utf8Assembler::finish(std::string& out) {
  if (!pending_.empty()) out += kReplacement;
  pending_.clear();
}

Detokenizer::Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, DetokenizerOptions options)
    : tokenizer_(std::move(tokenizer)),
      options_(std::move(options)),
      stops_(options_.stop),
      strip_space_(tokenizer_->strips_leading_space() && !options_.continues_text) {}

Detokenizer::Delta Detokenizer::push(int32_t token) {
  ++tokens_;
  if (ended_ || (options_.skip_special && tokenizer_->is_special(token))) return {};
  std::string_view bytes = tokenizer_->token_bytes(token);
  if (bytes.empty()) return {};
  if (strip_space_ && bytes.front() == ' ') bytes.remove_prefix(1);
  strip_space_ = false;
  std::string complete;
  assembler_.push(bytes, complete);
  return release(complete, false);
}

Detokenizer::Delta Detokenizer::finish() {
  if (ended_) return {};
  std::string complete;
  assembler_.finish(complete);
  Delta delta = release(complete, true);
  ended_ = true;
  return delta;
}

Detokenizer::Delta Detokenizer::release(std::string_view added, bool final) {
  std::optional<StopMatcher::Hit> hit;
  if (tokens_ > options_.min_tokens) hit = stops_.feed(added);
  held_ += added;
  Delta delta;
  if (hit) {
    // Everything held so far and the part of `added` up to the stop string.
    size_t end = held_.size() - added.size() + hit->end;
    if (!options_.include_stop_string) end -= hit->stop->size();
    held_.resize(end);
    delta.stopped_by = *hit->stop;
    ended_ = true;
  }
  size_t keep = hit || final ? 0 : stops_.open_length();
  // A stop string may begin inside a character only if it is not valid UTF-8; never send half a
  // character for it.
  while (keep > 0 && keep < held_.size() &&
         (static_cast<uint8_t>(held_[held_.size() - keep]) & 0xC0) == 0x80)
    ++keep;
  delta.text = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  text_ += delta.text;
  return delta;
}

}  // namespace tenon
