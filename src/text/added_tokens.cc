#include "text/added_tokens.h"

#include <algorithm>

#include "text/utf8.h"

namespace tenon {
namespace {

uint64_t edge(uint64_t node, char byte) {
  return (node << 8) | static_cast<uint8_t>(byte);
}

size_t skip_space_forward(std::string_view text, size_t position) {
  while (position < text.size()) {
    const Utf8Char character = decode_utf8(text, position);
    if (!character.valid || !is_white_space(character.code)) break;
    position += character.length;
  }
  return position;
}

size_t skip_space_backward(std::string_view text, size_t position, size_t stop) {
  while (position > stop) {
    const Utf8Char character = decode_utf8_before(text, position);
    if (!character.valid || !is_white_space(character.code)) break;
    position -= character.length;
  }
  return std::max(position, stop);
}

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  if (begin > 0) {
    const Utf8Char before = decode_utf8_before(text, begin);
    if (before.valid && is_word_character(before.code)) return false;
  }
  if (end < text.size()) {
    const Utf8Char after = decode_utf8(text, end);
    if (after.valid && is_word_character(after.code)) return false;
  }
  return true;
}

}  // namespace

void AddedTokenMatcher::add(AddedToken token, std::string_view text) {
  if (text.empty()) return;
  begins_[static_cast<uint8_t>(text.front())] = true;
  uint64_t node = 0;
  for (const char byte : text) {
    if (const uint64_t* next = children_.find(edge(node, byte))) {
      node = *next;
      continue;
    }
    children_.set(edge(node, byte), token_at_.size());
    node = token_at_.size();
    token_at_.push_back(-1);
  }
  if (token_at_[node] >= 0) return;
  token_at_[node] = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(std::move(token));
}

void AddedTokenMatcher::find_all(std::string_view text,
                                 const Allowed& allowed,
                                 std::vector<Match>& matches) const {
  matches.clear();
  if (empty()) return;
  size_t done = 0;
  for (size_t begin = 0; begin < text.size();) {
    if (!begins_[static_cast<uint8_t>(text[begin])]) {
      ++begin;
      continue;
    }
    const AddedToken* longest = nullptr;
    size_t end = begin;
    uint64_t node = 0;
    for (size_t i = begin; i < text.size(); ++i) {
      const uint64_t* next = children_.find(edge(node, text[i]));
      if (next == nullptr) break;
      node = *next;
      if (token_at_[node] >= 0 && allowed(begin, i + 1)) {
        longest = &tokens_[static_cast<size_t>(token_at_[node])];
        end = i + 1;
      }
    }
    if (longest == nullptr) {
      ++begin;
      continue;
    }
    if (!longest->single_word || stands_alone(text, begin, end)) {
      Match match{{begin, end}, longest->id};
      if (longest->lstrip)
        match.range.begin = skip_space_backward(text, begin, std::min(done, begin));
      if (longest->rstrip) match.range.end = skip_space_forward(text, end);
      done = match.range.end;
      matches.push_back(match);
    }
    begin = end;
  }
}

}  // namespace tenon
