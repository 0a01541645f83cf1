#include "formats/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "formats/quote.h"

namespace tenon {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors are read in place");

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr size_t kMaxDims = 8;

constexpr std::array<std::pair<std::string_view, uint64_t>, 15> kDtypeBytes = {{
    {"BOOL", 1},
    {"U8", 1},
    {"I8", 1},
    {"F8_E4M3", 1},
    {"F8_E5M2", 1},
    {"I16", 2},
    {"U16", 2},
    {"F16", 2},
    {"BF16", 2},
    {"I32", 4},
    {"U32", 4},
    {"F32", 4},
    {"I64", 8},
    {"U64", 8},
    {"F64", 8},
}};

uint64_t dtype_size(std::string_view name) {
  for (const auto& [known, bytes] : kDtypeBytes) {
    if (known == name) return bytes;
  }
  return 0;
}

struct HeaderEntry {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;
  std::vector<uint64_t> offsets;
  uint32_t fields = 0;  // bits of the fields seen
};

// Reads the header event by event, so that no document of the file's choosing is ever built in
// memory. The grammar is fixed: {name: {dtype: string, shape: [uint], data_offsets: [uint, uint]},
// __metadata__: {..}}.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<HeaderEntry> entries;
  std::map<std::string, std::string> metadata;
  [[nodiscard]] const Status& status() const { return status_; }

  bool start_object(size_t) override {
    if (state_ == State::kStart) return move_to(State::kTop);
    if (state_ == State::kMetadataStart) return move_to(State::kMetadata);
    if (state_ == State::kEntryStart) return move_to(State::kEntry);
    return unexpected("an object");
  }
  bool end_object() override {
    if (state_ == State::kEntry) {
      if (entries.back().fields != (kDtype | kShape | kOffsets)) {
        return fail("dtype, shape and data_offsets are not all there");
      }
      return move_to(State::kTop);
    }
    return move_to(state_ == State::kMetadata ? State::kTop : State::kEnd);
  }
  bool key(string_t& name) override {
    switch (state_) {
      case State::kTop:
        if (!names_.emplace(name, 0).second) {
          status_ = data_loss("header: {} appears twice", quote_name(name));
          return false;
        }
        if (name == "__metadata__") return move_to(State::kMetadataStart);
        entries.emplace_back();
        entries.back().name = name;
        return move_to(State::kEntryStart);
      case State::kMetadata:
        key_ = name;
        if (metadata.count(name) == 0) return true;
        status_ = data_loss("header: __metadata__ key {} appears twice", quote_name(name));
        return false;
      case State::kEntry: {
        const uint32_t bit = name == "dtype"          ? kDtype
                             : name == "shape"        ? kShape
                             : name == "data_offsets" ? kOffsets
                                                      : 0;
        if (bit == 0) return fail("the field " + quote_name(name) + " is unknown");
        if ((entries.back().fields & bit) != 0) return fail(name + " appears twice");
        entries.back().fields |= bit;
        field_ = bit;
        return true;
      }
      default: return unexpected("a key");
    }
  }
  bool string(string_t& value) override {
    if (state_ == State::kMetadata) {
      metadata.emplace(key_, value);
      return true;
    }
    if (state_ != State::kEntry || field_ != kDtype) return unexpected("a string");
    if (dtype_size(value) == 0) {
      std::string known;
      for (const auto& [name, bytes] : kDtypeBytes)
        known += fmt::format("{}{}", known.empty() ? "" : ", ", name);
      status_ = unsupported("tensor {}: dtype {} is not known; known: {}",
                            quote_name(entries.back().name), quote_name(value), known);
      return false;
    }
    entries.back().dtype = value;
    return true;
  }
  bool start_array(size_t) override {
    if (state_ != State::kEntry || field_ == kDtype) return unexpected("an array");
    return move_to(State::kNumbers);
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (state_ != State::kNumbers) return unexpected("a number");
    std::vector<uint64_t>& list = field_ == kShape ? entries.back().shape : entries.back().offsets;
    if (list.size() >= (field_ == kShape ? kMaxDims : 2)) {
      return fail(field_ == kShape ? fmt::format("shape has more than {} dimensions", kMaxDims)
                                   : "data_offsets has more than two numbers");
    }
    list.push_back(value);
    return true;
  }
  bool end_array() override {
    if (field_ == kOffsets && entries.back().offsets.size() != 2) {
      return fail("data_offsets has not two numbers");
    }
    return move_to(State::kEntry);
  }
  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a bool"); }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return unexpected("a number that is no integer below 2^64");
  }
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool parse_error(size_t position,
                   const std::string&,
                   const nlohmann::detail::exception&) override {
    status_ = data_loss("header: not valid JSON at header byte {}", position);
    return false;
  }

 private:
  enum class State { kStart, kTop, kMetadataStart, kMetadata, kEntryStart, kEntry, kNumbers, kEnd };
  static constexpr uint32_t kDtype = 1, kShape = 2, kOffsets = 4;

  bool move_to(State state) {
    state_ = state;
    return true;
  }
  bool fail(const std::string& what) {
    status_ = data_loss("tensor {}: {}", quote_name(entries.back().name), what);
    return false;
  }
  bool unexpected(std::string_view what) {
    if (state_ == State::kEntry || state_ == State::kNumbers || state_ == State::kEntryStart) {
      return fail(fmt::format("{} where the format has none", what));
    }
    status_ = data_loss("header: {} where the format has none", what);
    return false;
  }

  State state_ = State::kStart;
  uint32_t field_ = 0;
  std::string key_;
  std::map<std::string, int> names_;
  Status status_;
};

}  // namespace

