// Writes GGUF files that hold metadata alone, for tokenizer tests.
// Ownership: values. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace tenon::testing_support {

class MetadataGguf {
 public:
  void add(const std::string& key, const std::string& value) {
    begin(key, kString);
    text(value);
  }
  void add(const std::string& key, const char* value) { add(key, std::string(value)); }
  void add(const std::string& key, bool value) {
    begin(key, kBool);
    body_ += value ? '\1' : '\0';
  }
  void add(const std::string& key, uint32_t value) {
    begin(key, kU32);
    raw(value);
  }
  void add(const std::string& key, const std::vector<std::string>& values) {
    begin_array(key, kString, values.size());
    for (const std::string& value : values) text(value);
  }
  void add(const std::string& key, const std::vector<float>& values) {
    begin_array(key, kF32, values.size());
    for (const float value : values) raw(value);
  }
  void add(const std::string& key, const std::vector<int32_t>& values) {
    begin_array(key, kI32, values.size());
    for (const int32_t value : values) raw(value);
  }

  void write(const std::string& path) const {
    std::ofstream file(path, std::ios::binary);
    file << "GGUF";
    const uint32_t version = 3;
    const uint64_t tensors = 0;
    file.write(reinterpret_cast<const char*>(&version), sizeof(version));
    file.write(reinterpret_cast<const char*>(&tensors), sizeof(tensors));
    file.write(reinterpret_cast<const char*>(&count_), sizeof(count_));
    file << body_ << std::string(64, '\0');
  }

 private:
  static constexpr uint32_t kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8, kArray = 9;

  template <typename T>
  void raw(T value) {
    body_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void text(std::string_view value) {
    raw(static_cast<uint64_t>(value.size()));
    body_ += value;
  }
  void begin(const std::string& key, uint32_t type) {
    ++count_;
    text(key);
    raw(type);
  }
  void begin_array(const std::string& key, uint32_t type, size_t size) {
    begin(key, kArray);
    raw(type);
    raw(static_cast<uint64_t>(size));
  }

  uint64_t count_ = 0;
  std::string body_;
};

}  // namespace tenon::testing_support
