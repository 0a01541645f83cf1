// Rows with parameters: bias, bans, penalties, temperature, top_k, top_p, min_p and the draw, in
// one launch. A cluster of blocks keeps the row in shared memory, so that device memory is read
// once.
#include <cmath>

#include "sampling/cuda/cluster_row.cuh"

namespace tenon::cuda_sampling {
namespace {

// Adds biases and bans to the logits in shared memory.
__device__ void apply_biases(ClusterRow& row, const SampleRow& params) {
  const auto each = [&](int32_t first, int32_t count, auto apply) {
    for (int32_t j = static_cast<int32_t>(threadIdx.x); j < count; j += kThreads) {
      const TokenBias bias = params.biases[first + j];
      float* const logit = row.find_logit(bias.token);
      if (logit != nullptr) *logit = apply(*logit, bias.bias);
    }
    __syncthreads();
  };
  __syncthreads();
  each(0, params.num_biases,
       [](float logit, float bias) { return bias == -INFINITY ? bias : __fadd_rn(logit, bias); });
  each(params.num_biases, params.num_bans, [](float, float) { return -INFINITY; });
}

__device__ float penalise(float value, uint16_t count, const SampleRow& params) {
  if (count == 0) return value;
  value = value > 0 ? __fdiv_rn(value, params.repetition_penalty)
                    : __fmul_rn(value, params.repetition_penalty);
  const int32_t produced = count & kMaxCount;
  if (produced == 0) return value;
  return __fsub_rn(value,
                   __fadd_rn(params.presence_penalty,
                             __fmul_rn(params.frequency_penalty, static_cast<float>(produced))));
}

__device__ void finish(const SampleBatch& batch,
                       const SampleRow& params,
                       int32_t token,
                       Outcome outcome) {
  batch.out[params.at.out] = {token, outcome};
  // The next step may already be waiting for it: always a valid id.
  batch.last_token[params.at.state] = max(token, 0);
  if (params.counts == nullptr || token < 0) return;
  const uint16_t count = params.counts[token];
  if ((count & kMaxCount) != kMaxCount) params.counts[token] = count + 1;
}

__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 2)
    sample_kernel(const __grid_constant__ SampleBatch batch) {
  extern __shared__ __align__(16) float values[];
  __shared__ Shared shared;
  const SampleRow& params = batch.rows[blockIdx.x / kCluster];
  ClusterRow row(shared, values, batch.logits, params.at.row);

  Best best = row.stage();
  const bool biased = params.num_biases + params.num_bans > 0;
  if (biased) apply_biases(row, params);
  if (params.counts != nullptr) {
    row.change([&](float logit, int32_t id) { return penalise(logit, params.counts[id], params); });
  }
  if (biased || params.counts != nullptr) {
    best = {};
    row.each([&](float logit, int32_t id) { best.visit(logit, id); });
  }
  best = Best::of_word(row.reduce<Max>(best.word()));
  const bool first_thread = row.rank() == 0 && threadIdx.x == 0;

  if (best.id < 0) {
    // Did the model give any number?
    const uint64_t any = row.reduce<Max>(row.best<1>().word());
    if (first_thread) {
      finish(batch, params, -1, any != 0 ? Outcome::kAllBanned : Outcome::kNoNumbers);
    }
  } else if (params.scale == 0.0F || best.logit == INFINITY) {
    if (first_thread) finish(batch, params, best.id, Outcome::kToken);
  } else {
    row.set_scale(best.logit, params.scale);
    Bound kept;
    if (params.top_k > 0) {
      kept = row.select<false>(kept, static_cast<uint32_t>(params.top_k), 0.0F);
    }
    if (params.top_p < 1.0F) kept = row.select<true>(kept, 0, params.top_p);
    const float min_p_log2 = params.min_p_log2;
    const auto weigh = [&](float logit, int32_t id) -> uint64_t {
      if (!kept.keeps(logit, id)) return 0;
      const float ratio = row.ratio(logit);
      return ratio >= min_p_log2 ? draw::weight(ratio) : 0;
    };
    const ClusterRow::Parts parts = row.weigh_row(weigh);
    const uint64_t point = draw::point(params.seed, params.counter, parts.all);
    row.walk(parts, point, weigh,
             [&](int32_t token) { finish(batch, params, token, Outcome::kToken); });
  }
  row.sync();  // nobody leaves while others read its shared memory
}

}  // namespace

cudaError_t prepare_sample(int32_t vocab_size) {
  return cudaFuncSetAttribute(sample_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(shared_bytes(vocab_size)));
}

void launch_sample(const SampleBatch& batch, cudaStream_t stream) {
  sample_kernel<<<batch.num_rows * kCluster, kThreads, shared_bytes(batch.logits.vocab_size),
                  stream>>>(batch);
}

}  // namespace tenon::cuda_sampling
