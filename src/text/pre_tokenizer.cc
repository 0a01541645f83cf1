#include "text/pre_tokenizer.h"

#include <algorithm>

namespace tenon {
namespace {

struct Part {
  TextRange range;
  bool is_match;
};

// Matches and the gaps between them, in order; offsets are those of the matches, moved by `offset`.
void parts_of(const std::vector<TextRange>& matches,
              size_t offset,
              size_t size,
              bool invert,
              std::vector<Part>& parts) {
  parts.clear();
  size_t done = 0;
  for (const TextRange& match : matches) {
    if (match.begin > done) parts.push_back({{offset + done, offset + match.begin}, invert});
    parts.push_back({{offset + match.begin, offset + match.end}, !invert});
    done = match.end;
  }
  if (done < size) parts.push_back({{offset + done, offset + size}, invert});
}

// Appends the pieces that `behavior` makes of the parts. Empty pieces vanish.
void append_pieces(const std::vector<Part>& parts,
                   SplitBehavior behavior,
                   std::vector<TextRange>& pieces) {
  const size_t first = pieces.size();
  const auto extend_or_push = [&](const TextRange& range, bool extend) {
    if (extend && pieces.size() > first) {
      pieces.back().end = range.end;
    } else {
      pieces.push_back(range);
    }
  };
  bool previous_match = false;
  switch (behavior) {
    case SplitBehavior::kIsolated:
      for (const Part& part : parts) pieces.push_back(part.range);
      break;
    case SplitBehavior::kRemoved:
      for (const Part& part : parts) {
        if (!part.is_match) pieces.push_back(part.range);
      }
      break;
    case SplitBehavior::kContiguous:
      for (const Part& part : parts) {
        extend_or_push(part.range, part.is_match == previous_match);
        previous_match = part.is_match;
      }
      break;
    case SplitBehavior::kMergedWithPrevious:
      for (const Part& part : parts) {
        extend_or_push(part.range, part.is_match && !previous_match);
        previous_match = part.is_match;
      }
      break;
    case SplitBehavior::kMergedWithNext:
      for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
        if (part->is_match && !previous_match && pieces.size() > first) {
          pieces.back().begin = part->range.begin;
        } else {
          pieces.push_back(part->range);
        }
        previous_match = part->is_match;
      }
      std::reverse(pieces.begin() + static_cast<ptrdiff_t>(first), pieces.end());
      break;
  }
  const auto kept = std::remove_if(pieces.begin() + static_cast<ptrdiff_t>(first), pieces.end(),
                                   [](const TextRange& range) { return range.begin == range.end; });
  pieces.erase(kept, pieces.end());
}

Status apply_step(const SplitStep& step, WordCuts& cuts, Regex::Matcher& matcher) {
  std::vector<TextRange> pieces;
  pieces.reserve(cuts.pieces.size());
  std::vector<TextRange> matches;
  std::vector<Part> parts;
  for (const TextRange& piece : cuts.pieces) {
    const std::string_view text = cuts.text.substr(piece.begin, piece.end - piece.begin);
    TENON_RETURN_IF_ERROR(step.pattern->find_all(text, matcher, matches));
    parts_of(matches, piece.begin, text.size(), step.invert, parts);
    append_pieces(parts, step.behavior, pieces);
  }
  cuts.pieces = std::move(pieces);
  return ok_status();
}

// Rewrites every piece through `rewrite(piece, is_first, out)`.
template <typename Rewrite>
void rewrite_pieces(WordCuts& cuts, Rewrite&& rewrite) {
  cuts.begins_input = cuts.begins_input && !cuts.pieces.empty() && cuts.pieces.front().begin == 0;
  std::string text;
  text.reserve(cuts.text.size() + cuts.text.size() / 4);
  bool first = true;
  for (TextRange& piece : cuts.pieces) {
    const size_t begin = text.size();
    rewrite(cuts.text.substr(piece.begin, piece.end - piece.begin), first, text);
    first = false;
    piece = {begin, text.size()};
  }
  cuts.storage = std::move(text);
  cuts.text = cuts.storage;
}

Status apply_step(const MetaspaceStep& step, WordCuts& cuts, Regex::Matcher&) {
  rewrite_pieces(cuts, [&](std::string_view piece, bool first, std::string& out) {
    const bool wanted = step.prefix == PrefixScheme::kAlways ||
                        (step.prefix == PrefixScheme::kFirst && first && cuts.begins_input);
    if (wanted && !piece.starts_with(' ') && !piece.starts_with(step.mark)) out += step.mark;
    for (const char c : piece) {
      if (c == ' ') {
        out += step.mark;
      } else {
        out += c;
      }
    }
  });
  if (!step.split) return ok_status();
  std::vector<TextRange> pieces;
  for (const TextRange& piece : cuts.pieces) {
    // Every mark begins a piece.
    const std::string_view text = cuts.text.substr(0, piece.end);
    size_t begin = piece.begin;
    for (size_t at = text.find(step.mark, begin + 1); at != text.npos;
         at = text.find(step.mark, at + 1)) {
      pieces.push_back({begin, at});
      begin = at;
    }
    pieces.push_back({begin, piece.end});
  }
  cuts.pieces = std::move(pieces);
  return ok_status();
}

Status apply_step(const PrefixSpaceStep&, WordCuts& cuts, Regex::Matcher&) {
  rewrite_pieces(cuts, [](std::string_view piece, bool, std::string& out) {
    if (!piece.starts_with(' ')) out += ' ';
    out += piece;
  });
  return ok_status();
}

}  // namespace

Status PreTokenizer::apply(WordCuts& cuts, Regex::Matcher& matcher) const {
  for (const Step& step : steps_) {
    TENON_RETURN_IF_ERROR(
        std::visit([&](const auto& s) { return apply_step(s, cuts, matcher); }, step));
  }
  return ok_status();
}

}  // namespace tenon
