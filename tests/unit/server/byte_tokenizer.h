// One token a byte, and three special ones: 256 <s>, 257 <|im_start|>, 258 <|im_end|>.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace tenon::testing {

class ByteTokenizer final : public Tokenizer {
 public:
  static constexpr int32_t kBos = 256, kStart = 257, kEnd = 258;
  std::atomic<int32_t> failing{-1};  // token_bytes() of this one throws

  explicit ByteTokenizer(bool adds_bos = false) : adds_bos_(adds_bos) {
    for (int i = 0; i < 256; ++i) texts_.push_back(std::string(1, static_cast<char>(i)));
    for (const char* special : kSpecial) texts_.emplace_back(special);
  }

  [[nodiscard]] Result<std::vector<int32_t>> encode(std::string_view text,
                                                    const EncodeOptions& options) const override {
    std::vector<int32_t> ids;
    if (options.add_special && adds_bos_) ids.push_back(kBos);
    for (size_t at = 0; at < text.size();) {
      int32_t id = static_cast<uint8_t>(text[at]);
      for (size_t i = 0; i < kSpecial.size() && options.parse_special; ++i) {
        const std::string_view special = kSpecial[i];
        if (text.substr(at, special.size()) == special && trusted(at, special.size(), options)) {
          id = kBos + static_cast<int32_t>(i);
        }
      }
      ids.push_back(id);
      at += texts_[static_cast<size_t>(id)].size();
    }
    return ids;
  }
  [[nodiscard]] std::string_view token_bytes(int32_t id) const override {
    if (id == failing.load()) throw std::runtime_error("a token without bytes");
    return texts_[static_cast<size_t>(id)];
  }
  [[nodiscard]] std::string_view token_text(int32_t id) const override {
    return texts_[static_cast<size_t>(id)];
  }
  [[nodiscard]] bool is_special(int32_t id) const override { return id >= kBos; }
  [[nodiscard]] std::optional<int32_t> find_token(std::string_view text) const override {
    const auto found = std::find(texts_.begin(), texts_.end(), text);
    if (found == texts_.end()) return std::nullopt;
    return static_cast<int32_t>(found - texts_.begin());
  }
  [[nodiscard]] int32_t vocab_size() const override { return static_cast<int32_t>(texts_.size()); }
  [[nodiscard]] std::optional<int32_t> bos_id() const override { return kBos; }
  [[nodiscard]] std::optional<int32_t> eos_id() const override { return kEnd; }
  [[nodiscard]] const std::vector<int32_t>& end_ids() const override { return end_ids_; }
  [[nodiscard]] bool adds_bos() const override { return adds_bos_; }
  [[nodiscard]] bool strips_leading_space() const override { return false; }

 private:
  static constexpr std::array<const char*, 3> kSpecial = {"<s>", "<|im_start|>", "<|im_end|>"};
  static bool trusted(size_t at, size_t length, const EncodeOptions& options) {
    return std::none_of(
        options.untrusted.begin(), options.untrusted.end(),
        [&](const TextRange& range) { return at < range.end && range.begin < at + length; });
  }

  const bool adds_bos_;
  std::vector<std::string> texts_;
  std::vector<int32_t> end_ids_ = {kEnd};
};

}  // namespace tenon::testing
