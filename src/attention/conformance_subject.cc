// A backend under test on its device.
#include <algorithm>
#include <cstring>
#include <limits>

#include <fmt/ranges.h>

#include "attention/conformance_problem.h"
#include "base/check.h"

namespace tenon::conformance {
namespace {

constexpr int32_t kLayer = 1;  // not the first, so that a forgotten layer stride shows
// Rows of canaries before and after the output, so that a write outside is found.
constexpr int64_t kGuardRows = 1;

// Bits of a NaN and of infinity.
struct Poison {
  uint32_t nan = 0;
  uint32_t infinity = 0;
};
Poison poison_of(DType dtype) {
  switch (dtype) {
    case DType::kF16: return {0x7E01, 0x7C00};
    case DType::kBF16: return {0x7FC1, 0x7F80};
    case DType::kF8E4M3: return {0x7F, 0xFF};  // it has no infinity
    default: return {0x7FC00001, 0x7F800000};
  }
}

std::vector<std::byte> poisoned(DType dtype, int64_t elements, bool nan_only) {
  const auto width = static_cast<size_t>(dtype_bytes(dtype, 1));
  const Poison values = poison_of(dtype);
  std::vector<std::byte> bytes(static_cast<size_t>(elements) * width);
  for (size_t i = 0; i < static_cast<size_t>(elements); ++i) {
    const uint32_t value = nan_only || i % 2 == 0 ? values.nan : values.infinity;
    std::memcpy(&bytes[i * width], &value, width);  // little endian
  }
  return bytes;
}

// A pool in which whoever reads an unused cell is found out.
std::vector<std::byte> poisoned_pool(DType dtype, int64_t bytes) {
  // Integers cannot be NaN, but their scales can: everything is, as f32.
  if (dtype == DType::kI8) return poisoned(DType::kF32, bytes / 4, true);
  return poisoned(dtype, bytes / dtype_bytes(dtype, 1), false);
}

std::vector<std::byte> encode(DType dtype, const std::vector<float>& values) {
  const auto width = static_cast<size_t>(dtype_bytes(dtype, 1));
  std::vector<std::byte> bytes(values.size() * width);
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) {
      std::memcpy(&bytes[i * width], &values[i], width);
    } else {
      const uint16_t bits = dtype == DType::kF16 ? f32_to_f16(values[i]) : f32_to_bf16(values[i]);
      std::memcpy(&bytes[i * width], &bits, width);
    }
  }
  return bytes;
}

float decode_one(DType dtype, const std::byte* bytes) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, bytes, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return dtype == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

template <typename T>
std::span<const T> span_of(const Buffer& buffer) {
  return {buffer.as<const T>(), buffer.size() / sizeof(T)};
}

Result<std::unique_ptr<AttentionBackend>> make_backend(const AttentionRegistry& registry,
                                                       std::string_view name,
                                                       const BackendContext& context) {
  for (const BackendEntry& entry : registry.entries()) {
    if (entry.name != name) continue;
    auto backend = entry.make(context);
    const std::vector<std::string> reasons = backend->check(context.requirements);
    if (!reasons.empty()) return unsupported("{}", fmt::join(reasons, "; "));
    return backend;
  }
  return invalid_argument("unknown attention backend '{}'", name);
}

}  // namespace

Result<Subject> Subject::create(const AttentionRegistry& registry,
                                std::string_view name,
                                const Problem& problem,
                                const BackendContext& context,
                                std::optional<KvLayout> layout) {
  Subject s;
  s.problem_ = &problem;
  s.device_ = context.device;
  s.dtype_ = context.requirements.q_dtype;
  TENON_ASSIGN_OR_RETURN(s.backend_, make_backend(registry, name, context));
  const std::vector<KvLayout>& layouts = s.backend_->info().layouts;
  if (!layout) layout = resolve_kv_layout(*s.backend_);
  if (std::find(layouts.begin(), layouts.end(), *layout) == layouts.end()) {
    return unsupported("KV layout {} is not accepted", kv_layout_name(*layout));
  }
  if (problem.c.graph_rows > 0 && s.device_->type() == DeviceType::kCuda &&
      s.backend_->info().graphs == GraphSupport::kNever) {
    return unsupported("no graphs");
  }
  TENON_RETURN_IF_ERROR(s.backend_->prepare(problem.limits));
  TENON_ASSIGN_OR_RETURN(s.pool_,
                         KvPool::create(problem.spec, *layout, problem.num_blocks,
                                        [&](size_t bytes) { return s.device_->allocate(bytes); }));
  const auto cells = poisoned_pool(problem.spec.dtype, s.pool_.bytes());
  s.device_->write(s.pool_.view(0).base, cells.data(), cells.size());
  LayerParams params;
  params.layer = kLayer;
  params.num_q_heads = problem.c.num_q_heads;
  params.num_kv_heads = problem.c.num_kv_heads;
  params.head_dim_qk = problem.c.head_dim_qk;
  params.head_dim_v = problem.c.head_dim_v;
  params.scale = problem.softmax_scale();
  params.sliding_window = problem.c.sliding_window;
  params.logits_soft_cap = problem.c.soft_cap;
  params.kv = s.pool_.view(kLayer);
  params.kv.scales = {problem.c.k_scale, problem.c.v_scale, problem.k_head_scales,
                      problem.v_head_scales};
  params.alibi_slopes = problem.alibi_slopes;
  params.sinks = problem.sinks;
  s.impl_ = s.backend_->make_impl(params);
  TENON_RETURN_IF_ERROR(s.write(problem));
  if (problem.c.shares_kv) {
    params.shares_kv = true;
    s.impl_ = s.backend_->make_impl(params);
    // What it is asked to write must not arrive: here every token in the place of another one.
    const int64_t tokens = problem.batch.view.num_tokens();
    if (tokens > 1) {
      const auto half = tokens / 2;
      s.impl_->write_kv(
          s.columns(problem.q_width(), problem.k_width()).slice(half, half),
          s.columns(problem.q_width() + problem.k_width(), problem.v_width()).slice(half, half),
          span_of<int64_t>(s.slots_).first(static_cast<size_t>(half)));
    }
    TENON_RETURN_IF_ERROR(s.device_->synchronize());
  }
  return s;
}

