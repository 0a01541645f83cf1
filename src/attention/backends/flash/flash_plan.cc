#include "attention/backends/flash/flash_plan.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace tenon::flash {
namespace {

// Query rows (tokens times the group) up to which a batch row is streamed in wide tiles: one tile a
// KV head, however long the context.
constexpr int64_t kWideRows = 64;

// What the kernels reach on one H200 (docs/design/flash_backend.md), for dealing out multiprocessors.
constexpr double kStreamBytesPerMultiprocessor = 75e9;  // a second, alone
constexpr double kStreamBytesPerSecond = 4.3e12;        // all together
constexpr double kPrefillFlopsPerMultiprocessor = 4.0e12;
constexpr double kPrefillStartSeconds = 8e-6;

int64_t align(int64_t offset) {
  return (offset + 63) / 64 * 64;
}

int64_t stretch_bytes(const DecodePlanShape& shape) {
  return max_decode_stretches(shape) * static_cast<int64_t>(sizeof(DecodeStretch));
}

// Stretches, then tiles, of one decode launch, into `buffer` from `at` on.
class DecodePartWriter {
 public:
  DecodePartWriter(const DecodePlanShape& shape, std::byte* buffer, int64_t at)
      : shape_(shape), buffer_(buffer) {
    part_.stretches_at = at;
    part_.tiles_at = align(at + stretch_bytes(shape));
  }
  void add(const BatchView& batch, int32_t row) {
    const int64_t most = decode_tiles(shape_, batch.query_len(row));
    auto* room = reinterpret_cast<DecodeTile*>(buffer_ + part_.tiles_at) + part_.tiles;
    part_.tiles += make_decode_tiles(shape_, batch, row, {room, static_cast<size_t>(most)});
    ++part_.rows;
  }
  [[nodiscard]] const DecodePart& part() const { return part_; }
  [[nodiscard]] int64_t end() const {
    if (part_.tiles == 0) return part_.stretches_at;
    return align(part_.tiles_at + part_.tiles * static_cast<int64_t>(sizeof(DecodeTile)));
  }

 private:
  const DecodePlanShape& shape_;
  std::byte* buffer_;
  DecodePart part_;
};

// Cuts the tiles over `blocks` blocks; the grid has that many.
void deal(const DecodePlanShape& shape,
          std::span<const int32_t> page_indices,
          std::byte* buffer,
          int32_t blocks,
          DecodePart& part) {
  if (part.tiles == 0) return;
  part.blocks = blocks;
  DecodePlanShape dealt = shape;
  dealt.blocks = blocks;
  part.stretches = deal_decode_tiles(
      dealt,
      {reinterpret_cast<const DecodeTile*>(buffer + part.tiles_at), static_cast<size_t>(part.tiles)},
      page_indices,
      {reinterpret_cast<DecodeStretch*>(buffer + part.stretches_at),
       static_cast<size_t>(max_decode_stretches(shape))});
}

// Keys that the tiles stream, over all heads.
double streamed_keys(const DecodePlanShape& shape, const std::byte* buffer, const DecodePart& part) {
  const auto* tiles = reinterpret_cast<const DecodeTile*>(buffer + part.tiles_at);
  int64_t keys = 0;
  for (int32_t i = 0; i < part.tiles; ++i) keys += tiles[i].keys;
  return static_cast<double>(keys) * shape.num_kv_heads;
}

}  // namespace

FlashPlan::Way FlashPlan::way_of(const PlanShape& shape, int32_t query_len) {
  const int64_t packed = int64_t{query_len} * shape.narrow.group;
  if (shape.split == AttentionSplit::kUnified) {
    return shape.has_prefill ? Way::kPrefill : Way::kWide;
  }
  if (packed <= shape.narrow.tile_rows) return Way::kNarrow;
  if (packed <= kWideRows || query_len <= 1 || !shape.has_prefill) return Way::kWide;
  return Way::kPrefill;
}

int64_t FlashPlan::max_bytes(const PlanShape& shape, const AttentionLimits& limits) {
  const int64_t rows = limits.max_num_seqs;
  const int64_t tokens = limits.max_num_batched_tokens;
  const auto decode_bytes = [&](const DecodePlanShape& decode, int64_t tiles) {
    return align(stretch_bytes(decode)) +
           align(tiles * static_cast<int64_t>(sizeof(DecodeTile)));
  };
  int64_t bytes = decode_bytes(shape.narrow, rows) +
                  decode_bytes(shape.wide, max_decode_tiles(shape.wide, rows, tokens));
  if (shape.has_prefill) {
    bytes += align(max_prefill_tiles(shape.prefill, tokens, rows) *
                   static_cast<int64_t>(sizeof(PrefillTile)));
  }
  const int64_t pages = rows * num_pages(limits.max_seq_len, shape.prefill.page_size);
  return bytes + pages * static_cast<int64_t>(sizeof(int32_t));
}

