#include "bench/cuda/read_ceiling.h"

namespace tenon::bench {
namespace {

constexpr int kThreads = 512;
constexpr int kLoads = 8;

__global__ void __launch_bounds__(kThreads)
    read_kernel(const uint4* data, size_t vectors, unsigned* sink) {
  // A block reads 64 KiB in a row, the blocks of the grid neighbouring ones.
  constexpr size_t kChunk = kThreads * kLoads;
  unsigned sum = 0;
  size_t at = blockIdx.x * kChunk + threadIdx.x;
  for (; at - threadIdx.x + kChunk <= vectors; at += gridDim.x * kChunk) {
    uint4 values[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) values[j] = __ldcs(data + at + j * kThreads);
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      sum ^= values[j].x ^ values[j].y ^ values[j].z ^ values[j].w;
    }
  }
  // At most one block finds a part of a chunk here.
  for (; at < vectors; at += kThreads) sum ^= data[at].x;
  if (sum == 0x9E3779B9U) *sink = sum;
}

}  // namespace

void launch_read(const void* data, size_t bytes, unsigned* sink, cudaStream_t stream) {
  read_kernel<<<132 * 4, kThreads, 0, stream>>>(static_cast<const uint4*>(data), bytes / 16, sink);
}

}  // namespace tenon::bench
