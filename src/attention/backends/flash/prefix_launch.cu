#include "attention/backends/flash/prefix_launch.cuh"

#include "attention/backends/flash/prefill_dispatch.h"

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
  if (!prefill_reads(params.pages, params.shape)) return cudaErrorInvalidValue;
  return with_padded_dim(params.shape.head_dim,
                         [&]<int kDim>() { return launch_prefix_dim<kDim>(params, stream); });
}

}  // namespace tenon::flash
