#include "attention/backends/flashinfer/decode.cuh"

namespace tenon::flashinfer {
template CudaError launch_cuda_core_decode<nv_bfloat16, 128, 1>(const AttentionArgs&,
                                                                const BlockPlan&,
                                                                Stream);
template CudaError launch_cuda_core_decode<nv_bfloat16, 128, 2>(const AttentionArgs&,
                                                                const BlockPlan&,
                                                                Stream);
template CudaError launch_cuda_core_decode<nv_bfloat16, 128, 3>(const AttentionArgs&,
                                                                const BlockPlan&,
                                                                Stream);
template CudaError launch_cuda_core_decode<nv_bfloat16, 128, 4>(const AttentionArgs&,
                                                                const BlockPlan&,
                                                                Stream);
template CudaError launch_cuda_core_decode<nv_bfloat16, 128, 6>(const AttentionArgs&,
                                                                const BlockPlan&,
                                                                Stream);
template CudaError launch_cuda_core_decode<nv_bfloat16, 128, 8>(const AttentionArgs&,
                                                                const BlockPlan&,
                                                                Stream);
}  // namespace tenon::flashinfer
