#include "attention/backends/flashinfer/fa2.cuh"

namespace tenon::flashinfer {
template CudaError launch_fa2<nv_bfloat16, 128, 128>(const AttentionArgs&,
                                                     const BlockPlan&,
                                                     Stream);
}  // namespace tenon::flashinfer
