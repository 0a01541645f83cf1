#include "kernels/cpu/packed_linear.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/check.h"
#include "kernels/cpu/repack.h"

namespace tenon::cpu {
namespace {

// Up to this many tokens the weights are read once, in equal shares of bytes: memory is the limit.
constexpr int64_t kMaxStreamedTokens = kTokenAlignment;
// Packed activations of a block of tokens; they are read again for every panel and share the second
// cache level with it.
constexpr int64_t kActivationBlockBytes = 256 * 1024;
// Shares a thread should find when work is taken dynamically.
constexpr int64_t kSharesPerThread = 4;
// A multiplication of less work than this (weights times tokens) is not worth a fork.
constexpr int64_t kMinParallelWork = 16384;
// Nor is the packing of fewer activations than this.
constexpr int64_t kMinParallelPack = 16384;

}  // namespace

// One stored part: panels of one format.
struct Segment {
  PackedFormat format = PackedFormat::kF32;
  int64_t first_row = 0, rows = 0;
  int64_t panel_rows = 0, panels = 0, panel_bytes = 0;
  int64_t offset = 0;  // of panel 0 in the weight's memory

  // First panel that starts at or after `byte` of the weight's memory.
  [[nodiscard]] int64_t panel_at(int64_t byte) const {
    return std::clamp<int64_t>((byte - offset + panel_bytes - 1) / panel_bytes, 0, panels);
  }
};

class PackedWeight final : public LinearWeight {
 public:
  PackedWeight(std::span<const WeightSource> parts, bool exact, const KernelTable& kernels) {
    cols_ = parts[0].cols;
    for (const WeightSource& part : parts) {
      Segment segment;
      segment.format = packed_format(part.dtype, exact);
      const PackedTraits& traits = packed_traits(segment.format);
      (traits.quantised ? any_quantised : any_float) = true;
      segment.first_row = rows_;
      segment.rows = part.rows;
      segment.panel_rows = traits.quantised ? kernels.quant_panel_rows : kernels.float_panel_rows;
      segment.panels = (part.rows + segment.panel_rows - 1) / segment.panel_rows;
      segment.panel_bytes = panel_bytes(traits, segment.panel_rows, cols_);
      segment.offset = bytes_;
      rows_ += part.rows;
      bytes_ += segment.panels * segment.panel_bytes;
      panels += segment.panels;
      const std::string name = std::string(traits.name) + "x" + std::to_string(segment.panel_rows);
      if (format_.find(name) == std::string::npos) format_ += (format_.empty() ? "" : "+") + name;
      segments.push_back(segment);
    }
  }

