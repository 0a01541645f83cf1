// Log-probabilities of untouched logits: of one token a row, and of the best ones.
#include <cmath>

#include "sampling/cuda/cluster_row.cuh"

namespace tenon::cuda_sampling {
namespace {

__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 2)
    logprobs_kernel(const __grid_constant__ LogprobsBatch batch) {
  extern __shared__ __align__(16) float values[];
  __shared__ Shared shared;
  __shared__ int32_t num_listed;
  __shared__ uint64_t listed[32];  // of the first block: the best tokens, in any order
  static_assert(kMaxTop <= 32);
  const LogprobsRow& params = batch.rows[blockIdx.x / kCluster];
  ClusterRow row(shared, values, batch.logits, params.row);
  if (threadIdx.x == 0) num_listed = 0;

  const float best = Best::of_word(row.reduce<Max>(row.stage().word())).logit;
  row.set_scale(best, draw::log2_scale(1.0F));
  const uint64_t sum =
      row.weigh_row([&](float logit, int32_t) { return draw::weight(row.ratio(logit)); }).all;
  constexpr double kLn2 = 0.693147180559945309;
  const float log_sum_exp =
      isinf(best)
          ? best
          : static_cast<float>(best + log(static_cast<double>(sum)) - draw::kWeightBits * kLn2);
  // Never above 0 by rounding; 0 where infinities meet.
  const auto logprob = [&](float logit) {
    const float difference = logit - log_sum_exp;
    return difference < 0.0F ? difference : 0.0F;
  };

  if (params.num_top > 0) {
    const Bound kept = row.select<false>(Bound(), static_cast<uint32_t>(params.num_top), 0.0F);
    auto cluster = cg::this_cluster();
    int32_t* const next = cluster.map_shared_rank(&num_listed, 0);
    uint64_t* const list = cluster.map_shared_rank(listed, 0);
    row.each([&](float logit, int32_t id) {
      if (kept.keeps(logit, id)) list[atomicAdd(next, 1)] = Best::word_of(logit, id);
    });
  }
  row.sync();  // also: nobody leaves while others read its shared memory
  if (row.rank() != 0 || threadIdx.x >= 32) return;
  SampledLogprobs& out = batch.out[params.out];
  const auto lane = static_cast<int32_t>(threadIdx.x);
  if (lane == 0) {
    const int32_t token = params.token < 0 ? batch.last_token[~params.token] : params.token;
    out.logprob = logprob(row.row()[token]);
    out.num_top = num_listed;
  }
  if (lane >= num_listed) return;
  const uint64_t mine = listed[lane];
  int32_t place = 0;
  for (int32_t j = 0; j < num_listed; ++j) place += listed[j] > mine ? 1 : 0;
  const Best token = Best::of_word(mine);
  out.ids[place] = token.id;
  out.logprobs[place] = logprob(token.logit);
}

}  // namespace

cudaError_t prepare_logprobs(int32_t vocab_size) {
  return cudaFuncSetAttribute(logprobs_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(shared_bytes(vocab_size)));
}

void launch_logprobs(const LogprobsBatch& batch, cudaStream_t stream) {
  logprobs_kernel<<<batch.num_rows * kCluster, kThreads, shared_bytes(batch.logits.vocab_size),
                    stream>>>(batch);
}

}  // namespace tenon::cuda_sampling