void FlashPlan::build(const PlanShape& shape,
                      const BatchView& batch,
                      std::byte* buffer,
                      std::vector<PrefillRow>& rows) {
  rows.clear();
  side_by_side = false;
  DecodePartWriter narrow_writer(shape.narrow, buffer, 0);
  for (int32_t row = 0; row < batch.num_rows(); ++row) {
    if (way_of(shape, batch.query_len(row)) == Way::kNarrow) narrow_writer.add(batch, row);
  }
  DecodePartWriter wide_writer(shape.wide, buffer, narrow_writer.end());
  for (int32_t row = 0; row < batch.num_rows(); ++row) {
    const auto b = static_cast<size_t>(row);
    switch (way_of(shape, batch.query_len(row))) {
      case Way::kNarrow:
        break;
      case Way::kWide:
        wide_writer.add(batch, row);
        break;
      case Way::kPrefill: {
        PrefillRow entry;
        entry.q_begin = batch.query_start_loc[b];
        entry.q_len = batch.query_len(row);
        entry.kv_len = batch.seq_lens[b];
        entry.ragged = entry.kv_len == entry.q_len;
        entry.kv_begin = entry.ragged ? entry.q_begin : batch.page_indptr[b];
        if (entry.q_len > 0) rows.push_back(entry);
        break;
      }
    }
  }
  narrow = narrow_writer.part();
  wide = wide_writer.part();
  prefill = {};
  prefill.tiles_at = wide_writer.end();
  pages_at = prefill.tiles_at;
  if (!rows.empty()) {
    const int64_t room =
        max_prefill_tiles(shape.prefill, batch.num_tokens(), static_cast<int64_t>(rows.size()));
    prefill.rows = static_cast<int32_t>(rows.size());
    // max_bytes() counts these for the limits; a step's tokens and rows are at most as many.
    prefill.plan = plan_prefill(shape.prefill, shape.narrow.causal, rows,
                                {reinterpret_cast<PrefillTile*>(buffer + prefill.tiles_at),
                                 static_cast<size_t>(room)});
    pages_at = align(prefill.tiles_at +
                     prefill.plan.num_tiles * static_cast<int64_t>(sizeof(PrefillTile)));
  }
  const auto pages = batch.page_indices.first(
      batch.page_indptr.empty() ? 0 : static_cast<size_t>(batch.page_indptr.back()));
  std::memcpy(buffer + pages_at, pages.data(), pages.size_bytes());
  bytes = pages_at + static_cast<int64_t>(pages.size_bytes());

  int32_t narrow_blocks = shape.narrow.blocks;
  int32_t wide_blocks = shape.wide.blocks;
  const bool both = narrow.tiles + wide.tiles > 0 && prefill.plan.num_tiles > 0;
  if (both && shape.split == AttentionSplit::kAuto) {
    const double keys = streamed_keys(shape.narrow, buffer, narrow) +
                        streamed_keys(shape.wide, buffer, wide);
    const int32_t blocks = share_multiprocessors(shape, rows, keys);
    if (blocks > 0) {
      side_by_side = true;
      narrow_blocks = wide_blocks = blocks;
      prefill.max_blocks = shape.multiprocessors - blocks;
    }
  }
  deal(shape.narrow, batch.page_indices, buffer, narrow_blocks, narrow);
  deal(shape.wide, batch.page_indices, buffer, wide_blocks, wide);
}

int32_t FlashPlan::share_multiprocessors(const PlanShape& shape,
                                         std::span<const PrefillRow> rows,
                                         double keys) {
  double pairs = 0;  // of query and key
  for (const PrefillRow& row : rows) {
    const double hidden = shape.narrow.causal ? 0.5 * (row.q_len - 1) : 0.0;
    pairs += row.kv_len == 0 ? 0.0 : row.q_len * (row.kv_len - hidden);
  }
  const double flops = 4.0 * pairs * shape.head_dim * shape.prefill.num_q_heads;
  const double bytes = keys * 4.0 * shape.head_dim;  // K and V, two bytes each
  const auto stream_seconds = [&](int32_t blocks) {
    return bytes / std::min(kStreamBytesPerSecond, blocks * kStreamBytesPerMultiprocessor);
  };
  const auto prefill_seconds = [&](int32_t blocks) {
    return flops / (blocks * kPrefillFlopsPerMultiprocessor) + kPrefillStartSeconds;
  };
  const int32_t all = shape.multiprocessors;
  double best = stream_seconds(all) + prefill_seconds(all);
  int32_t best_blocks = 0;
  for (int32_t blocks = 4; blocks < all; blocks += 4) {
    const double seconds = std::max(stream_seconds(blocks), prefill_seconds(all - blocks));
    if (seconds < best) {
      best = seconds;
      best_blocks = blocks;
    }
  }
  return best_blocks;
}

std::string FlashPlan::describe() const {
  std::string text;
  const auto add = [&](std::string part) {
    if (!text.empty()) text += "; ";
    text += part;
  };
  for (const DecodePart* part : {&narrow, &wide}) {
    if (part->tiles == 0) continue;
    add(fmt::format("{} rows decode kernel, {} {} tiles, {} blocks", part->rows, part->tiles,
                    part == &narrow ? "narrow" : "wide", part->blocks));
  }
  if (prefill.plan.num_tiles > 0) {
    add(fmt::format("{} rows prefill kernel, {} entries{}", prefill.rows, prefill.plan.num_tiles,
                    side_by_side ? fmt::format(", beside it on {} blocks", prefill.max_blocks)
                                 : std::string()));
  }
  return text.empty() ? "no rows" : text;
}

}  // namespace tenon::flash
