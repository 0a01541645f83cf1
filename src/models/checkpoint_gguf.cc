#include <utility>

#include "base/check.h"
#include "formats/gguf_split.h"
#include "models/checkpoint.h"
#include "models/config_reader.h"

namespace tenon {
namespace {

// ggml_type numbers and DType share their names, so the name is the one mapping.
DType dtype_of(const GgmlTypeInfo& info) {
  for (int i = 0; i <= static_cast<int>(DType::kQ6_K); ++i) {
    const auto dtype = static_cast<DType>(i);
    if (dtype_traits(dtype).name == info.name) return dtype;
  }
  TENON_CHECK(false);
  return DType::kF32;
}

}  // namespace

Result<Checkpoint> open_gguf_checkpoint(const std::string& path) {
  TENON_ASSIGN_OR_RETURN(const auto files, open_gguf_files(path));
  Checkpoint checkpoint;
  checkpoint.path = path;
  checkpoint.naming = WeightNaming::kGguf;
  TENON_ASSIGN_OR_RETURN(checkpoint.config, config_from_gguf(files));
  for (const auto& file : files) {
    for (const GgufTensor& tensor : file->tensors()) {
      const GgmlTypeInfo* info = ggml_type_info(tensor.type);
      TENON_CHECK(info != nullptr);  // GgufFile hands out readable types only
      StoredTensor stored;
      stored.name = tensor.name;
      stored.type_name = info->name;
      stored.dtype = dtype_of(*info);
      stored.shape = tensor.shape;
      stored.data = tensor.data.data();
      stored.file = file->file();
      TENON_RETURN_IF_ERROR(checkpoint.add(std::move(stored)));
    }
  }
  checkpoint.ignore("rope_freqs.weight");  // read by config_from_gguf
  return checkpoint;
}

}  // namespace tenon
