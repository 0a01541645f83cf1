#include "formats/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "formats/quote.h"

namespace tenon {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read in place, little endian");

constexpr std::array<GgmlTypeInfo, 11> kReadableTypes = {{
    {0, "F32", 1, 4},
    {1, "F16", 1, 2},
    {30, "BF16", 1, 2},
    {2, "Q4_0", 32, 18},
    {3, "Q4_1", 32, 20},
    {6, "Q5_0", 32, 22},
    {7, "Q5_1", 32, 24},
    {8, "Q8_0", 32, 34},
    {12, "Q4_K", 256, 144},
    {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},
}};

// Types other programs write, by name only, so that a refusal can say what the file holds.
std::string_view foreign_type_name(uint32_t type) {
  constexpr std::array<std::pair<uint32_t, std::string_view>, 21> kNames = {{
      {9, "Q8_1"},    {10, "Q2_K"},    {11, "Q3_K"},  {15, "Q8_K"},   {16, "IQ2_XXS"},
      {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"},
      {22, "IQ2_S"},  {23, "IQ4_XS"},  {24, "I8"},    {25, "I16"},    {26, "I32"},
      {27, "I64"},    {28, "F64"},     {29, "IQ1_M"}, {34, "TQ1_0"},  {35, "TQ2_0"},
      {39, "MXFP4"},
  }};
  for (const auto& [number, name] : kNames) {
    if (number == type) return name;
  }
  return "unknown";
}

// Bytes of one number or bool; 0 for strings and arrays.
size_t number_bytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool: return 1;
    case GgufType::kU16:
    case GgufType::kI16: return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32: return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64: return 8;
    case GgufType::kString:
    case GgufType::kArray: break;
  }
  return 0;
}

template <typename T>
T load(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof(T));
  return value;
}

GgufValue load_number(GgufType type, const std::byte* data) {
  switch (type) {
    case GgufType::kU8: return uint64_t{load<uint8_t>(data)};
    case GgufType::kI8: return int64_t{load<int8_t>(data)};
    case GgufType::kU16: return uint64_t{load<uint16_t>(data)};
    case GgufType::kI16: return int64_t{load<int16_t>(data)};
    case GgufType::kU32: return uint64_t{load<uint32_t>(data)};
    case GgufType::kI32: return int64_t{load<int32_t>(data)};
    case GgufType::kU64: return load<uint64_t>(data);
    case GgufType::kI64: return load<int64_t>(data);
    case GgufType::kF32: return double{load<float>(data)};
    case GgufType::kF64: return load<double>(data);
    case GgufType::kBool: return load<uint8_t>(data) != 0;
    case GgufType::kString:
    case GgufType::kArray: break;
  }
  TENON_CHECK(false);
  return uint64_t{0};
}

}  // namespace

const GgmlTypeInfo* ggml_type_info(uint32_t type) {
  for (const GgmlTypeInfo& info : kReadableTypes) {
    if (info.type == type) return &info;
  }
  return nullptr;
}

std::string ggml_type_list() {
  std::string list;
  for (const GgmlTypeInfo& info : kReadableTypes) {
    if (!list.empty()) list += ", ";
    list += info.name;
  }
  return list;
}

int64_t GgufArray::int_at(uint64_t index) const {
  TENON_CHECK_LT(index, count);
  const GgufValue value = load_number(type, numbers.data() + index * number_bytes(type));
  if (const auto* u = std::get_if<uint64_t>(&value)) return static_cast<int64_t>(*u);
  if (const auto* i = std::get_if<int64_t>(&value)) return *i;
  if (const auto* b = std::get_if<bool>(&value)) return *b ? 1 : 0;
  const double number = std::get<double>(value);
  if (std::isnan(number)) return 0;
  constexpr double kLimit = 0x1p63;
  if (number >= kLimit) return std::numeric_limits<int64_t>::max();
  if (number < -kLimit) return std::numeric_limits<int64_t>::min();
  return static_cast<int64_t>(number);
}

