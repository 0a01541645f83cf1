#include "text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/check.h"
#include "text/unicode_differences.h"
#include "text/utf8.h"

namespace tenon {
namespace {

// No character below this one ever combines with what stands before it, in any normal form.
constexpr char32_t kFirstCombining = 0x300;

class FormNormalizer {
 public:
  FormNormalizer(UnicodeForm form, const MarkedText& in, MarkedText& out)
      : form_(form), in_(in), out_(out) {}

  void run() {
    out_.text.reserve(in_.text.size());
    out_.marks.reserve(in_.marks.size());
    for (size_t begin = 0; begin < in_.text.size();) {
      // One character and everything that may combine with it or with each other.
      const Utf8Char first = decode_utf8(in_.text, begin);
      const bool alone = has_later_normalization(first.code);
      size_t end = begin + first.length;
      while (!alone && end < in_.text.size() && static_cast<uint8_t>(in_.text[end]) >= 0x80) {
        const Utf8Char next = decode_utf8(in_.text, end);
        if (next.code < kFirstCombining || has_later_normalization(next.code)) break;
        end += next.length;
      }
      if (alone || end == begin + 1) {
        copy(begin, end);
      } else {
        normalize(begin, end);
      }
      begin = end;
    }
  }

 private:
  void copy(size_t begin, size_t end) {
    out_.text.append(in_.text, begin, end - begin);
    if (!in_.marks.empty()) out_.marks.append(in_.marks, begin, end - begin);
  }

  void normalize(size_t begin, size_t end) {
    decompose(begin, end);
    reorder();
    auto length = static_cast<utf8proc_ssize_t>(codes_.size());
    if (form_.compose) {
      length = utf8proc_normalize_utf32(
          codes_.data(), length,
          static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
      TENON_CHECK_GE(length, 0);
    }
    result_.clear();
    for (utf8proc_ssize_t i = 0; i < length; ++i)
      append_utf8(static_cast<char32_t>(codes_[static_cast<size_t>(i)]), result_);
    if (result_ == std::string_view(in_.text).substr(begin, end - begin)) return copy(begin, end);
    out_.text += result_;
    if (in_.marks.empty()) return;
    const auto first = in_.marks.begin() + static_cast<ptrdiff_t>(begin);
    const bool marked = std::any_of(first, first + static_cast<ptrdiff_t>(end - begin),
                                    [](char m) { return m != 0; });
    out_.marks.append(result_.size(), marked ? 1 : 0);
  }

  void decompose(size_t begin, size_t end) {
    constexpr utf8proc_ssize_t kLongest = 18;  // code points of the longest decomposition (U+FDFA)
    const auto options = static_cast<utf8proc_option_t>(
        UTF8PROC_DECOMPOSE | UTF8PROC_STABLE | (form_.compatibility ? UTF8PROC_COMPAT : 0));
    codes_.clear();
    for (size_t i = begin; i < end;) {
      const Utf8Char character = decode_utf8(in_.text, i);
      i += character.length;
      const size_t used = codes_.size();
      codes_.resize(used + kLongest);
      int boundary = 0;
      const utf8proc_ssize_t count =
          utf8proc_decompose_char(static_cast<utf8proc_int32_t>(character.code),
                                  codes_.data() + used, kLongest, options, &boundary);
      TENON_CHECK_GE(count, 0);
      TENON_CHECK_LE(count, kLongest);
      codes_.resize(used + static_cast<size_t>(count));
    }
  }

  // Canonical ordering. A stable sort of each run of marks, because utf8proc's own ordering is
  // quadratic.
  void reorder() {
    const auto combining_class = [](utf8proc_int32_t code) {
      return utf8proc_get_property(code)->combining_class;
    };
    for (auto begin = codes_.begin(); begin != codes_.end();) {
      if (combining_class(*begin) == 0) {
        ++begin;
        continue;
      }
      const auto end =
          std::find_if(begin, codes_.end(), [&](auto code) { return combining_class(code) == 0; });
      std::stable_sort(begin, end,
                       [&](auto a, auto b) { return combining_class(a) < combining_class(b); });
      begin = end;
    }
  }

  const UnicodeForm form_;
  const MarkedText& in_;
  MarkedText& out_;
  std::vector<utf8proc_int32_t> codes_;
  std::string result_;
};

Status apply_step(const UnicodeForm& form, MarkedText& text, Regex::Matcher&) {
  MarkedText out;
  FormNormalizer(form, text, out).run();
  text = std::move(out);
  return ok_status();
}

Status apply_step(const PrependText& prepend, MarkedText& text, Regex::Matcher&) {
  if (text.text.empty()) return ok_status();
  text.text.insert(0, prepend.text);
  if (!text.marks.empty()) text.marks.insert(0, prepend.text.size(), 0);
  return ok_status();
}

Status apply_step(const ReplaceMatches& replace, MarkedText& text, Regex::Matcher& matcher) {
  std::vector<TextRange> matches;
  TENON_RETURN_IF_ERROR(replace.pattern->find_all(text.text, matcher, matches));
  if (matches.empty()) return ok_status();
  MarkedText out;
  size_t done = 0;
  const auto copy_until = [&](size_t end) {
    out.text.append(text.text, done, end - done);
    if (!text.marks.empty()) out.marks.append(text.marks, done, end - done);
  };
  for (const TextRange& match : matches) {
    copy_until(match.begin);
    out.text += replace.content;
    if (!text.marks.empty()) {
      const bool marked = text.marks.find('\1', match.begin) < match.end;
      out.marks.append(replace.content.size(), marked ? '\1' : '\0');
    }
    done = match.end;
  }
  copy_until(text.text.size());
  text = std::move(out);
  return ok_status();
}

}  // namespace

Status Normalizer::apply(MarkedText& text, Regex::Matcher& matcher) const {
  for (const Step& step : steps_) {
    TENON_RETURN_IF_ERROR(
        std::visit([&](const auto& s) { return apply_step(s, text, matcher); }, step));
  }
  return ok_status();
}

}  // namespace tenon
