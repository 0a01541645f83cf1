#include "attention/backends/flash/decode_kernel.cuh"

namespace tenon::flash {

template cudaError_t launch_decode_quantised<Cells::kI8, 64>(const DecodeVariant& variant,
                                                             const DecodeParams& params,
                                                             cudaStream_t stream);

}  // namespace tenon::flash