TensorView Subject::columns(int64_t begin, int64_t width) const {
  const Problem& p = *problem_;
  return TensorView::dense(activations_.data(), dtype_, {p.batch.view.num_tokens(), p.qkv_stride()})
      .columns(begin, width);
}

Status Subject::write(const Problem& p) {
  const auto upload = [&](const std::vector<float>& values) {
    const std::vector<std::byte> bytes = encode(dtype_, values);
    return to_device<std::byte>(*device_, bytes);
  };
  TENON_ASSIGN_OR_RETURN(activations_, upload(p.activations));
  TENON_ASSIGN_OR_RETURN(context_k_, upload(p.context_k));
  TENON_ASSIGN_OR_RETURN(context_v_, upload(p.context_v));
  TENON_ASSIGN_OR_RETURN(context_slots_, to_device<int64_t>(*device_, p.context_slots));
  TENON_ASSIGN_OR_RETURN(slots_, to_device<int64_t>(*device_, p.batch.view.slot_mapping));
  const auto context = static_cast<int64_t>(p.context_slots.size());
  impl_->write_kv(TensorView::dense(context_k_.data(), dtype_, {context, p.k_width()}),
                  TensorView::dense(context_v_.data(), dtype_, {context, p.v_width()}),
                  span_of<int64_t>(context_slots_));
  AttentionInput in;
  in.q = columns(0, p.q_width());
  in.k = columns(p.q_width(), p.k_width());
  in.v = columns(p.q_width() + p.k_width(), p.v_width());
  if (p.c.rope.rotary_dim == 0) {
    impl_->write_kv(in.k, in.v, span_of<int64_t>(slots_));
    return device_->synchronize();
  }
  TENON_ASSIGN_OR_RETURN(positions_, to_device<int32_t>(*device_, p.positions));
  TENON_ASSIGN_OR_RETURN(cos_, to_device<float>(*device_, p.rope.cos));
  TENON_ASSIGN_OR_RETURN(sin_, to_device<float>(*device_, p.rope.sin));
  RopeInput rope;
  rope.positions = span_of<int32_t>(positions_);
  rope.table = {p.rope.rotary_dim, p.rope.interleaved, span_of<float>(cos_), span_of<float>(sin_)};
  if (!impl_->rope_and_write_kv(in, span_of<int64_t>(slots_), rope)) {
    return unsupported("does not fuse RoPE with the write of keys and values");
  }
  return device_->synchronize();
}

std::vector<std::byte> Subject::read_cells() const {
  std::vector<std::byte> cells(static_cast<size_t>(pool_.bytes()));
  device_->read(cells.data(), pool_.view(0).base, cells.size());
  return cells;
}

std::vector<float> Subject::read_activations() const {
  std::vector<std::byte> bytes(activations_.size());
  device_->read(bytes.data(), activations_.data(), bytes.size());
  const auto width = static_cast<size_t>(dtype_bytes(dtype_, 1));
  std::vector<float> values(bytes.size() / width);
  for (size_t i = 0; i < values.size(); ++i) values[i] = decode_one(dtype_, &bytes[i * width]);
  return values;
}

Result<Target> Subject::make_target(int64_t tokens) {
  const Problem& p = *problem_;
  Target target;
  target.tokens = tokens;
  const int64_t rows = tokens + 2 * kGuardRows;
  TENON_ASSIGN_OR_RETURN(target.out, device_->allocate(static_cast<size_t>(
                                         dtype_bytes(dtype_, rows * (p.out_width() + p.row_gap)))));
  if (p.c.lse) {
    TENON_ASSIGN_OR_RETURN(
        target.lse, device_->allocate(static_cast<size_t>(rows * p.c.num_q_heads) * sizeof(float)));
  }
  poison(target);
  return target;
}

