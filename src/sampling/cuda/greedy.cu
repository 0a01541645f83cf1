// The highest logit of each row, in one pass over it; and ids that only the device knows.
#include <algorithm>
#include <cmath>

#include "sampling/cuda/cluster_row.cuh"

namespace tenon::cuda_sampling {
namespace {

__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 4)
    greedy_kernel(const __grid_constant__ GreedyBatch batch) {
  __shared__ Shared shared;
  const GreedyRow& at = batch.rows[blockIdx.x / kCluster];
  ClusterRow row(shared, nullptr, batch.logits, at.row);
  const Best best = Best::of_word(row.reduce<Max>(row.best<4>().word()));
  if (row.rank() == 0 && threadIdx.x == 0) {
    batch.out[at.out] = {best.id, best.id < 0 ? Outcome::kNoNumbers : Outcome::kToken};
    // The next step may already be waiting for it: always a valid id.
    batch.last_token[at.state] = max(best.id, 0);
  }
  row.sync();  // nobody leaves while others read its shared memory
}

__global__ void resolve_kernel(int32_t* ids, int64_t count, const int32_t* last_token) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count && ids[i] < 0) ids[i] = last_token[~ids[i]];
}

}  // namespace

int32_t max_vocab(int max_shared_bytes) {
  constexpr int kReserve = 1024;  // of each block, for the system
  const int slice = (max_shared_bytes - kReserve - static_cast<int>(sizeof(Shared))) / 16 * 4 - 4;
  return std::min(slice * kCluster, draw::kMaxVocab);
}

void launch_greedy(const GreedyBatch& batch, cudaStream_t stream) {
  greedy_kernel<<<batch.num_rows * kCluster, kThreads, 0, stream>>>(batch);
}

void launch_resolve(int32_t* ids, int64_t count, const int32_t* last_token, cudaStream_t stream) {
  constexpr int kBlock = 256;
  resolve_kernel<<<static_cast<unsigned>((count + kBlock - 1) / kBlock), kBlock, 0, stream>>>(
      ids, count, last_token);
}

}  // namespace tenon::cuda_sampling
