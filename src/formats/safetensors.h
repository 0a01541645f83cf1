// safetensors container: an 8-byte header length, a JSON header, then the tensors' bytes.
// Everything is checked before any pointer is handed out. Format:
// github.com/huggingface/safetensors, README.
//
// Ownership:     a SafetensorsFile keeps its MappedFile alive; spans live as long as it does.
// Thread safety: immutable after open().
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"

namespace tenon {

struct SafetensorsTensor {
  std::string name;
  std::string dtype;                // as spelled in the file: "F32", "BF16", "I64", ...
  std::vector<int64_t> shape;       // outermost first; empty: a scalar; a dimension may be 0
  std::span<const std::byte> data;  // exactly the tensor's bytes; may be unaligned
};

// Where the tensors of a folder are: model.safetensors.index.json.
using SafetensorsIndex = std::map<std::string, std::string, std::less<>>;  // tensor -> file name

class SafetensorsFile {
 public:
  // Errors: kDataLoss; the message names the file, the tensor or field, and the needed and the
  // actual size. Bounded time and memory whatever the header claims.
  static Result<std::shared_ptr<const SafetensorsFile>> open(const std::string& path);

  [[nodiscard]] const std::shared_ptr<const MappedFile>& file() const { return file_; }
  [[nodiscard]] const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }
  [[nodiscard]] const SafetensorsTensor* find_tensor(std::string_view name) const;
  // __metadata__
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  friend class SafetensorsParser;
  std::shared_ptr<const MappedFile> file_;
  std::vector<SafetensorsTensor> tensors_;
  std::map<std::string, size_t, std::less<>> index_;
  std::map<std::string, std::string> metadata_;
};

// Every file of the model in `folder`. With an index: the files it lists (all must exist and hold
// the tensors it promises; other files are ignored with a note). Without: all *.safetensors of the
// folder. A tensor in two files is refused, so is an index entry that points outside the folder.
struct SafetensorsFolder {
  std::vector<std::shared_ptr<const SafetensorsFile>> files;
  std::vector<std::string> notes;  // ignored files and tensors, for the log
  SafetensorsIndex index;          // tensor -> file name, complete
};
Result<SafetensorsFolder> open_safetensors_folder(const std::string& folder);

// Whether a folder has weights of this format at all: an index, or any *.safetensors file.
[[nodiscard]] bool has_safetensors(const std::string& folder);

}  // namespace tenon
