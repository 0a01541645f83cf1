// The attention layer's three classes. Everything special about one attention implementation
// (layout, planning, kernels) stays behind them.
//
//   AttentionBackend   one object per (backend, KV group): says what it can do, plans, makes impls
//   AttentionMetadata  the plan of one step: opaque, immutable, shared by all layers of the group
//   AttentionImpl      one per layer: write_kv and forward
//
// Numerics, the same everywhere: LSE is natural log, f32, contiguous [T, heads]. An empty segment
// is out = 0, lse = -inf. A key is visible iff 0 <= q_pos - k_pos < window. Cells past seq_len are
// masked by selection, so NaN in unused cells cannot leak.
//
// Ownership:     backend outlives its impls and metadata. Thread safety: the engine thread only.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attention/batch_view.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "kernels/rope.h"
#include "kv_cache/layout.h"
#include "kv_cache/pool.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

namespace tenon {

// What a model and a configuration ask of a backend.
struct AttentionRequirements {
  DeviceType device = DeviceType::kCpu;
  DType q_dtype = DType::kF32;
  DType kv_dtype = DType::kF16;
  int32_t head_dim_qk = 0;
  int32_t head_dim_v = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t block_size = 16;
  int32_t max_decode_query_len = 1;
  bool causal = true;
  bool sliding_window = false;
  bool logits_soft_cap = false;
  bool alibi = false;
  bool sinks = false;
  bool kv_sharing = false;
  bool cascade = false;
  bool needs_lse = false;
  bool kv_scale_per_head = false;  // KvScales::k_heads, v_heads
};

enum class AttentionFeature : uint32_t {
  kNonCausal = 1U << 0,
  kSlidingWindow = 1U << 1,
  kLogitsSoftCap = 1U << 2,
  kAlibi = 1U << 3,
  kSinks = 1U << 4,
  kKvSharing = 1U << 5,
  kCascade = 1U << 6,
  kLse = 1U << 7,
  kKvScalePerHead = 1U << 8,
};

// The bits of BackendInfo::features.
[[nodiscard]] constexpr uint32_t features(std::initializer_list<AttentionFeature> list) {
  uint32_t bits = 0;
  for (const AttentionFeature feature : list) bits |= static_cast<uint32_t>(feature);
  return bits;
}

enum class GraphSupport : uint8_t { kNever, kUniformDecode, kAlways };

// What a backend offers. Plain data; the default check() is derived from it.
struct BackendInfo {
  std::string name;
  std::string summary;  // one line for `tenon backends`
  std::vector<DeviceType> devices;
  std::vector<DType> q_dtypes;
  std::vector<DType> kv_dtypes;
  int32_t max_head_dim = 0;  // any size up to this one
  int32_t head_dim_multiple = 1;
  std::vector<int32_t> block_sizes;  // empty: any
  std::vector<KvLayout> layouts;     // accepted, preferred first
  uint32_t features = 0;             // AttentionFeature bits
  GraphSupport graphs = GraphSupport::kNever;
  int32_t max_decode_query_len = 1;
  // The bits of a row's output depend on nothing else: not on the rest of the batch, the way its
  // queries are cut into chunks, or the number of threads. The conformance suite holds a backend to
  // it.
  bool batch_invariant = false;
  int32_t preference = 0;  // `auto` takes the highest that passes check(); set from measurements