class SafetensorsParser {
 public:
  explicit SafetensorsParser(std::shared_ptr<const MappedFile> file)
      : bytes_(file->bytes()), out_(std::make_shared<SafetensorsFile>()) {
    out_->file_ = std::move(file);
  }

  Result<std::shared_ptr<const SafetensorsFile>> parse() {
    Status status = parse_all();
    if (!status.ok()) return status.with_context(out_->file_->path());
    return std::shared_ptr<const SafetensorsFile>(std::move(out_));
  }

 private:
  Status parse_all() {
    uint64_t length = 0;
    if (bytes_.size() < sizeof(length)) {
      return data_loss("the header length needs 8 bytes, but the file has {}", bytes_.size());
    }
    std::memcpy(&length, bytes_.data(), sizeof(length));
    const uint64_t left = bytes_.size() - sizeof(length);
    if (length > kMaxHeaderBytes) {
      return data_loss("header length {} is above the format's limit of {}", length,
                       kMaxHeaderBytes);
    }
    if (length > left) {
      return data_loss("the header needs {} bytes, but the file has {}", sizeof(length) + length,
                       bytes_.size());
    }
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + sizeof(length),
                                length);
    if (text.empty() || text.front() != '{')
      return data_loss("header: it does not start with '{{'");
    HeaderReader header;
    const bool ok = nlohmann::json::sax_parse(text, &header);
    if (!header.status().ok()) return header.status();
    if (!ok) return data_loss("header: not valid JSON");

    const std::span<const std::byte> data = bytes_.subspan(sizeof(length) + length);
    for (const HeaderEntry& entry : header.entries) TENON_RETURN_IF_ERROR(add_tensor(entry, data));
    TENON_RETURN_IF_ERROR(check_coverage(header.entries, data.size()));
    out_->metadata_ = std::move(header.metadata);
    return ok_status();
  }

  Status add_tensor(const HeaderEntry& entry, std::span<const std::byte> data) {
    const std::string what = fmt::format("tensor {}", quote_name(entry.name));
    uint64_t size = dtype_size(entry.dtype);
    constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    SafetensorsTensor tensor;
    for (const uint64_t dim : entry.shape) {
      if (dim > kMax || (dim != 0 && size > kMax / dim)) {
        return data_loss("{}: dimension {} is too large", what, dim);
      }
      size *= dim;
      tensor.shape.push_back(static_cast<int64_t>(dim));
    }
    const uint64_t begin = entry.offsets[0];
    const uint64_t end = entry.offsets[1];
    if (begin > end || end - begin != size) {
      return data_loss("{}: shape and dtype need {} bytes, but data_offsets are [{}, {}]", what,
                       size, begin, end);
    }
    if (end > data.size()) {
      return data_loss(
          "{}: needs bytes up to data offset {} (file offset {}), but the file has {} bytes", what,
          end, bytes_.size() - data.size() + end, bytes_.size());
    }
    tensor.name = entry.name;
    tensor.dtype = entry.dtype;
    tensor.data = data.subspan(begin, size);
    out_->index_.emplace(entry.name, out_->tensors_.size());
    out_->tensors_.push_back(std::move(tensor));
    return ok_status();
  }

  // The format forbids overlaps, holes and bytes that belong to no tensor.
  static Status check_coverage(const std::vector<HeaderEntry>& entries, uint64_t data_size) {
    std::vector<const HeaderEntry*> order;
    for (const HeaderEntry& entry : entries) order.push_back(&entry);
    std::sort(order.begin(), order.end(),
              [](const HeaderEntry* a, const HeaderEntry* b) { return a->offsets < b->offsets; });
    uint64_t end = 0;
    for (const HeaderEntry* entry : order) {
      if (entry->offsets[0] != end) {
        return data_loss("tensor {}: starts at data offset {}, but the tensor before it ends at {}",
                         quote_name(entry->name), entry->offsets[0], end);
      }
      end = entry->offsets[1];
    }
    if (end != data_size) {
      return data_loss("the tensors end at data offset {}, but the file has {} bytes of data", end,
                       data_size);
    }
    return ok_status();
  }

  std::span<const std::byte> bytes_;
  std::shared_ptr<SafetensorsFile> out_;
};

Result<std::shared_ptr<const SafetensorsFile>> SafetensorsFile::open(const std::string& path) {
  TENON_ASSIGN_OR_RETURN(std::shared_ptr<const MappedFile> file, MappedFile::open(path));
  return SafetensorsParser(std::move(file)).parse();
}

const SafetensorsTensor* SafetensorsFile::find_tensor(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

}  // namespace tenon
