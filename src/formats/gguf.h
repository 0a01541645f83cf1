// GGUF container: header, metadata and tensor directory, checked before any pointer is handed out.
// Format: github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little endian).
//
// Ownership:     a GgufFile keeps its MappedFile alive; spans and string_views live as long as it
// does. Thread safety: immutable after open().
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"

namespace tenon {

enum class GgufType : uint32_t {
  kU8 = 0,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
};

// An array value. Numbers are read with at(); strings are views into the file.
struct GgufArray {
  GgufType type = GgufType::kU8;
  std::span<const std::byte> numbers;     // packed little endian; empty for strings
  std::vector<std::string_view> strings;  // for type kString
  uint64_t count = 0;
  // Any type but string; int_at() truncates and saturates floats (NaN: 0). Requires: index < count.
  [[nodiscard]] int64_t int_at(uint64_t index) const;
  [[nodiscard]] double float_at(uint64_t index) const;
};

using GgufValue = std::variant<uint64_t, int64_t, double, bool, std::string_view, GgufArray>;

struct GgufTensor {
  std::string name;
  std::vector<int64_t> shape;       // outermost first: a matrix is {rows, cols}
  uint32_t type = 0;                // ggml_type number
  std::span<const std::byte> data;  // exactly the tensor's bytes
};

// ggml_type numbers Tenon can read, with their block geometry; nullptr for others.
struct GgmlTypeInfo {
  uint32_t type;
  std::string_view name;
  int32_t block_elements;
  int32_t block_bytes;
};
[[nodiscard]] const GgmlTypeInfo* ggml_type_info(uint32_t type);
[[nodiscard]] std::string ggml_type_list();  // "F32, F16, ..." for messages

class GgufFile {
 public:
  // Opens one file. Errors: kDataLoss / kUnsupported / kInvalidArgument; the message names the
  // file, the field or tensor, and the needed and the actual size. Bounded time and memory whatever
  // the header claims.
  static Result<std::shared_ptr<const GgufFile>> open(const std::string& path);

  [[nodiscard]] const std::shared_ptr<const MappedFile>& file() const { return file_; }
  [[nodiscard]] uint32_t version() const { return version_; }
  [[nodiscard]] const std::vector<GgufTensor>& tensors() const { return tensors_; }
  [[nodiscard]] const GgufTensor* find_tensor(std::string_view name) const;
  [[nodiscard]] const std::vector<std::pair<std::string, GgufValue>>& metadata() const {
    return metadata_;
  }
  [[nodiscard]] const GgufValue* find(std::string_view key) const;

  // Typed access. Missing key: kNotFound; wrong type: kInvalidArgument; both name the key.
  [[nodiscard]] Result<int64_t> get_int(std::string_view key) const;
  [[nodiscard]] Result<double> get_float(std::string_view key) const;
  [[nodiscard]] Result<bool> get_bool(std::string_view key) const;
  [[nodiscard]] Result<std::string> get_string(std::string_view key) const;
  [[nodiscard]] Result<const GgufArray*> get_array(std::string_view key) const;

 private:
  friend class GgufParser;
  std::shared_ptr<const MappedFile> file_;
  uint32_t version_ = 0;
  std::vector<std::pair<std::string, GgufValue>> metadata_;
  std::vector<GgufTensor> tensors_;
  // Ordered maps: a crafted file cannot slow them down with colliding hashes.
  std::map<std::string, size_t, std::less<>> metadata_index_, tensor_index_;
};

}  // namespace tenon
