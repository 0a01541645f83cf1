#include "base/hash.h"

#include <sys/random.h>

#include <bit>
#include <cstring>

#include "base/check.h"

namespace tenon {
namespace {

static_assert(std::endian::native == std::endian::little, "words are read little-endian");

void sip_rounds(std::array<uint64_t, 4>& v, int count) {
  for (int i = 0; i < count; ++i) {
    v[0] += v[1];
    v[2] += v[3];
    v[1] = std::rotl(v[1], 13) ^ v[0];
    v[3] = std::rotl(v[3], 16) ^ v[2];
    v[0] = std::rotl(v[0], 32);
    v[2] += v[1];
    v[0] += v[3];
    v[1] = std::rotl(v[1], 17) ^ v[2];
    v[3] = std::rotl(v[3], 21) ^ v[0];
    v[2] = std::rotl(v[2], 32);
  }
}

}  // namespace

HashKey random_hash_key() {
  HashKey key;
  // Up to 256 bytes come whole or not at all once the kernel's source is initialised.
  TENON_CHECK_EQ(getrandom(&key, sizeof(key), 0), static_cast<ssize_t>(sizeof(key)));
  return key;
}

SipHasher::SipHasher(const HashKey& key)
    // The constants spell "somepseudorandomlygeneratedbytes"; 0xee marks 128-bit output.
    : v_{key.k0 ^ 0x736f6d6570736575ULL, key.k1 ^ 0x646f72616e646f6dULL ^ 0xee,
         key.k0 ^ 0x6c7967656e657261ULL, key.k1 ^ 0x7465646279746573ULL} {}

void SipHasher::absorb(uint64_t word) {
  v_[3] ^= word;
  sip_rounds(v_, 2);
  v_[0] ^= word;
}

void SipHasher::update(std::span<const std::byte> bytes) {
  // The tail holds num_bytes_ % 8 bytes; each whole word fills it up and leaves the same number
  // behind.
  const unsigned filled = 8 * static_cast<unsigned>(num_bytes_ % 8);
  num_bytes_ += bytes.size();
  while (bytes.size() >= 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), 8);
    absorb(filled == 0 ? word : tail_ | word << filled);
    tail_ = filled == 0 ? 0 : word >> (64 - filled);
    bytes = bytes.subspan(8);
  }
  unsigned at = filled;
  for (const std::byte byte : bytes) {
    tail_ |= static_cast<uint64_t>(byte) << at;
    at += 8;
    if (at == 64) {
      absorb(tail_);
      tail_ = 0;
      at = 0;
    }
  }
}

Hash128 SipHasher::finish() {
  absorb(tail_ | num_bytes_ << 56);
  v_[2] ^= 0xee;
  sip_rounds(v_, 4);
  Hash128 out;
  out.lo = v_[0] ^ v_[1] ^ v_[2] ^ v_[3];
  v_[1] ^= 0xdd;
  sip_rounds(v_, 4);
  out.hi = v_[0] ^ v_[1] ^ v_[2] ^ v_[3];
  return out;
}

void FieldHasher::add_bytes(uint8_t tag, std::span<const std::byte> bytes) {
  std::array<std::byte, 9> head{};
  head[0] = static_cast<std::byte>(tag);
  const uint64_t size = bytes.size();
  std::memcpy(&head[1], &size, sizeof(size));
  sip_.update(head);
  sip_.update(bytes);
}

FieldHasher& FieldHasher::add(uint8_t tag, std::string_view text) {
  add_bytes(tag, std::as_bytes(std::span(text)));
  return *this;
}

FieldHasher& FieldHasher::add(uint8_t tag, std::span<const int32_t> values) {
  add_bytes(tag, std::as_bytes(values));
  return *this;
}

FieldHasher& FieldHasher::add(uint8_t tag, const Hash128& value) {
  add_bytes(tag, std::as_bytes(std::span(&value, 1)));
  return *this;
}

FieldHasher& FieldHasher::add(uint8_t tag, uint64_t value) {
  add_bytes(tag, std::as_bytes(std::span(&value, 1)));
  return *this;
}

}  // namespace tenon
