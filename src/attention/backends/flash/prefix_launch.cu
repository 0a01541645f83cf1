#include "attention/backends/flash/prefix_launch.cuh"

namespace tenon::flash {

template <>
cudaError_t launch_prefix_dim<64>(const PrefixParams& params, cudaStream_t stream);
template <>
cudaError_t launch_prefix_dim<96>(const PrefixParams& params, cudaStream_t stream);
template <>
cudaError_t launch_prefix_dim<128>(const PrefixParams& params, cudaStream_t stream);
template <>
cudaError_t launch_prefix_dim<192>(const PrefixParams& params, cudaStream_t stream);
template <>
cudaError_t launch_prefix_dim<256>(const PrefixParams& params, cudaStream_t stream);

cudaError_t launch_prefix(const PrefixParams& params, cudaStream_t stream) {
  if (!prefix_supports(params.shape)) return cudaErrorInvalidValue;
  if (params.pages.swizzled &&
      (params.shape.head_dim % 64 != 0 || params.shape.page_size % 8 != 0)) {
    return cudaErrorInvalidValue;
  }
  switch (prefill_padded_dim(params.shape.head_dim)) {
    case 64: return launch_prefix_dim<64>(params, stream);
    case 96: return launch_prefix_dim<96>(params, stream);
    case 128: return launch_prefix_dim<128>(params, stream);
    case 192: return launch_prefix_dim<192>(params, stream);
    case 256: return launch_prefix_dim<256>(params, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace tenon::flash
