#include "attention/backends/flash/flash_plan.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace tenon::flash {
namespace {

// Query rows (tokens times the group) up to which a batch row may be streamed in wide tiles: one
// tile a KV head, however long the context.
constexpr int64_t kWideRows = 64;

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// What the kernels reach on one H200 (docs/design/flash_backend.md), for the choice of ways and for
// dealing out multiprocessors.
constexpr double kStreamBytesPerMultiprocessor = 60e9;  // a second
constexpr double kStreamBytesBeside = 3.8e12;           // on any part of the multiprocessors
constexpr double kStreamBytesAlone = 4.1e12;            // on all of them
constexpr double kPrefillFlopsPerMultiprocessor = 4.1e12;
constexpr double kPrefillFlopsOfBytes = 2.3e12;  // the same over 8-bit cells
constexpr double kStartSeconds = 8e-6;
// The longer of two kernels side by side takes this part of the shorter one's time longer.
constexpr double kDisturbance = 0.17;
// Decode rows that take less than this part of the prefill rows' time vanish among their tiles.
constexpr double kSmallPart = 0.25;

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
  void add(const BatchView& batch, int32_t row, const DecodeRowStart& start = {}) {
    const int64_t most = decode_tiles(shape_, batch.query_len(row));
    auto* room = reinterpret_cast<DecodeTile*>(buffer_ + part_.tiles_at) + part_.tiles;
    part_.tiles += make_decode_tiles(shape_, batch, row, {room, static_cast<size_t>(most)}, start);
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
  part.stretches = deal_decode_tiles(dealt,
                                     {reinterpret_cast<const DecodeTile*>(buffer + part.tiles_at),
                                      static_cast<size_t>(part.tiles)},
                                     page_indices,
                                     {reinterpret_cast<DecodeStretch*>(buffer + part.stretches_at),
                                      static_cast<size_t>(max_decode_stretches(shape))});
}

}  // namespace

Ways FlashPlan::choose(const PlanShape& shape, const BatchView& batch, const Passes& passes) {
  Ways ways;
  if (!shape.has_prefill) {
    ways.prefill_from = kNever;
    return ways;
  }
  if (shape.split == AttentionSplit::kUnified) {
    ways.prefill_from = 0;
    return ways;
  }
  const int64_t group = shape.narrow.group;
  int64_t extends = 0;  // rows that wide tiles could take
  for (int32_t row = 0; row < batch.num_rows(); ++row) {
    const int32_t query_len = batch.query_len(row);
    const int64_t packed = query_len * group;
    if (query_len > 1 && packed > shape.narrow.tile_rows && packed <= kWideRows) ++extends;
  }
  // The prefill kernel is quicker on them, but does not split keys: it needs enough rows.
  const bool many = 2 * extends * shape.narrow.num_kv_heads > shape.multiprocessors;
  ways.prefill_from = many ? shape.narrow.tile_rows + 1 : kWideRows + 1;
  if (shape.split == AttentionSplit::kSplit) return ways;

  double pairs = 0;  // of query and key, in rows for the prefill kernel
  double keys = 0;   // that are streamed
  for (int32_t row = 0; row < batch.num_rows(); ++row) {
    const double query_len = batch.query_len(row);
    double seq_len = batch.seq_lens[static_cast<size_t>(row)];
    if (!passes.rows.empty()) {
      seq_len -= passes.rows[static_cast<size_t>(row)].pages * shape.narrow.page_size;
    }
    if (!ways.is_prefill(batch.query_len(row), group)) {
      keys += seq_len;
    } else if (seq_len > 0) {
      pairs += query_len * (seq_len - (shape.narrow.causal ? 0.5 * (query_len - 1) : 0.0));
    }
  }
  if (pairs == 0 || keys == 0) return ways;
  const double flops = 4.0 * pairs * shape.head_dim * shape.prefill.num_q_heads;
  const double bytes = 2.0 * shape.cell_bytes * keys * shape.head_dim * shape.prefill.num_kv_heads;
  const int32_t all = shape.multiprocessors;
  const double rate = shape.cell_bytes == 1 ? kPrefillFlopsOfBytes : kPrefillFlopsPerMultiprocessor;
  const double prefill_alone = kStartSeconds + flops / (all * rate);
  const double stream_alone = kStartSeconds + bytes / kStreamBytesAlone;
  if (stream_alone < kSmallPart * prefill_alone && !passes.part.active()) {
    ways.prefill_from = 0;
    return ways;
  }
  double best = prefill_alone + stream_alone;
  for (int32_t blocks = 4; blocks < all; blocks += 4) {
    const double prefill = kStartSeconds + flops / ((all - blocks) * rate);
    const double stream = kStartSeconds + bytes / std::min(kStreamBytesBeside,
                                                           blocks * kStreamBytesPerMultiprocessor);
    const double seconds = std::max(prefill, stream) + kDisturbance * std::min(prefill, stream);
    if (seconds < best) {
      best = seconds;
      ways.decode_blocks = blocks;
    }
  }
  return ways;
}

