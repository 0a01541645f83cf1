#include "attention/backends/flashinfer/fa2.cuh"

namespace tenon::flashinfer {
template CudaError launch_fa2<half, 256, 16>(const AttentionArgs&, const BlockPlan&, Stream);
}  // namespace tenon::flashinfer
