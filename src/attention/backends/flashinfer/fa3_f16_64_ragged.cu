#include "attention/backends/flashinfer/fa3.cuh"

namespace tenon::flashinfer {
template CudaError launch_fa3<cutlass::half_t, 64, true>(const AttentionArgs&,
                                                              const Fa3Plan&,
                                                              Stream);
}  // namespace tenon::flashinfer