double GgufArray::float_at(uint64_t index) const {
  TENON_CHECK_LT(index, count);
  const GgufValue value = load_number(type, numbers.data() + index * number_bytes(type));
  if (const auto* f = std::get_if<double>(&value)) return *f;
  return static_cast<double>(int_at(index));
}

// Walks the file front to back. Every length and count is held against the bytes that are left
// before it drives a loop, an allocation or an index, so work and memory are proportional to the
// file.
class GgufParser {
 public:
  explicit GgufParser(std::shared_ptr<const MappedFile> file)
      : bytes_(file->bytes()), out_(std::make_shared<GgufFile>()) {
    out_->file_ = std::move(file);
  }

  Result<std::shared_ptr<const GgufFile>> parse() {
    Status status = parse_all();
    if (!status.ok()) return status.with_context(out_->file_->path());
    return std::shared_ptr<const GgufFile>(std::move(out_));
  }

 private:
  static constexpr uint64_t kMaxKeyBytes = 65535;  // gguf.md
  static constexpr uint64_t kMaxNameBytes = 1024;  // gguf.md says 64; some converters write more
  static constexpr uint64_t kMaxDims = 4;
  static constexpr uint64_t kMaxAlignment = uint64_t{1} << 20;
  static constexpr uint64_t kMinEntryBytes = 8 + 1 + 4 + 1;  // key length, key, type, value
  static constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;  // name, dims, type, offset

  [[nodiscard]] uint64_t left() const { return bytes_.size() - pos_; }

  Status need(uint64_t size, std::string_view what) const {
    if (size <= left()) return ok_status();
    return data_loss("{} needs {} bytes at offset {}, but the file has {} bytes", what, size, pos_,
                     bytes_.size());
  }

  template <typename T>
  Status read(T& value, std::string_view what) {
    TENON_RETURN_IF_ERROR(need(sizeof(T), what));
    value = load<T>(bytes_.data() + pos_);
    pos_ += sizeof(T);
    return ok_status();
  }

  Status read_string(std::string_view& value, uint64_t max_bytes, std::string_view what) {
    uint64_t length = 0;
    TENON_RETURN_IF_ERROR(read(length, fmt::format("{}: length", what)));
    if (length > max_bytes) {
      return data_loss("{}: length {} is above the limit of {}", what, length, max_bytes);
    }
    TENON_RETURN_IF_ERROR(need(length, what));
    value = {reinterpret_cast<const char*>(bytes_.data() + pos_), static_cast<size_t>(length)};
    pos_ += length;
    return ok_status();
  }

  Status parse_all() {
    uint64_t tensor_count = 0;
    uint64_t entry_count = 0;
    TENON_RETURN_IF_ERROR(parse_header(tensor_count, entry_count));
    for (uint64_t i = 0; i < entry_count; ++i) TENON_RETURN_IF_ERROR(parse_entry(i));
    TENON_RETURN_IF_ERROR(read_alignment());
    if (tensor_count > left() / kMinTensorBytes) {
      return data_loss(
          "tensor count {} needs at least {} bytes each at offset {}, but the file has {} bytes",
          tensor_count, kMinTensorBytes, pos_, bytes_.size());
    }
    for (uint64_t i = 0; i < tensor_count; ++i) TENON_RETURN_IF_ERROR(parse_tensor(i));
    return place_tensors();
  }