int64_t FlashPlan::max_bytes(const PlanShape& shape, const AttentionLimits& limits) {
  const int64_t rows = limits.max_num_seqs;
  const int64_t tokens = limits.max_num_batched_tokens;
  const auto decode_bytes = [&](const DecodePlanShape& decode, int64_t tiles) {
    return align(stretch_bytes(decode)) + align(tiles * static_cast<int64_t>(sizeof(DecodeTile)));
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
                      const Passes& passes,
                      std::byte* buffer,
                      std::vector<PrefillRow>& rows) {
  rows.clear();
  cascade_part = passes.part;
  const Ways ways = choose(shape, batch, passes);
  const auto is_narrow = [&](int32_t query_len) {
    return int64_t{query_len} * shape.narrow.group <= shape.narrow.tile_rows;
  };
  const auto start_of = [&](int32_t row) {
    return passes.rows.empty() ? DecodeRowStart{} : passes.rows[static_cast<size_t>(row)];
  };
  DecodePartWriter narrow_writer(shape.narrow, buffer, 0);
  for (int32_t row = 0; row < batch.num_rows(); ++row) {
    const int32_t query_len = batch.query_len(row);
    if (!ways.is_prefill(query_len, shape.narrow.group) && is_narrow(query_len)) {
      narrow_writer.add(batch, row, start_of(row));
    }
  }
  DecodePartWriter wide_writer(shape.wide, buffer, narrow_writer.end());
  for (int32_t row = 0; row < batch.num_rows(); ++row) {
    const auto b = static_cast<size_t>(row);
    const int32_t query_len = batch.query_len(row);
    if (ways.is_prefill(query_len, shape.narrow.group)) {
      PrefillRow entry;
      entry.q_begin = batch.query_start_loc[b];
      entry.q_len = query_len;
      entry.kv_len = batch.seq_lens[b];
      entry.ragged = !shape.pages_only && entry.kv_len == entry.q_len;
      entry.kv_begin = entry.ragged ? entry.q_begin : batch.page_indptr[b];
      if (query_len > 0) rows.push_back(entry);
    } else if (!is_narrow(query_len)) {
      wide_writer.add(batch, row, start_of(row));
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
    prefill.plan = plan_prefill(
        shape.prefill, shape.narrow.causal, rows,
        {reinterpret_cast<PrefillTile*>(buffer + prefill.tiles_at), static_cast<size_t>(room)});
    pages_at = align(prefill.tiles_at +
                     prefill.plan.num_tiles * static_cast<int64_t>(sizeof(PrefillTile)));
  }
  const auto pages = batch.page_indices.first(
      batch.page_indptr.empty() ? 0 : static_cast<size_t>(batch.page_indptr.back()));
  std::memcpy(buffer + pages_at, pages.data(), pages.size_bytes());
  bytes = pages_at + static_cast<int64_t>(pages.size_bytes());

  side_by_side = ways.decode_blocks > 0;
  prefill.max_blocks = side_by_side ? shape.multiprocessors - ways.decode_blocks : 0;
  prefix_blocks = shape.multiprocessors;
  if (side_by_side) prefix_blocks = rows.empty() ? prefill.max_blocks : ways.decode_blocks;
  prefix_blocks = std::min(prefix_blocks, cascade_part.tiles);
  deal(shape.narrow, batch.page_indices, buffer,
       side_by_side ? ways.decode_blocks : shape.narrow.blocks, narrow);
  deal(shape.wide, batch.page_indices, buffer,
       side_by_side ? ways.decode_blocks : shape.wide.blocks, wide);
}

std::string FlashPlan::describe() const {
  std::string text;
  const auto add = [&](std::string part) {
    if (!text.empty()) text += "; ";
    text += part;
  };
  if (cascade_part.active()) {
    add(fmt::format("{} prefix levels of {} rows, {} tiles, {} blocks", cascade_part.use.groups,
                    cascade_part.use.rows, cascade_part.tiles, prefix_blocks));
  }
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
