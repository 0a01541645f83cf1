#include <cstring>
#include <optional>
#include <utility>

#include "base/log.h"
#include "formats/quote.h"
#include "formats/safetensors.h"
#include "models/checkpoint.h"
#include "models/config_reader.h"

namespace tenon {
namespace {

std::optional<DType> dtype_of(std::string_view name) {
  if (name == "F32") return DType::kF32;
  if (name == "F16") return DType::kF16;
  if (name == "BF16") return DType::kBF16;
  return std::nullopt;
}

bool is_aligned(const void* data, DType dtype) {
  return reinterpret_cast<uintptr_t>(data) %
             static_cast<uintptr_t>(dtype_traits(dtype).block_bytes) ==
         0;
}

Status add_tensor(const SafetensorsTensor& tensor,
                  const std::shared_ptr<const MappedFile>& file,
                  Checkpoint& checkpoint) {
  const std::optional<DType> dtype = dtype_of(tensor.dtype);
  StoredTensor stored;
  stored.name = tensor.name;
  stored.type_name = tensor.dtype;
  stored.readable = dtype.has_value();
  stored.dtype = dtype.value_or(DType::kF32);
  stored.shape = tensor.shape;
  stored.data = tensor.data.data();
  stored.file = file;
  if (!stored.readable || is_aligned(stored.data, stored.dtype)) {
    return checkpoint.add(std::move(stored));
  }
  // The format does not align tensors (its writers mostly do); kernels may rely on it.
  Buffer copy = Buffer::try_allocate(tensor.data.size());
  if (copy.data() == nullptr) {
    return resource_exhausted("{}: tensor {}: no memory for {} bytes", file->path(),
                              quote_name(tensor.name), tensor.data.size());
  }
  std::memcpy(copy.data(), tensor.data.data(), tensor.data.size());
  return checkpoint.add_owned(std::move(stored), std::move(copy));
}

}  // namespace

Result<Checkpoint> open_safetensors_checkpoint(const std::string& folder) {
  Checkpoint checkpoint;
  checkpoint.path = folder;
  checkpoint.naming = WeightNaming::kHuggingFace;
  TENON_ASSIGN_OR_RETURN(HfConfig config, config_from_hf(folder));
  checkpoint.config = std::move(config.model);
  TENON_ASSIGN_OR_RETURN(const SafetensorsFolder opened, open_safetensors_folder(folder));
  for (const std::string& note : opened.notes) log_info("{}: {}", folder, note);
  for (const auto& file : opened.files) {
    const std::string& path = file->file()->path();
    const std::string file_name = path.substr(path.find_last_of('/') + 1);
    for (const SafetensorsTensor& tensor : file->tensors()) {
      const auto listed = opened.index.find(tensor.name);
      if (listed == opened.index.end() || listed->second != file_name) continue;  // noted above
      TENON_RETURN_IF_ERROR(add_tensor(tensor, file->file(), checkpoint));
    }
  }
  return checkpoint;
}

}  // namespace tenon