  Status parse_header(uint64_t& tensor_count, uint64_t& entry_count) {
    uint32_t magic = 0;
    TENON_RETURN_IF_ERROR(read(magic, "magic"));
    if (std::memcmp(&magic, "GGUF", 4) != 0) {
      return data_loss("magic is {}, not 'GGUF': not a GGUF file",
                       quote_name({reinterpret_cast<const char*>(&magic), 4}));
    }
    TENON_RETURN_IF_ERROR(read(out_->version_, "version"));
    const uint32_t version = out_->version_;
    if (version != 0 && (version & 0xFFFFU) == 0) {
      return unsupported("version {:#x}: big-endian GGUF files are not supported", version);
    }
    if (version != 2 && version != 3) {
      return unsupported("version {} is not supported; supported: 2, 3", version);
    }
    TENON_RETURN_IF_ERROR(read(tensor_count, "tensor count"));
    TENON_RETURN_IF_ERROR(read(entry_count, "metadata count"));
    if (entry_count > left() / kMinEntryBytes) {
      return data_loss("metadata count {} cannot fit into a file of {} bytes", entry_count,
                       bytes_.size());
    }
    if (tensor_count > left() / kMinTensorBytes) {
      return data_loss("tensor count {} cannot fit into a file of {} bytes", tensor_count,
                       bytes_.size());
    }
    return ok_status();
  }

  Status parse_entry(uint64_t index) {
    std::string_view key;
    TENON_RETURN_IF_ERROR(read_string(key, kMaxKeyBytes, fmt::format("metadata key {}", index)));
    if (key.empty()) return data_loss("metadata key {}: length 0", index);
    const std::string what = fmt::format("metadata {}", quote_name(key));
    if (!out_->metadata_index_.emplace(key, out_->metadata_.size()).second) {
      return data_loss("{}: the key appears twice", what);
    }
    GgufType type{};
    TENON_RETURN_IF_ERROR(read_type(type, what));
    GgufValue value;
    Status status;
    switch (type) {
      case GgufType::kString: {
        std::string_view text;
        status = read_string(text, std::numeric_limits<uint64_t>::max(), what);
        value = text;
        break;
      }
      case GgufType::kArray: {
        GgufArray array;
        status = read_array(array, what);
        value = std::move(array);
        break;
      }
      default:
        status = need(number_bytes(type), what);
        if (!status.ok()) break;
        status = check_bools(type, bytes_.subspan(pos_, number_bytes(type)), what);
        value = load_number(type, bytes_.data() + pos_);
        pos_ += number_bytes(type);
    }
    if (!status.ok()) return status;
    out_->metadata_.emplace_back(std::string(key), std::move(value));
    return ok_status();
  }

  Status read_type(GgufType& type, const std::string& what) {
    uint32_t number = 0;
    TENON_RETURN_IF_ERROR(read(number, fmt::format("{}: value type", what)));
    if (number > static_cast<uint32_t>(GgufType::kF64)) {
      return data_loss("{}: value type {} does not exist", what, number);
    }
    type = static_cast<GgufType>(number);
    return ok_status();
  }

  static Status check_bools(GgufType type,
                            std::span<const std::byte> values,
                            const std::string& what) {
    if (type != GgufType::kBool) return ok_status();
    for (const std::byte value : values) {
      if (value > std::byte{1}) {
        return data_loss("{}: bool value {} is neither 0 nor 1", what, static_cast<int>(value));
      }
    }
    return ok_status();
  }

  Status read_array(GgufArray& array, const std::string& what) {
    TENON_RETURN_IF_ERROR(read_type(array.type, fmt::format("{}: array", what)));
    if (array.type == GgufType::kArray)
      return unsupported("{}: nested arrays are not supported", what);
    TENON_RETURN_IF_ERROR(read(array.count, fmt::format("{}: array count", what)));
    const bool is_string = array.type == GgufType::kString;
    const uint64_t element = is_string ? sizeof(uint64_t) : number_bytes(array.type);
    if (array.count > left() / element) {
      return data_loss(
          "{}: array count {} needs at least {} bytes each at offset {}, but the file has {} bytes",
          what, array.count, element, pos_, bytes_.size());
    }
    if (!is_string) {
      array.numbers = bytes_.subspan(pos_, array.count * element);
      pos_ += array.numbers.size();
      return check_bools(array.type, array.numbers, what);
    }
    array.strings.reserve(array.count);
    for (uint64_t i = 0; i < array.count; ++i) {
      std::string_view text;
      Status status = read_string(text, std::numeric_limits<uint64_t>::max(), "string");
      if (!status.ok()) return status.with_context(fmt::format("{}: element {}", what, i));
      array.strings.push_back(text);
    }
    return ok_status();
  }

