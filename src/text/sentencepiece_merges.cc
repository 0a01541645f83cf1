#include "text/sentencepiece_merges.h"

#include <algorithm>
#include <tuple>

namespace tenon {
namespace {

struct Candidate {
  BpeMerge merge;
  float score;
  uint32_t left_characters, right_characters;
};

bool begins_character(char byte) {
  return (static_cast<uint8_t>(byte) & 0xC0) != 0x80;
}

}  // namespace

std::vector<BpeMerge> merges_from_scores(const Vocabulary& vocabulary,
                                         std::span<const float> scores,
                                         const std::vector<bool>& skipped) {
  std::vector<Candidate> candidates;
  const auto takes_part = [&](std::optional<int32_t> id) {
    return id && !skipped[static_cast<size_t>(*id)];
  };
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    if (!takes_part(id)) continue;
    const std::string_view text = vocabulary.text(id);
    const auto total =
        static_cast<uint32_t>(std::count_if(text.begin(), text.end(), begins_character));
    uint32_t left_characters = 0;
    for (size_t cut = 1; cut < text.size(); ++cut) {
      if (!begins_character(text[cut])) continue;
      ++left_characters;
      const std::optional<int32_t> left = vocabulary.find(text.substr(0, cut));
      if (!takes_part(left)) continue;
      const std::optional<int32_t> right = vocabulary.find(text.substr(cut));
      if (!takes_part(right)) continue;
      candidates.push_back({{*left, *right, id},
                            scores[static_cast<size_t>(id)],
                            left_characters,
                            total - left_characters});
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) {
                     return std::tie(b.score, b.left_characters, b.right_characters) <
                            std::tie(a.score, a.left_characters, a.right_characters);
                   });
  std::vector<BpeMerge> merges;
  merges.reserve(candidates.size());
  for (const Candidate& candidate : candidates) merges.push_back(candidate.merge);
  return merges;
}

}  // namespace tenon
