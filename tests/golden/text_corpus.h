// The mixed text of the tokenizer goldens: 2 MB made from the small seed file by a fixed mixer, the
// same as in text_tokenizer.py. Ownership: values. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "text/utf8.h"

namespace tenon::golden {

class Corpus {
 public:
  static constexpr size_t kChunks = 512;
  static constexpr size_t kChunkBytes = 4096;  // a chunk ends with the item that reaches this size

  explicit Corpus(const std::string& seed_path) {
    std::ifstream file(seed_path, std::ios::binary);
    if (!file) throw std::runtime_error("cannot read " + seed_path);
    const nlohmann::json seed = nlohmann::json::parse(file);
    seed.at("prose").get_to(prose_);
    seed.at("code").get_to(code_);
    seed.at("other").get_to(other_);
    seed.at("separators").get_to(separators_);
  }

  std::vector<std::string> chunks() {
    std::vector<std::string> result(kChunks);
    for (std::string& chunk : result) {
      while (chunk.size() < kChunkBytes) add_item(chunk);
    }
    return result;
  }

 private:
  uint64_t next() {  // splitmix64
    state_ += 0x9E3779B97F4A7C15ULL;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  uint64_t below(uint64_t limit) { return next() % limit; }
  const std::string& pick(const std::vector<std::string>& from) { return from[below(from.size())]; }

  void add_item(std::string& out) {
    const uint64_t kind = below(16);
    if (kind < 8) {
      out += pick(prose_);
    } else if (kind < 10) {
      out += pick(code_);
    } else if (kind < 12) {
      out += pick(other_);
    } else if (kind == 12) {
      for (uint64_t digits = 1 + below(20); digits > 0; --digits)
        out += static_cast<char>('0' + below(10));
    } else if (kind == 13) {
      add_code_points(out);
    } else if (kind == 14) {
      add_slice(out);
    } else {
      add_valid_bytes(out);
    }
    out += pick(separators_);
  }

  // Code points of one range of Unicode.
  void add_code_points(std::string& out) {
    struct Range {
      char32_t first, size;
    };
    constexpr Range kRanges[] = {{0x0, 0x20},      {0x7F, 0x22},      {0xA0, 0x160},
                                 {0x2B0, 0xD0},    {0x370, 0x1490},   {0x2000, 0x70},
                                 {0x2070, 0xF90},  {0x3000, 0x100},   {0xA000, 0x3800},
                                 {0xE000, 0x2000}, {0x10000, 0x2000}, {0x1D100, 0x3000}};
    const Range range = kRanges[below(12)];
    for (uint64_t count = 1 + below(12); count > 0; --count) {
      append_utf8(range.first + static_cast<char32_t>(below(range.size)), out);
    }
  }

  // A part of a sentence, cut between characters.
  void add_slice(std::string& out) {
    const std::string& text = pick(prose_);
    std::vector<size_t> starts;
    for (size_t i = 0; i < text.size(); i += decode_utf8(text, i).length) starts.push_back(i);
    const size_t begin = below(starts.size());
    const size_t end = begin + below(starts.size() - begin);
    out.append(text, starts[begin], starts[end] - starts[begin]);
  }

  // Random bytes without what is not UTF-8.
  void add_valid_bytes(std::string& out) {
    std::string bytes;
    for (int i = 0; i < 64; ++i) bytes += static_cast<char>(below(256));
    for (size_t i = 0; i < bytes.size();) {
      const Utf8Char character = decode_utf8(bytes, i);
      if (character.valid) out.append(bytes, i, character.length);
      i += character.length;
    }
  }

  uint64_t state_ = 2024;
  std::vector<std::string> prose_, code_, other_, separators_;
};

}  // namespace tenon::golden
