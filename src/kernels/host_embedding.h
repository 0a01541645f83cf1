// An embedding table that stays as its file has it; rows are dequantised when they are asked for.
#pragma once

#include <memory>

#include "base/status.h"
#include "kernels/ops.h"

namespace tenon {

class HostEmbedding final : public EmbeddingTable {
 public:
  // Errors: as check_weight_parts().
  static Result<std::unique_ptr<EmbeddingTable>> make(const WeightSource& source,
                                                      const LinearWeight* tied);
  explicit HostEmbedding(const WeightSource& from, bool tied) : source(from) {
    rows_ = source.rows;
    cols_ = source.cols;
    bytes_ = tied ? 0 : dtype_bytes(source.dtype, rows_ * cols_);
  }
  const WeightSource source;
};

// The CPU as a Device, for Ops that are made without one.
[[nodiscard]] Device& host_device();

}  // namespace tenon
