// What goes into the engine and what comes out, in token ids. Text lives in front of the engine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tenon/sampling.h"
#include "tenon/status.h"

namespace tenon {

using RequestId = uint64_t;

struct GenerationRequest {
  std::vector<int32_t> prompt;  // token ids, not empty
  SamplingParams sampling;
  int32_t priority = 0;    // lower runs earlier; needs --scheduling-policy priority if not 0
  std::string cache_salt;  // requests with different salts never share prefix-cache blocks
};

enum class FinishReason { kNone, kStop, kLength, kAbort, kError };
[[nodiscard]] std::string_view finish_reason_name(FinishReason reason);

// Timestamps are seconds of the monotonic clock; 0 means "not yet".
struct RequestTimings {
  double arrival = 0;
  double first_scheduled = 0;
  double first_token = 0;
  double finished = 0;
};

// One update of one request. The engine sends at least one, the last with finish_reason != kNone.
struct RequestOutput {
  RequestId id = 0;
  std::vector<int32_t> tokens;          // new ids since the last update (an ending EOS is included)
  std::vector<TokenLogprobs> logprobs;  // one per new id if SamplingParams::logprobs
  // Sent once, with the first update, if SamplingParams::prompt_logprobs: entry i belongs to prompt
  // token i; entry 0 has no logprob.
  std::vector<TokenLogprobs> prompt_logprobs;
  FinishReason finish_reason = FinishReason::kNone;
  std::optional<int32_t> stop_token;  // the id that ended the request: EOS or one of stop_token_ids
  bool stopped_by_eos = false;        // stop_token is the model's own end token
  int32_t num_cached_tokens = 0;      // prompt tokens taken from the prefix cache
  Status error;                       // set with kError
  RequestTimings timings;
};

// Called on the engine thread, so it must not block and must not call back into the engine except
// abort(). Outputs of one request arrive in order.
using OutputCallback = std::function<void(RequestOutput&&)>;

}  // namespace tenon
