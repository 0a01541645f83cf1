// What the conformance suite feeds to a backend, and a backend set up with it. Internal to the
// suite.
//
// Ownership:     a Subject borrows its Problem, device and thread pool.
// Thread safety: one thread an object.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attention/conformance.h"
#include "attention/registry.h"
#include "attention/synthetic_batch.h"
#include "kernels/rope.h"
#include "tensor/device.h"

namespace tenon::conformance {

// The types a result went through on its way; all zero for f32.
struct Roundings {
  double unit = 0;      // largest relative error of one rounding to the query's dtype
  double smallest = 0;  // largest absolute error of rounding a value below the normal range
};

// Everything a backend reads, made once a case. Values are representable in the query's dtype.
struct Problem {
  ConformanceCase c;
  AttentionRequirements requirements;
  AttentionLimits limits;
  KvCacheSpec spec;
  int64_t num_blocks = 0;
  SyntheticBatch batch;
  int64_t row_gap = 0;             // rows are strided; the gap must stay as it was
  std::vector<float> activations;  // [T, qkv_stride]: q | k | v | gap; k and v NaN where slot is -1
  std::vector<float> context_k, context_v;  // [keys + 1, kv_heads * dim]; the last: padding, NaN
  std::vector<int64_t> context_slots;       // of the keys of earlier steps, then -1
  std::vector<int32_t> positions;           // [T]
  RopeTable rope;
  std::vector<float> alibi_slopes, sinks;           // [q_heads] if the case has them
  std::vector<float> k_head_scales, v_head_scales;  // [kv_heads] if the case has them
  Roundings roundings;
  double out_tolerance = 0;  // of f32 arithmetic
  double lse_tolerance = 0;

  [[nodiscard]] int64_t q_width() const {
    return int64_t{requirements.num_q_heads} * requirements.head_dim_qk;
  }
  [[nodiscard]] int64_t k_width() const {
    return int64_t{requirements.num_kv_heads} * requirements.head_dim_qk;
  }
  [[nodiscard]] int64_t v_width() const {
    return int64_t{requirements.num_kv_heads} * requirements.head_dim_v;
  }
  [[nodiscard]] int64_t out_width() const {
    return int64_t{requirements.num_q_heads} * requirements.head_dim_v;
  }
  [[nodiscard]] int64_t qkv_stride() const { return q_width() + k_width() + v_width() + row_gap; }
  [[nodiscard]] float softmax_scale() const;
};

Problem make_problem(const ConformanceCase& c, DeviceType device, uint64_t seed);

// The problem with other activations, already rotated.
Problem with_activations(const Problem& problem, std::vector<float> activations);

// The problem with |v| for v: its output says how large the terms are that an output is a sum of.
Problem with_magnitudes(const Problem& problem);

// A part of the problem's batch, or the same rows with less context. Owns what its view borrows.
struct Excerpt {
  Excerpt() = default;
  Excerpt(Excerpt&&) = default;
  Excerpt& operator=(Excerpt&&) = default;

  SyntheticBatch batch;
  int32_t first_token = 0;  // its token 0 is this one of the problem
};
// Queries [first_query, first_query + num_queries) of a row, alone.
Excerpt row_excerpt(const Problem& p, int32_t row, int32_t first_query, int32_t num_queries);
// Every row with its context divided, but one earlier key left where it had any. 1: a copy.
Excerpt shortened(const Problem& p, int32_t divisor);

struct Output {
  std::vector<float> out;  // [T, out_width]
  std::vector<float> lse;  // [T, q_heads]; empty if the case wants none
  std::string damage;      // what was written outside of them; empty: nothing
};

// Where a forward() writes, with canaries around it.
struct Target {
  Buffer out, lse;
  int64_t tokens = 0;
};

// One backend with its own pool, and the layer under test, keys and values written.
class Subject {
 public:
  // Errors: kUnsupported with the reasons when the backend refuses.
  static Result<Subject> create(const AttentionRegistry& registry,
                                std::string_view name,
                                const Problem& problem,
                                const BackendContext& context,
                                std::optional<KvLayout> layout);

  [[nodiscard]] const BackendInfo& info() const { return backend_->info(); }
  [[nodiscard]] AttentionBackend& backend() { return *backend_; }
  [[nodiscard]] KvLayout layout() const { return pool_.layout(); }
  // Cells of all layers, and the activations as they are now.
  [[nodiscard]] std::vector<std::byte> read_cells() const;
  [[nodiscard]] std::vector<float> read_activations() const;

  [[nodiscard]] Result<Target> make_target(int64_t tokens);
  // Plans and enqueues; with `graph`, by its rules.
  Status enqueue(const BatchView& view,
                 int32_t first_token,
                 const GraphBounds* graph,
                 Target& target);
  // The graph of a forward() planned for `view`; it has run once before, as the engine does it.
  Result<std::unique_ptr<DeviceGraph>> capture(const BatchView& view,
                                               const GraphBounds& graph,
                                               Target& target);
  Status plan(const BatchView& view, const GraphBounds& graph);
  void poison(Target& target);
  Result<Output> collect(const Target& target);
  // All of it: a fresh target, enqueue(), collect().
  Result<Output> forward(const BatchView& view, int32_t first_token);

 private:
  Subject() = default;
  Status write(const Problem& problem);
  [[nodiscard]] AttentionInput input(const Target& target, int32_t first_token) const;
  [[nodiscard]] TensorView columns(int64_t begin, int64_t width) const;

  const Problem* problem_ = nullptr;
  Device* device_ = nullptr;
  DType dtype_ = DType::kF32;  // of activations
  std::unique_ptr<AttentionBackend> backend_;
  KvPool pool_;
  std::unique_ptr<AttentionImpl> impl_;
  Buffer activations_, slots_;
  Buffer context_k_, context_v_, context_slots_;
  Buffer positions_, cos_, sin_;
};

// The same through `reference` on the host: outputs, and cells in a layout.
Result<Subject> make_reference(const AttentionRegistry& registry,
                               const Problem& problem,
                               KvLayout layout = KvLayout::kLBHNC);

}  // namespace tenon::conformance
