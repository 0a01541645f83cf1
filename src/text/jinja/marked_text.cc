#include "text/jinja/marked_text.h"

#include <algorithm>

#include "text/jinja/unicode.h"

namespace tenon::jinja {

MarkedText::MarkedText(std::string bytes, bool untrusted) : bytes_(std::move(bytes)) {
  if (untrusted) mark_all();
}

bool MarkedText::is_untrusted_at(size_t position) const {
  const auto next =
      std::upper_bound(untrusted_.begin(), untrusted_.end(), position,
                       [](size_t value, const TextRange& range) { return value < range.end; });
  return next != untrusted_.end() && next->begin <= position;
}

size_t MarkedText::length() const {
  return count_code_points(bytes_);
}

void MarkedText::append(std::string_view bytes, bool untrusted) {
  const size_t begin = bytes_.size();
  bytes_.append(bytes);
  if (untrusted) mark(begin, bytes_.size());
}

void MarkedText::append(const MarkedText& other, size_t begin, size_t end) {
  const size_t base = bytes_.size();
  bytes_.append(other.bytes_, begin, end - begin);
  const auto& ranges = other.untrusted_;
  auto range = std::upper_bound(ranges.begin(), ranges.end(), begin,
                                [](size_t value, const TextRange& r) { return value < r.end; });
  for (; range != ranges.end() && range->begin < end; ++range) {
    mark(base + std::max(range->begin, begin) - begin, base + std::min(range->end, end) - begin);
  }
}

MarkedText MarkedText::slice(size_t begin, size_t end) const {
  MarkedText part;
  part.append(*this, begin, end);
  return part;
}

void MarkedText::truncate(size_t size) {
  bytes_.resize(size);
  while (!untrusted_.empty() && untrusted_.back().begin >= size) untrusted_.pop_back();
  if (!untrusted_.empty()) untrusted_.back().end = std::min(untrusted_.back().end, size);
}

void MarkedText::mark_all() {
  untrusted_.clear();
  mark(0, bytes_.size());
}

void MarkedText::mark(size_t begin, size_t end) {
  if (begin == end) return;
  if (!untrusted_.empty() && untrusted_.back().end == begin) {
    untrusted_.back().end = end;
  } else {
    untrusted_.push_back({begin, end});
  }
}

}  // namespace tenon::jinja