  [[nodiscard]] bool has(AttentionFeature feature) const {
    return (features & static_cast<uint32_t>(feature)) != 0;
  }
};

// Upper bounds that every step stays within; workspaces are sized from them once.
struct AttentionLimits {
  int32_t max_num_seqs = 0;
  int32_t max_num_batched_tokens = 0;
  int32_t max_seq_len = 0;
};

// The facts of one layer. Never asserted equal across layers.
struct LayerParams {
  int32_t layer = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim_qk = 0;
  int32_t head_dim_v = 0;
  float scale = 0.0F;                     // applied to q . k, first of all
  std::optional<int32_t> sliding_window;  // keys visible: q_pos - k_pos < window
  float logits_soft_cap = 0.0F;           // 0: off; else cap * tanh(s / cap)
  // [q_heads], added after the soft cap: slope * (k_pos - q_pos) (ALiBi, arXiv:2108.12409). Empty:
  // off. Host memory that outlives the impl.
  std::span<const float> alibi_slopes;
  // [q_heads], a score that every row's softmax sums once without a value (arXiv:2309.17453, as
  // learned by gpt-oss): part of the LSE. Empty: off. Host memory that outlives the impl.
  std::span<const float> sinks;
  // The layer reads keys that an earlier layer writes: `kv` is that layer's, write_kv() does
  // nothing.
  bool shares_kv = false;
  KvView kv;  // where this layer's K and V live
};

// kInvalidArgument when the batch exceeds the limits; every build_metadata asks.
Status check_batch_limits(const BatchView& batch, const AttentionLimits& limits);

// The shape a decode graph is captured for: rows of one query token each.
struct GraphBounds {
  int32_t num_rows = 0;
};

// How far one plan shares prefixes.
struct CascadeUse {
  int32_t groups = 0;           // levels of the prefix tree that are read once for all their rows
  int32_t rows = 0;             // rows in at least one of them
  int64_t tokens_not_read = 0;  // keys, of all rows, less than without cascade
};

class AttentionMetadata {
 public:
  virtual ~AttentionMetadata() = default;
  // Which rows go which way, for logs and tests: "decode rows 0..31 split-kv 4; prefill
  // rows 32..33".
  [[nodiscard]] virtual std::string describe() const = 0;
  // What shared prefixes saved in this step; nothing if each row is on its own.
  [[nodiscard]] virtual CascadeUse cascade() const { return {}; }
};

// What one layer's attention reads and writes in a step of T tokens. Rows may be strided.
struct AttentionInput {
  TensorView q;            // [T, q_heads * head_dim_qk]
  TensorView k;            // [T, kv_heads * head_dim_qk], this step's, as stored by write_kv()
  TensorView v;            // [T, kv_heads * head_dim_v]
  TensorView out;          // [T, q_heads * head_dim_v]
  std::span<float> lse{};  // [T * q_heads], or empty
};

struct RopeInput {
  std::span<const int32_t> positions;  // [T]
  RopeView table;
};

class AttentionImpl {
 public:
  virtual ~AttentionImpl() = default;
  // Stores k[T, kv_heads * head_dim_qk], v[T, kv_heads * head_dim_v] at slots[T]; slot -1 is
  // skipped. Tensors and spans are memory of the backend's device.
  virtual void write_kv(const TensorView& k,
                        const TensorView& v,
                        std::span<const int64_t> slots) = 0;
  // Rotates q and k of `in` in place by their positions (RoFormer, arXiv:2104.09864) and stores k
  // and v, in one pass. False: nothing was done, the caller rotates and calls write_kv().
  virtual bool rope_and_write_kv(const AttentionInput& in,
                                 std::span<const int64_t> slots,
                                 const RopeInput& rope) {
    return false;
  }
  // in.out from in.q over the keys of each row. write_kv() has stored in.k and in.v before; a
  // backend may read a row's keys there instead of in the pages when the row has no earlier ones.
  // in.lse is filled when not empty. Requires: metadata from this impl's backend, built for this
  // step.
  virtual void forward(const AttentionInput& in, const AttentionMetadata& metadata) = 0;
};

class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;
  [[nodiscard]] virtual const BackendInfo& info() const = 0;
  // Every reason why the requirements cannot be met; empty means yes.
  [[nodiscard]] virtual std::vector<std::string> check(const AttentionRequirements& wanted) const;
  // Exact worst-case bytes for any step within `limits`, from the same code that plans.
  [[nodiscard]] virtual int64_t workspace_size(const AttentionLimits& limits) const = 0;
  // Takes all memory the plans and impls will need. Call once before build_metadata.
  virtual Status prepare(const AttentionLimits& limits) = 0;
  // The plan of one step; host only, bounded time, no allocation after prepare(). The result lives
  // in a ring of kMetadataRing plans and borrows the view's spans, which must stay unchanged until
  // the step's last forward(). Errors: kInvalidArgument when the view is outside the limits or
  // malformed.
  static constexpr int kMetadataRing = 4;
  // With `graph` the launches must depend on the bounds alone, so that a graph captured with other
  // metadata of the same bounds can be replayed on this one's; rows of seq_len 0 are padding.
  // kFailedPrecondition when the batch does not fit what was captured: the step then runs without
  // a graph.
  virtual Result<const AttentionMetadata*> build_metadata(const BatchView& batch,
                                                          const GraphBounds* graph) = 0;
  Result<const AttentionMetadata*> build_metadata(const BatchView& batch) {
    return build_metadata(batch, nullptr);
  }
  virtual std::unique_ptr<AttentionImpl> make_impl(const LayerParams& params) = 0;

  // Block moves belong to the backend; the defaults follow the layout.
  virtual void copy_blocks(KvPool& pool, std::span<const BlockCopy> copies);
  virtual void swap_blocks(const KvPool& src, KvPool& dst, std::span<const BlockCopy> copies);
};

// Which kernels serve a step that mixes decode and prefill rows (--attention-split).
enum class AttentionSplit : uint8_t {
  kAuto,     // whatever was measured fastest; decode and prefill rows may run concurrently
  kUnified,  // one prefill kernel for every row
  kSplit,    // a decode kernel for decode rows, then a prefill kernel for the others
};

// Whether rows with a common prefix read it together (--cascade).
enum class CascadeMode : uint8_t {
  kAuto,  // where the backend's cost model expects a gain
  kOn,    // wherever rows share whole pages
  kOff,
};

// What a backend is built from: the facts of its KV group and the machine.
struct BackendContext {
  AttentionRequirements requirements;
  Device* device = nullptr;  // borrowed; outlives the backend
  AttentionSplit split = AttentionSplit::kAuto;
  CascadeMode cascade = CascadeMode::kAuto;
  ThreadPool* pool = nullptr;  // borrowed; outlives the backend
  std::string isa = "auto";    // as --cpu-isa
};

}  // namespace tenon
