// Launching kernels of one stream so that each may start before its predecessor has finished
// (programmatic dependent launch, CUDA programming guide 6.2.4). At one token a step the small
// kernels between two linear layers take microseconds on a fraction of the chip; a linear layer
// launched this way fetches its first weights meanwhile.
//
// The rule that makes it safe: a kernel launched by launch_chained() calls wait_for_predecessor()
// in every thread before it touches memory that another kernel writes or reads, weights excepted.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

namespace tenon {

// Blocks until every kernel before this one in the stream is done and its writes can be seen.
__device__ __forceinline__ void wait_for_predecessor() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Lets the next kernel start once all blocks of this one have called it (or ended). It says nothing
// about memory: the next kernel's wait_for_predecessor() does.
__device__ __forceinline__ void let_successor_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
};

template <typename... Params, typename... Args>
void launch_chained(void (*kernel)(Params...),
                    const LaunchShape& shape,
                    cudaStream_t stream,
                    Args&&... args) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  // A failed launch is kept by the runtime: the caller asks cudaGetLastError().
  static_cast<void>(cudaLaunchKernelEx(&config, kernel, Params(std::forward<Args>(args))...));
}

}  // namespace tenon
