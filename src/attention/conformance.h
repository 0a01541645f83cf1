// The conformance suite: any registered backend against `reference`, over the axes on which
// attention kernels have been known to fail. Tests and `tenon backends --verify NAME` run the same
// cases.
//
// What a case checks: cells written bit for bit as by the reference; output and LSE within a
// tolerance derived from norms and the epsilons of the types involved; NaN and infinity in unused
// cells and pages without effect; nothing written outside rows and cells; inputs left alone; a step
// enqueued behind another one; fused RoPE; a graph captured with one plan and replayed on another;
// and, for a backend that claims batch_invariant, equal bits for a row alone, for every token as a
// decode row, and for any number of threads. On a GPU the reference runs on the host, over the same
// rounded values.
// Thread safety: one run at a time; it makes its own thread pools.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attention/registry.h"
#include "base/status.h"

namespace tenon {

// RoPE fused with the write of keys and values; 0 features: a plain write.
struct ConformanceRope {
  int32_t rotary_dim = 0;
  bool interleaved = false;
};

struct ConformanceCase {
  std::string batch = "4q1s130_q5s90_q33s77_q50";  // batch grammar
  int32_t num_q_heads = 6;
  int32_t num_kv_heads = 2;
  int32_t head_dim_qk = 64;
  int32_t head_dim_v = 64;
  DType q_dtype = DType::kF32;
  DType kv_dtype = DType::kF16;
  std::optional<KvLayout> layout = KvLayout::kLBHNC;  // nothing: the backend's first
  int32_t block_size = 16;
  bool causal = true;
  bool lse = true;
  std::optional<int32_t> sliding_window;
  float soft_cap = 0.0F;
  float k_scale = 1.0F;
  float v_scale = 1.0F;
  bool head_scales = false;  // scales differ from head to head, too
  bool alibi = false;
  bool sinks = false;
  bool shares_kv = false;  // a second layer reads the cells that the first one wrote
  AttentionSplit split = AttentionSplit::kAuto;
  CascadeMode cascade = CascadeMode::kOn;  // for batches with shared prefixes
  ConformanceRope rope;
  int32_t graph_rows = 0;   // > 0: the batch, of single tokens, is padded to this and also replayed
  int32_t max_seq_len = 0;  // the limit to prepare for; 0: what the batch needs
};
[[nodiscard]] std::string describe_case(const ConformanceCase& c);

// smoke: a handful, for sanitizers. quick: each axis swept on its own, a few seconds. full:
// products of the axes as well, about a minute an instruction set.
enum class ConformanceLevel : uint8_t { kSmoke, kQuick, kFull };
[[nodiscard]] std::vector<ConformanceCase> conformance_cases(ConformanceLevel level,
                                                             DeviceType device = DeviceType::kCpu);

struct ConformanceOptions {
  ConformanceLevel level = ConformanceLevel::kQuick;
  Device* device = nullptr;  // of the backend under test; nullptr: the CPU
  std::vector<std::string> isas = {"auto"};
  std::vector<int> threads = {1, 3};
  uint64_t seed = 1;
};

enum class ConformanceOutcome : uint8_t { kPassed, kFailed, kRefused };

// One case on one instruction set, with every number of threads.
struct ConformanceResult {
  std::string name;
  ConformanceOutcome outcome = ConformanceOutcome::kPassed;
  double worst = 0;    // largest error as a share of its tolerance
  std::string detail;  // what failed first, or the backend's reasons for refusing
};

// The `reference` backend must be registered, too. Errors: kInvalidArgument when `backend` is not
// registered; the device's, which end the run.
Result<std::vector<ConformanceResult>> run_conformance(
    const AttentionRegistry& registry,
    std::string_view backend,
    const ConformanceOptions& options,
    const std::function<void(const ConformanceResult&)>& on_result = {});

// One result an instruction set of `options`; options.level does not matter.
std::vector<ConformanceResult> run_conformance_case(const AttentionRegistry& registry,
                                                    std::string_view backend,
                                                    const ConformanceCase& c,
                                                    const ConformanceOptions& options);

}  // namespace tenon
