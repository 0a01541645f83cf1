#include "text/stop_matcher.h"

#include <algorithm>

namespace tenon {

StopMatcher::StopMatcher(std::vector<std::string> stops) {
  for (std::string& text : stops) {
    if (text.empty()) continue;
    Stop stop{std::move(text), {}, 0};
    stop.failure.assign(stop.text.size(), 0);
    for (size_t i = 1; i < stop.text.size(); ++i) {
      size_t border = stop.failure[i - 1];
      while (border > 0 && stop.text[i] != stop.text[border]) border = stop.failure[border - 1];
      stop.failure[i] = static_cast<uint32_t>(border + (stop.text[i] == stop.text[border] ? 1 : 0));
    }
    stops_.push_back(std::move(stop));
  }
}

std::optional<StopMatcher::Hit> StopMatcher::feed(std::string_view text) {
  if (stops_.empty()) return std::nullopt;
  for (size_t i = 0; i < text.size(); ++i) {
    const Stop* hit = nullptr;
    for (Stop& stop : stops_) {
      while (stop.matched > 0 && stop.text[stop.matched] != text[i])
        stop.matched = stop.failure[stop.matched - 1];
      if (stop.text[stop.matched] == text[i]) ++stop.matched;
      if (stop.matched == stop.text.size() &&
          (hit == nullptr || stop.text.size() > hit->text.size()))
        hit = &stop;
    }
    if (hit != nullptr) return Hit{&hit->text, i + 1};
  }
  return std::nullopt;
}

size_t StopMatcher::open_length() const {
  size_t longest = 0;
  for (const Stop& stop : stops_) longest = std::max(longest, stop.matched);
  return longest;
}

}  // namespace tenon
