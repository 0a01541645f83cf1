// Keyed hashing: SipHash-2-4 with 128-bit output (Aumasson and Bernstein, 2012), and a writer that
// feeds it tagged, length-prefixed fields, so that two different lists of fields never hash the
// same bytes.
//
// Ownership:     values.
// Thread safety: distinct objects are independent.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace tenon {

struct HashKey {
  uint64_t k0 = 0, k1 = 0;
};
// From the operating system's random source: whoever does not know it cannot construct collisions.
[[nodiscard]] HashKey random_hash_key();

struct Hash128 {
  uint64_t lo = 0, hi = 0;
  bool operator==(const Hash128&) const = default;
};

// Incremental SipHash-2-4-128.
class SipHasher {
 public:
  explicit SipHasher(const HashKey& key);
  void update(std::span<const std::byte> bytes);
  [[nodiscard]] Hash128 finish();  // once

 private:
  void absorb(uint64_t word);

  std::array<uint64_t, 4> v_;
  uint64_t tail_ = 0;  // bytes not yet absorbed, little-endian
  uint64_t num_bytes_ = 0;
};

// hash(key, fields): every field goes in as tag (1 byte), length in bytes (8), bytes.
class FieldHasher {
 public:
  explicit FieldHasher(const HashKey& key) : sip_(key) {}
  FieldHasher& add(uint8_t tag, std::string_view text);
  FieldHasher& add(uint8_t tag, std::span<const int32_t> values);
  FieldHasher& add(uint8_t tag, const Hash128& value);
  FieldHasher& add(uint8_t tag, uint64_t value);
  [[nodiscard]] Hash128 finish() { return sip_.finish(); }

 private:
  void add_bytes(uint8_t tag, std::span<const std::byte> bytes);

  SipHasher sip_;
};

}  // namespace tenon
