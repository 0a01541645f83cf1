// Launch interface of the sampling kernels: plain data between the host side and the .cu files.
//
// Rows of logits are f32 in device memory and are only read. Parameters travel as kernel arguments,
// so that no buffer has to be kept until a launch has run; results are written to pinned host
// memory by the kernels themselves. All launches enqueue on `stream`; errors: cudaGetLastError().
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "tenon/sampling.h"

namespace tenon::cuda_sampling {

// Of one launch; a kernel's arguments hold at most 32,764 bytes.
inline constexpr int kMaxRowsPerLaunch = 256;
inline constexpr int kCluster = 8;  // thread blocks that share a row
inline constexpr int kMaxTop = SamplingParams::kMaxLogprobs;

enum class Outcome : int32_t { kToken = 0, kAllBanned = 1, kNoNumbers = 2 };

struct SampledId {
  int32_t token;  // -1 unless kToken
  Outcome outcome;
};

struct SampledLogprobs {
  float logprob;
  int32_t num_top;
  int32_t ids[kMaxTop];
  float logprobs[kMaxTop];
};

struct Logits {
  const float* data;
  int64_t row_stride;  // elements
  int32_t vocab_size;
};

struct TokenBias {
  int32_t token;
  float bias;  // -infinity bans
};

// A row without parameters that change its logits, at temperature 0.
struct GreedyRow {
  int32_t row;    // of the logits
  int32_t state;  // slot of last_token
  int32_t out;    // index of the result
};
struct GreedyBatch {
  Logits logits;
  int32_t* last_token;
  SampledId* out;
  int32_t num_rows;
  GreedyRow rows[kMaxRowsPerLaunch];
};

// The bits of a token's count: whether the prompt has it, and how often it was produced.
inline constexpr uint16_t kInPrompt = 0x8000;
inline constexpr uint16_t kMaxCount = 0x7FFF;

struct SampleRow {
  uint64_t seed;
  uint64_t counter;         // tokens accepted before
  const TokenBias* biases;  // num_biases, then num_bans
  uint16_t* counts;         // [vocab_size], null: no penalties
  int32_t num_biases;       // distinct tokens
  int32_t num_bans;         // applied behind the biases
  float scale;              // draw::log2_scale(); 0: greedy
  int32_t top_k;            // 0: off
  float top_p;              // 1: off
  float min_p_log2;         // -infinity: off
  float repetition_penalty, presence_penalty, frequency_penalty;
  GreedyRow at;
};
struct SampleBatch {
  Logits logits;
  int32_t* last_token;
  SampledId* out;
  int32_t num_rows;
  SampleRow rows[kMaxRowsPerLaunch];
};

struct LogprobsRow {
  int32_t row;
  int32_t token;    // < 0: last_token[~token]
  int32_t num_top;  // <= kMaxTop
  int32_t out;
};
struct LogprobsBatch {
  Logits logits;
  const int32_t* last_token;
  SampledLogprobs* out;
  int32_t num_rows;
  LogprobsRow rows[kMaxRowsPerLaunch];
};

// The largest vocabulary whose rows fit the shared memory of a cluster, given what one block has.
[[nodiscard]] int32_t max_vocab(int max_shared_bytes);
// Lets the kernels have the shared memory that a vocabulary needs. Once, before the first launch.
[[nodiscard]] cudaError_t prepare_sample(int32_t vocab_size);
[[nodiscard]] cudaError_t prepare_logprobs(int32_t vocab_size);

void launch_greedy(const GreedyBatch& batch, cudaStream_t stream);
void launch_sample(const SampleBatch& batch, cudaStream_t stream);
void launch_logprobs(const LogprobsBatch& batch, cudaStream_t stream);
// ids[t] < 0 becomes last_token[~ids[t]].
void launch_resolve(int32_t* ids, int64_t count, const int32_t* last_token, cudaStream_t stream);

}  // namespace tenon::cuda_sampling