void Subject::poison(Target& target) {
  const auto out =
      poisoned(dtype_, static_cast<int64_t>(target.out.size()) / dtype_bytes(dtype_, 1), true);
  device_->write(target.out.data(), out.data(), out.size());
  const auto lse =
      poisoned(DType::kF32, static_cast<int64_t>(target.lse.size() / sizeof(float)), true);
  device_->write(target.lse.data(), lse.data(), lse.size());
}

AttentionInput Subject::input(const Target& target, int32_t first_token) const {
  const Problem& p = *problem_;
  AttentionInput in;
  in.q = columns(0, p.q_width()).slice(first_token, target.tokens);
  in.k = columns(p.q_width(), p.k_width()).slice(first_token, target.tokens);
  in.v = columns(p.q_width() + p.k_width(), p.v_width()).slice(first_token, target.tokens);
  in.out = TensorView::dense(target.out.data(), dtype_,
                             {target.tokens + 2 * kGuardRows, p.out_width() + p.row_gap})
               .slice(kGuardRows, target.tokens)
               .columns(0, p.out_width());
  if (p.c.lse) {
    const int64_t heads = p.c.num_q_heads;
    in.lse = {target.lse.as<float>() + kGuardRows * heads,
              static_cast<size_t>(target.tokens * heads)};
  }
  return in;
}

Status Subject::enqueue(const BatchView& view,
                        int32_t first_token,
                        const GraphBounds* graph,
                        Target& target) {
  TENON_ASSIGN_OR_RETURN(const AttentionMetadata* metadata, backend_->build_metadata(view, graph));
  impl_->forward(input(target, first_token), *metadata);
  return device_->status();
}

Status Subject::plan(const BatchView& view, const GraphBounds& graph) {
  return backend_->build_metadata(view, &graph).status();
}

Result<std::unique_ptr<DeviceGraph>> Subject::capture(const BatchView& view,
                                                      const GraphBounds& graph,
                                                      Target& target) {
  TENON_RETURN_IF_ERROR(enqueue(view, 0, &graph, target));
  TENON_RETURN_IF_ERROR(device_->synchronize());
  TENON_ASSIGN_OR_RETURN(const AttentionMetadata* metadata, backend_->build_metadata(view, &graph));
  TENON_RETURN_IF_ERROR(device_->begin_capture());
  impl_->forward(input(target, 0), *metadata);
  return device_->end_capture();
}

Result<Output> Subject::collect(const Target& target) {
  TENON_RETURN_IF_ERROR(device_->synchronize());
  const Problem& p = *problem_;
  Output output;
  std::vector<std::byte> bytes(target.out.size());
  device_->read(bytes.data(), target.out.data(), bytes.size());
  const auto width = static_cast<size_t>(dtype_bytes(dtype_, 1));
  const uint32_t nan = poison_of(dtype_).nan;
  const int64_t stride = p.out_width() + p.row_gap;
  for (int64_t row = 0; row < target.tokens + 2 * kGuardRows; ++row) {
    const bool guard = row < kGuardRows || row >= target.tokens + kGuardRows;
    for (int64_t i = 0; i < stride; ++i) {
      const std::byte* element = &bytes[static_cast<size_t>(row * stride + i) * width];
      if (!guard && i < p.out_width()) {
        output.out.push_back(decode_one(dtype_, element));
      } else if (std::memcmp(element, &nan, width) != 0) {
        output.damage =
            fmt::format("output of token {}: written outside, column {}", row - kGuardRows, i);
      }
    }
  }
  if (!p.c.lse) return output;
  const int64_t heads = p.c.num_q_heads;
  std::vector<float> lse(target.lse.size() / sizeof(float));
  device_->read(lse.data(), target.lse.data(), target.lse.size());
  for (int64_t row = 0; row < target.tokens + 2 * kGuardRows; ++row) {
    for (int64_t head = 0; head < heads; ++head) {
      const float& value = lse[static_cast<size_t>(row * heads + head)];
      const uint32_t canary = poison_of(DType::kF32).nan;
      if (row >= kGuardRows && row < target.tokens + kGuardRows) {
        output.lse.push_back(value);
      } else if (std::memcmp(&value, &canary, sizeof(canary)) != 0) {
        output.damage = fmt::format("lse of token {}: written outside", row - kGuardRows);
      }
    }
  }
  return output;
}

Result<Output> Subject::forward(const BatchView& view, int32_t first_token) {
  TENON_ASSIGN_OR_RETURN(Target target, make_target(view.num_tokens()));
  TENON_RETURN_IF_ERROR(enqueue(view, first_token, nullptr, target));
  return collect(target);
}

Result<Subject> make_reference(const AttentionRegistry& registry,
                               const Problem& problem,
                               KvLayout layout) {
  static const std::unique_ptr<Device> cpu = make_cpu_device();
  BackendContext context;
  context.requirements = problem.requirements;
  context.requirements.device = DeviceType::kCpu;
  context.requirements.q_dtype = DType::kF32;
  context.cascade = CascadeMode::kOff;
  context.device = cpu.get();
  return Subject::create(registry, "reference", problem, context, layout);
}

}  // namespace tenon::conformance
