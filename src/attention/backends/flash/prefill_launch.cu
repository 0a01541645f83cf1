#include "attention/backends/flash/prefill_launch.cuh"

#include "attention/backends/flash/prefill_dispatch.h"

namespace tenon::flash {

namespace {

struct EncodeEntry {
  decltype(&cuTensorMapEncodeTiled) function = nullptr;
  cudaError_t error = cudaSuccess;
};
// The driver's function, found at run time: nothing links against the driver.
EncodeEntry find_encode() {
  EncodeEntry entry;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  entry.error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                 cudaEnableDefault, &found);
  if (entry.error == cudaSuccess && found != cudaDriverEntryPointSuccess) {
    entry.error = cudaErrorNotSupported;
  }
  entry.function = reinterpret_cast<decltype(entry.function)>(function);
  return entry;
}

}  // namespace

TensorMapWriter::TensorMapWriter() {
  static const EncodeEntry entry = find_encode();
  encode_ = entry.function;
  error_ = entry.error;
}

void TensorMapWriter::write(CUtensorMap& map, const Tensor& tensor, bool bf16, bool swizzles) {
  if (error_ != cudaSuccess) return;
  cuuint64_t strides[4];
  cuuint32_t element_strides[5] = {1, 1, 1, 1, 1};
  for (int i = 0; i + 1 < tensor.dims; ++i) {
    strides[i] = static_cast<uint64_t>(tensor.strides[i]) * 2;
  }
  const CUresult result =
      encode_(&map, bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
              static_cast<cuuint32_t>(tensor.dims), const_cast<void*>(tensor.base), tensor.sizes,
              strides, tensor.box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
              swizzles ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) error_ = cudaErrorInvalidValue;
}

template <>
cudaError_t launch_prefill_dim<64>(const PrefillParams& params, cudaStream_t stream);
template <>
cudaError_t launch_prefill_dim<96>(const PrefillParams& params, cudaStream_t stream);
template <>
cudaError_t launch_prefill_dim<128>(const PrefillParams& params, cudaStream_t stream);
template <>
cudaError_t launch_prefill_dim<192>(const PrefillParams& params, cudaStream_t stream);
template <>
cudaError_t launch_prefill_dim<256>(const PrefillParams& params, cudaStream_t stream);

cudaError_t launch_prefill(const PrefillParams& params, cudaStream_t stream) {
  if (params.plan.num_tiles == 0) return cudaSuccess;
  if (!prefill_reads(params.pages, params.shape)) return cudaErrorInvalidValue;
  // What lies in pages of 8-bit or scaled cells is not what the step's own keys are.
  const bool same_cells = params.pages.cells == Cells::kHalf && params.pages.k_scale == 1.0F &&
                          params.pages.v_scale == 1.0F;
  if (params.plan.any_ragged && !same_cells) return cudaErrorInvalidValue;
  if (params.extras.alibi != nullptr && !params.causal) return cudaErrorInvalidValue;
  return with_padded_dim(params.shape.head_dim,
                         [&]<int kDim>() { return launch_prefill_dim<kDim>(params, stream); });
}

}  // namespace tenon::flash
