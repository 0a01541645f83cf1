// Hashing of text that a client chose, for hash tables: with a key of this process, so that nobody
// can prepare colliding keys.
// Thread safety: pure function.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "base/hash.h"

namespace tenon {

struct KeyedHash {
  size_t operator()(std::string_view text) const {
    static const HashKey key = random_hash_key();
    SipHasher hasher(key);
    hasher.update(std::as_bytes(std::span(text)));
    return hasher.finish().lo;
  }
};

}  // namespace tenon
