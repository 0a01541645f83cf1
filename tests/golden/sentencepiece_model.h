// Reads the pieces of a SentencePiece model file (a protocol buffer), for tests that build
// tokenizers from one.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tenon::golden {

struct SentencePieceEntry {
  std::string text;
  float score = 0;
  int32_t type = 1;  // as in GGUF: 1 normal, 2 unknown, 3 control, 4 user-defined, 6 byte
};

class ProtoReader {
 public:
  explicit ProtoReader(std::string_view bytes) : bytes_(bytes) {}

  struct Field {
    uint64_t number = 0;
    uint64_t value = 0;      // wire types 0 and 5
    std::string_view bytes;  // wire type 2
  };
  // False at the end.
  bool next(Field& field) {
    if (at_ >= bytes_.size()) return false;
    const uint64_t key = varint();
    field = {key >> 3, 0, {}};
    switch (key & 7) {
      case 0: field.value = varint(); return true;
      case 2: field.bytes = take(varint()); return true;
      case 5: {
        uint32_t value = 0;
        std::memcpy(&value, take(sizeof(value)).data(), sizeof(value));
        field.value = value;
        return true;
      }
      default: throw std::runtime_error("unexpected wire type");
    }
  }

 private:
  std::string_view take(uint64_t size) {
    if (size > bytes_.size() - at_) throw std::runtime_error("the file ends inside a field");
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<uint8_t>(take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    throw std::runtime_error("a number without end");
  }

  std::string_view bytes_;
  size_t at_ = 0;
};

inline std::vector<SentencePieceEntry> read_sentencepiece_model(std::string_view bytes) {
  std::vector<SentencePieceEntry> entries;
  ProtoReader model(bytes);
  for (ProtoReader::Field piece; model.next(piece);) {
    if (piece.number != 1) continue;
    SentencePieceEntry entry;
    ProtoReader reader(piece.bytes);
    for (ProtoReader::Field field; reader.next(field);) {
      if (field.number == 1) entry.text = field.bytes;
      if (field.number == 3) entry.type = static_cast<int32_t>(field.value);
      if (field.number == 2) {
        const auto bits = static_cast<uint32_t>(field.value);
        std::memcpy(&entry.score, &bits, sizeof(bits));
      }
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace tenon::golden
