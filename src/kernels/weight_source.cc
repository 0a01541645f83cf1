#include "kernels/weight_source.h"

namespace tenon {
namespace {

bool holds_weights(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16: return true;
    default: return is_quantised(dtype);
  }
}

}  // namespace

Status check_weight_parts(std::span<const WeightSource> parts) {
  if (parts.empty()) return invalid_argument("a linear weight needs at least one part");
  for (const WeightSource& part : parts) {
    const DTypeTraits& traits = dtype_traits(part.dtype);
    if (!holds_weights(part.dtype)) {
      return unsupported("{}: a weight cannot be of type {}", part.name, traits.name);
    }
    if ((part.data == nullptr && !part.random) || part.rows <= 0 || part.cols <= 0) {
      return invalid_argument("{}: empty weight [{}, {}]", part.name, part.rows, part.cols);
    }
    if (part.cols != parts[0].cols) {
      return invalid_argument("{} has {} columns, {} has {}: they cannot be stacked", part.name,
                              part.cols, parts[0].name, parts[0].cols);
    }
    if (part.cols % traits.block_elements != 0) {
      return invalid_argument("{}: {} columns are not whole blocks of {} ({} elements)", part.name,
                              part.cols, traits.name, traits.block_elements);
    }
  }
  return Status();
}

}  // namespace tenon
