// A UTF-8 string that knows which of its bytes came from the caller's input and which from the
// template.
//
// Every operation that makes a string from others goes through append(), so that a mark follows its
// characters wherever they are copied. Ownership: value. Thread safety: const members are safe from
// any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace tenon::jinja {

class MarkedText {
 public:
  MarkedText() = default;
  explicit MarkedText(std::string bytes, bool untrusted = false);

  [[nodiscard]] const std::string& bytes() const { return bytes_; }
  [[nodiscard]] std::string_view view() const { return bytes_; }
  [[nodiscard]] size_t size() const { return bytes_.size(); }
  [[nodiscard]] bool empty() const { return bytes_.empty(); }
  [[nodiscard]] const std::vector<TextRange>& untrusted() const { return untrusted_; }
  [[nodiscard]] bool has_untrusted() const { return !untrusted_.empty(); }
  [[nodiscard]] bool is_untrusted_at(size_t position) const;
  // Number of code points.
  [[nodiscard]] size_t length() const;

  void reserve(size_t bytes) { bytes_.reserve(bytes); }
  void append(std::string_view bytes, bool untrusted);
  void append(const MarkedText& other) { append(other, 0, other.size()); }
  // Bytes [begin, end) of other, with their marks.
  void append(const MarkedText& other, size_t begin, size_t end);
  [[nodiscard]] MarkedText slice(size_t begin, size_t end) const;
  // Cuts the text off at a byte position.
  void truncate(size_t size);
  void mark_all();

  std::string take_bytes() && { return std::move(bytes_); }
  std::vector<TextRange> take_untrusted() && { return std::move(untrusted_); }

 private:
  void mark(size_t begin, size_t end);

  std::string bytes_;
  std::vector<TextRange> untrusted_;  // sorted, disjoint, not touching
};

// Walks forward over a text and says for each position whether it is marked; cheaper than a search
// for each.
class MarkCursor {
 public:
  explicit MarkCursor(const MarkedText& text) : ranges_(text.untrusted()) {}
  // Positions must not decrease from call to call.
  [[nodiscard]] bool at(size_t position) {
    while (next_ < ranges_.size() && ranges_[next_].end <= position) ++next_;
    return next_ < ranges_.size() && ranges_[next_].begin <= position;
  }

 private:
  const std::vector<TextRange>& ranges_;
  size_t next_ = 0;
};

}  // namespace tenon::jinja
