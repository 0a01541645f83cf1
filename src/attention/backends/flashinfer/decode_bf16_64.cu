#include "attention/backends/flashinfer/decode.cuh"

namespace tenon::flashinfer {
template CudaError launch_cuda_core_decode<nv_bfloat16, 64, 1>(const AttentionArgs&,
                                                               const BlockPlan&,
                                                               Stream);
template CudaError launch_cuda_core_decode<nv_bfloat16, 64, 2>(const AttentionArgs&,
                                                               const BlockPlan&,
                                                               Stream);
template CudaError launch_cuda_core_decode<nv_bfloat16, 64, 3>(const AttentionArgs&,
                                                               const BlockPlan&,
                                                               Stream);
template CudaError launch_cuda_core_decode<nv_bfloat16, 64, 4>(const AttentionArgs&,
                                                               const BlockPlan&,
                                                               Stream);
template CudaError launch_cuda_core_decode<nv_bfloat16, 64, 6>(const AttentionArgs&,
                                                               const BlockPlan&,
                                                               Stream);
template CudaError launch_cuda_core_decode<nv_bfloat16, 64, 8>(const AttentionArgs&,
                                                               const BlockPlan&,
                                                               Stream);
}  // namespace tenon::flashinfer
