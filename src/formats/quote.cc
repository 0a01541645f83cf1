#include "formats/quote.h"

#include <fmt/format.h>

namespace tenon {

std::string quote_name(std::string_view name) {
  constexpr size_t kMaxBytes = 80;
  std::string out = "'";
  for (const char c : name.substr(0, kMaxBytes)) {
    if (c >= 0x20 && c < 0x7F) {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  if (name.size() > kMaxBytes) out += "...";
  out += '\'';
  return out;
}

}  // namespace tenon