  Status read_alignment() {
    if (out_->find("general.alignment") == nullptr) return ok_status();
    TENON_ASSIGN_OR_RETURN(const int64_t value, out_->get_int("general.alignment"));
    const auto alignment = static_cast<uint64_t>(value);
    if (alignment < 8 || alignment > kMaxAlignment || !std::has_single_bit(alignment)) {
      return data_loss("metadata 'general.alignment': {} is not a power of two from 8 to {}", value,
                       kMaxAlignment);
    }
    alignment_ = alignment;
    return ok_status();
  }

  Status parse_tensor(uint64_t index) {
    std::string_view name;
    TENON_RETURN_IF_ERROR(read_string(name, kMaxNameBytes, fmt::format("tensor {}: name", index)));
    if (name.empty()) return data_loss("tensor {}: name length 0", index);
    const std::string what = fmt::format("tensor {}", quote_name(name));
    if (!out_->tensor_index_.emplace(name, out_->tensors_.size()).second) {
      return data_loss("{}: the name appears twice", what);
    }
    GgufTensor tensor;
    tensor.name = name;
    uint32_t dims = 0;
    TENON_RETURN_IF_ERROR(read(dims, fmt::format("{}: number of dimensions", what)));
    if (dims == 0 || dims > kMaxDims) {
      return data_loss("{}: number of dimensions {} is not from 1 to {}", what, dims, kMaxDims);
    }
    uint64_t elements = 1;
    for (uint32_t d = 0; d < dims; ++d) {
      uint64_t size = 0;
      TENON_RETURN_IF_ERROR(read(size, fmt::format("{}: dimension {}", what, d)));
      constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
      if (size == 0 || size > kMax || elements > kMax / size) {
        return data_loss("{}: dimension {} is {}: zero or too large", what, d, size);
      }
      elements *= size;
      tensor.shape.push_back(static_cast<int64_t>(size));  // innermost first, as stored
    }
    const auto row = static_cast<uint64_t>(tensor.shape.front());
    std::reverse(tensor.shape.begin(), tensor.shape.end());

    TENON_RETURN_IF_ERROR(read(tensor.type, fmt::format("{}: type", what)));
    const GgmlTypeInfo* info = ggml_type_info(tensor.type);
    if (info == nullptr) {
      return unsupported("{}: type {} ({}) is not supported; supported: {}", what, tensor.type,
                         foreign_type_name(tensor.type), ggml_type_list());
    }
    const auto block = static_cast<uint64_t>(info->block_elements);
    if (row % block != 0) {
      return data_loss("{}: dimension 0 is {}, not a multiple of the {} block of {}", what, row,
                       info->name, block);
    }
    // `elements` is below 2^63, so bytes can pass 2^64 only for types of more than 2 bytes an
    // element.
    const uint64_t blocks = elements / block;
    const auto block_bytes = static_cast<uint64_t>(info->block_bytes);
    Extent extent;
    if (blocks > std::numeric_limits<uint64_t>::max() / block_bytes) {
      return data_loss("{}: {} {} elements are too large for any file", what, elements, info->name);
    }
    extent.size = blocks * block_bytes;
    TENON_RETURN_IF_ERROR(read(extent.offset, fmt::format("{}: offset", what)));
    if (extent.offset % alignment_ != 0) {
      return data_loss("{}: offset {} is not a multiple of the alignment {}", what, extent.offset,
                       alignment_);
    }
    out_->tensors_.push_back(std::move(tensor));
    extents_.push_back(extent);
    return ok_status();
  }

