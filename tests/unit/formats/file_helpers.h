// Files a test writes, and bytes of containers it builds. Everything lands in a folder of its own
// that is removed at the end.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tenon::testing_files {

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "tenon-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
  }
  ~TempFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  [[nodiscard]] std::string path() const { return path_.string(); }
  [[nodiscard]] std::string path(std::string_view name) const { return (path_ / name).string(); }
  std::string write(std::string_view name, std::string_view bytes) const {
    const std::string file = path(name);
    std::ofstream out(file, std::ios::binary | std::ios::trunc);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    EXPECT_TRUE(out.good()) << file;
    return file;
  }

 private:
  std::filesystem::path path_;
};

inline std::string from_hex(std::string_view hex) {
  std::string bytes;
  std::string digits;
  for (const char c : hex) {
    if (c != ' ') digits += c;
  }
  for (size_t i = 0; i + 1 < digits.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

template <typename T>
std::string little_endian(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(T)};
}

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// Writes GGUF version 3, alignment 32. Shapes are outermost first, as GgufTensor's.
class GgufBuilder {
 public:
  GgufBuilder& add_u32(std::string_view key, uint32_t value) {
    return add(key, 4, little_endian(value));
  }
  GgufBuilder& add_u16(std::string_view key, uint16_t value) {
    return add(key, 2, little_endian(value));
  }
  GgufBuilder& add_i32(std::string_view key, int32_t value) {
    return add(key, 5, little_endian(value));
  }
  GgufBuilder& add_f32(std::string_view key, float value) {
    return add(key, 6, little_endian(value));
  }
  GgufBuilder& add_bool(std::string_view key, bool value) {
    return add(key, 7, std::string(1, value ? 1 : 0));
  }
  GgufBuilder& add_string(std::string_view key, std::string_view value) {
    return add(key, 8, counted(value));
  }
  GgufBuilder& add_strings(std::string_view key, const std::vector<std::string>& values) {
    std::string body = little_endian(uint32_t{8}) + little_endian(uint64_t{values.size()});
    for (const std::string& value : values) body += counted(value);
    return add(key, 9, body);
  }
  GgufBuilder& add_i32s(std::string_view key, const std::vector<int32_t>& values) {
    return add(
        key, 9,
        little_endian(uint32_t{5}) + little_endian(uint64_t{values.size()}) + bytes_of(values));
  }
  // `body`: the value's bytes as they follow the type number.
  GgufBuilder& add(std::string_view key, uint32_t type, const std::string& body) {
    entries_ += counted(key) + little_endian(type) + body;
    ++num_entries_;
    return *this;
  }
  GgufBuilder& add_tensor(std::string_view name,
                          uint32_t type,
                          const std::vector<int64_t>& shape,
                          const std::string& data) {
    data_.resize((data_.size() + 31) / 32 * 32);
    tensors_ += counted(name) + little_endian(static_cast<uint32_t>(shape.size()));
    for (size_t i = shape.size(); i-- > 0;)
      tensors_ += little_endian(static_cast<uint64_t>(shape[i]));
    tensors_ += little_endian(type) + little_endian(uint64_t{data_.size()});
    data_ += data;
    ++num_tensors_;
    return *this;
  }
  [[nodiscard]] std::string build() const {
    std::string out = "GGUF" + little_endian(uint32_t{3}) + little_endian(num_tensors_) +
                      little_endian(num_entries_) + entries_ + tensors_;
    out.resize((out.size() + 31) / 32 * 32);
    return out + data_;
  }

 private:
  static std::string counted(std::string_view text) {
    return little_endian(uint64_t{text.size()}) + std::string(text);
  }
  std::string entries_, tensors_, data_;
  uint64_t num_entries_ = 0, num_tensors_ = 0;
};

// Writes safetensors with an aligned header.
class SafetensorsBuilder {
 public:
  SafetensorsBuilder& add(std::string_view name,
                          std::string_view dtype,
                          const std::vector<int64_t>& shape,
                          const std::string& data) {
    header_ += header_.empty() ? "{" : ",";
    header_ +=
        "\"" + std::string(name) + "\":{\"dtype\":\"" + std::string(dtype) + "\",\"shape\":[";
    for (size_t i = 0; i < shape.size(); ++i)
      header_ += (i == 0 ? "" : ",") + std::to_string(shape[i]);
    header_ += "],\"data_offsets\":[" + std::to_string(data_.size()) + "," +
               std::to_string(data_.size() + data.size()) + "]}";
    data_ += data;
    return *this;
  }
  [[nodiscard]] std::string build() const {
    std::string header = (header_.empty() ? "{" : header_) + "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    return little_endian(uint64_t{header.size()}) + header + data_;
  }

 private:
  std::string header_, data_;
};

}  // namespace tenon::testing_files
