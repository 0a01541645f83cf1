#include "attention/backends/flashinfer/fa3.cuh"

namespace tenon::flashinfer {
template CudaError launch_fa3<cutlass::bfloat16_t, 128, false>(const AttentionArgs&,
                                                               const Fa3Plan&,
                                                               Stream);
}  // namespace tenon::flashinfer