  Status place_tensors() {
    const uint64_t begin = (pos_ + alignment_ - 1) / alignment_ * alignment_;
    const uint64_t available = bytes_.size() > begin ? bytes_.size() - begin : 0;
    for (size_t i = 0; i < extents_.size(); ++i) {
      const auto [offset, size] = extents_[i];
      if (offset > available || size > available - offset) {
        return data_loss(
            "tensor {}: needs {} bytes at data offset {} (file offset {} + {}), but the "
            "file has {} bytes",
            quote_name(out_->tensors_[i].name), size, offset, begin, offset, bytes_.size());
      }
    }
    TENON_RETURN_IF_ERROR(check_overlap());
    for (size_t i = 0; i < extents_.size(); ++i) {
      out_->tensors_[i].data = bytes_.subspan(begin + extents_[i].offset, extents_[i].size);
    }
    return ok_status();
  }

  Status check_overlap() const {
    std::vector<size_t> order(extents_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return extents_[a].offset < extents_[b].offset; });
    for (size_t i = 1; i < order.size(); ++i) {
      const Extent& previous = extents_[order[i - 1]];
      if (previous.offset + previous.size > extents_[order[i]].offset) {
        return data_loss("tensors {} and {} overlap at data offset {}",
                         quote_name(out_->tensors_[order[i - 1]].name),
                         quote_name(out_->tensors_[order[i]].name), extents_[order[i]].offset);
      }
    }
    return ok_status();
  }

  struct Extent {
    uint64_t offset = 0;  // from the start of the data section
    uint64_t size = 0;
  };
  std::span<const std::byte> bytes_;
  std::shared_ptr<GgufFile> out_;
  std::vector<Extent> extents_;  // parallel to tensors_
  uint64_t pos_ = 0;
  uint64_t alignment_ = 32;  // gguf.md's default
};

Result<std::shared_ptr<const GgufFile>> GgufFile::open(const std::string& path) {
  TENON_ASSIGN_OR_RETURN(std::shared_ptr<const MappedFile> file, MappedFile::open(path));
  return GgufParser(std::move(file)).parse();
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto it = tensor_index_.find(name);
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto it = metadata_index_.find(key);
  return it == metadata_index_.end() ? nullptr : &metadata_[it->second].second;
}

namespace {

Status missing_key(std::string_view key) {
  return not_found("metadata {} is missing", quote_name(key));
}
Status wrong_type(std::string_view key, std::string_view wanted) {
  return invalid_argument("metadata {} is not {}", quote_name(key), wanted);
}

}  // namespace

Result<int64_t> GgufFile::get_int(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return missing_key(key);
  if (const auto* i = std::get_if<int64_t>(value)) return *i;
  const auto* u = std::get_if<uint64_t>(value);
  if (u == nullptr || *u > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return wrong_type(key, "an integer below 2^63");
  }
  return static_cast<int64_t>(*u);
}

Result<double> GgufFile::get_float(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return missing_key(key);
  if (const auto* f = std::get_if<double>(value)) return *f;
  if (const auto* i = std::get_if<int64_t>(value)) return static_cast<double>(*i);
  if (const auto* u = std::get_if<uint64_t>(value)) return static_cast<double>(*u);
  return wrong_type(key, "a number");
}

Result<bool> GgufFile::get_bool(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return missing_key(key);
  if (const auto* b = std::get_if<bool>(value)) return *b;
  return wrong_type(key, "a bool");
}

Result<std::string> GgufFile::get_string(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return missing_key(key);
  if (const auto* s = std::get_if<std::string_view>(value)) return std::string(*s);
  return wrong_type(key, "a string");
}

Result<const GgufArray*> GgufFile::get_array(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return missing_key(key);
  if (const auto* a = std::get_if<GgufArray>(value)) return a;
  return wrong_type(key, "an array");
}

}  // namespace tenon