  std::vector<Segment> segments;
  int64_t panels = 0;  // of all segments
  bool any_quantised = false, any_float = false;
  std::shared_ptr<std::byte> memory;
};

struct PackedLinear::Call {
  const PackedWeight* weight;
  FloatRows x;
  float* y;
  int64_t y_stride;
  ActivationGroup* quantised;  // null when no segment reads it
  const float* floats;         // x itself for a single token
  float* packed_floats;        // null when nothing is to be packed
};

Result<std::unique_ptr<LinearWeight>> PackedLinear::make_weight(std::span<const WeightSource> parts,
                                                                bool exact) {
  auto weight = std::make_unique<PackedWeight>(parts, exact, *kernels_);
  weight->memory = arena_.allocate(static_cast<size_t>(weight->bytes()));
  if (weight->memory == nullptr) {
    return resource_exhausted("{}: no memory for {} bytes of repacked weights", parts[0].name,
                              weight->bytes());
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    const Segment& segment = weight->segments[i];
    std::byte* base = weight->memory.get() + segment.offset;
    const int64_t grain = std::max<int64_t>(1, (int64_t{64} << 10) / segment.panel_bytes);
    pool_->parallel_for(segment.panels, grain, [&](int64_t begin, int64_t end, int) {
      for (int64_t p = begin; p < end; ++p) {
        pack_panel(parts[i], segment.format, p * segment.panel_rows, segment.panel_rows,
                   base + p * segment.panel_bytes);
      }
    });
    if (parts[i].file != nullptr) {
      const auto bytes =
          static_cast<size_t>(dtype_bytes(parts[i].dtype, parts[i].cols) * parts[i].rows);
      parts[i].file->drop_pages({static_cast<const std::byte*>(parts[i].data), bytes});
    }
  }
  return std::unique_ptr<LinearWeight>(std::move(weight));
}

void PackedLinear::pack(const Call& call) {
  const auto pack_columns = [&](int64_t begin, int64_t end) {
    const ColumnRange columns{begin, end};
    if (call.quantised != nullptr) kernels_->pack_quantised(call.x, columns, call.quantised);
    if (call.packed_floats != nullptr) kernels_->pack_float(call.x, columns, call.packed_floats);
  };
  const int64_t cols = call.x.cols;
  if (cols * call.x.rows < kMinParallelPack) {
    pack_columns(0, cols);
    return;
  }
  // By columns: rows cannot be divided without regard to the tiles of the kernels.
  const int64_t groups = (cols + kGroupColumns - 1) / kGroupColumns;
  const int threads = pool_->num_threads();
  pool_->run([&](int thread) {
    const int64_t begin = groups * thread / threads * kGroupColumns;
    const int64_t end = groups * (thread + 1) / threads * kGroupColumns;
    pack_columns(begin, std::min(end, cols));
  });
}

// Part `share` of `shares` equal parts (by bytes) of all panels, for some tokens.
void PackedLinear::run_share(
    const Call& call, int64_t share, int64_t shares, int64_t token_begin, int64_t token_end) {
  const int64_t total = call.weight->bytes();
  const int64_t begin = total / shares * share;
  const int64_t end = share + 1 == shares ? total : total / shares * (share + 1);
  for (const Segment& segment : call.weight->segments) {
    LinearTask task;
    task.panel_begin = segment.panel_at(begin);
    task.panel_end = segment.panel_at(end);
    if (task.panel_begin >= task.panel_end) continue;
    task.panels = call.weight->memory.get() + segment.offset;
    task.panel_bytes = segment.panel_bytes;
    task.rows = segment.rows;
    task.cols = call.x.cols;
    task.tokens = token_end - token_begin;
    if (packed_traits(segment.format).quantised) {
      task.activations = call.quantised + token_begin * (call.x.cols / kGroupColumns);
    } else {
      task.activations = call.floats + token_begin * call.x.cols;
    }
    task.y = call.y + token_begin * call.y_stride + segment.first_row;
    task.y_stride = call.y_stride;
    kernels_->linear[static_cast<size_t>(segment.format)](task);
  }
}

void PackedLinear::multiply(const LinearWeight& weight,
                            const FloatRows& x,
                            float* y,
                            int64_t y_stride) {
  if (x.rows == 0) return;
  const auto& packed = static_cast<const PackedWeight&>(weight);
  const int64_t quantised_bytes =
      !packed.any_quantised
          ? 0
          : x.rows * (x.cols / kGroupColumns) * static_cast<int64_t>(sizeof(ActivationGroup));
  const bool pack_floats = packed.any_float && x.rows > 1;
  const int64_t float_bytes =
      pack_floats ? x.rows * x.cols * static_cast<int64_t>(sizeof(float)) : 0;
  const auto scratch_bytes = static_cast<size_t>(quantised_bytes + float_bytes);
  if (scratch_.size() < scratch_bytes) scratch_ = Buffer(scratch_bytes);

  Call call{&packed, x, y, y_stride, nullptr, x.data, nullptr};
  if (packed.any_quantised) call.quantised = scratch_.as<ActivationGroup>();
  if (pack_floats) {
    call.packed_floats = reinterpret_cast<float*>(scratch_.data() + quantised_bytes);
    call.floats = call.packed_floats;
  }

  pack(call);
  const int threads = pool_->num_threads();
  if (threads == 1 || weight.bytes() * x.rows < kMinParallelWork) {
    run_share(call, 0, 1, 0, x.rows);
    return;
  }
  if (x.rows <= kMaxStreamedTokens) {
    pool_->run([&](int thread) { run_share(call, thread, threads, 0, x.rows); });
    return;
  }

  const int64_t token_bytes = (quantised_bytes + float_bytes) / x.rows;
  const int64_t shares = std::min<int64_t>(packed.panels, threads * kSharesPerThread);
  // Fewer tokens a block when there are too few panels to give every thread its shares.
  const int64_t wanted_blocks = (threads * kSharesPerThread + shares - 1) / shares;
  const int64_t largest = std::min(kActivationBlockBytes / token_bytes, x.rows / wanted_blocks);
  const int64_t block = std::max<int64_t>(1, largest / kTokenAlignment) * kTokenAlignment;
  const int64_t blocks = (x.rows + block - 1) / block;
  pool_->parallel_for(blocks * shares, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t first = item / shares * block;
      run_share(call, item % shares, shares, first, std::min(first + block, x.rows));
    }
  });
}

}  // namespace tenon::cpu
