// The host part of the prefill kernel: which tiles, in which order.

#include <algorithm>

#include "attention/backends/flash/prefill.h"
#include "attention/backends/flash/prefill_config.h"
#include "base/check.h"

namespace tenon::flash {
namespace {

// K and V of the rows that run at the same time should stay in the L2 cache (50 MB on an H200, of
// which the queries and outputs that pass through need a part).
constexpr int64_t kCacheBytes = int64_t{32} << 20;

int32_t ceil_div(int32_t a, int32_t b) {
  return (a + b - 1) / b;
}

// Keys that the last token of the tile sees: what the tile costs.
int32_t tile_keys(const PrefillTile& tile, bool causal) {
  return std::min(tile.kv_len, tile.visible + (causal ? tile.q_len - 1 : 0));
}

// Of one KV head of the row.
int64_t row_bytes(const PrefillShape& shape, const PrefillRow& row) {
  return int64_t{row.kv_len} * shape.head_dim * 4;
}

// The most heads at a time whose keys fit the cache.
int32_t choose_heads_per_tile(const PrefillShape& shape, int64_t longest_row_bytes) {
  const int32_t pack = prefill_pack(shape);
  const int32_t heads = shape.num_q_heads / pack;
  const int32_t group = shape.num_q_heads / shape.num_kv_heads;
  int32_t best = 1;
  for (int32_t n = 2; n <= heads; ++n) {
    if (heads % n == 0 && ceil_div(n * pack, group) * longest_row_bytes <= kCacheBytes) best = n;
  }
  return best;
}

}  // namespace

bool prefill_supports(const PrefillShape& shape) {
  return shape.head_dim > 0 && shape.head_dim <= 256 && shape.head_dim % 8 == 0 &&
         shape.num_kv_heads > 0 && shape.num_q_heads > 0 &&
         shape.num_q_heads % shape.num_kv_heads == 0 && shape.page_size > 0;
}

int64_t max_prefill_tiles(const PrefillShape& shape, int64_t max_tokens, int64_t max_rows) {
  const int32_t heads = shape.num_q_heads / prefill_pack(shape);
  return (max_tokens / prefill_tile_tokens(shape) + max_rows) * heads;
}

PrefillPlan plan_prefill(const PrefillShape& shape,
                         bool causal,
                         std::span<PrefillRow> rows,
                         std::span<PrefillTile> tiles) {
  TENON_CHECK(prefill_supports(shape));
  return plan_prefill_tiles(shape, prefill_tile_tokens(shape), causal, rows, tiles);
}

PrefillPlan plan_prefill_tiles(const PrefillShape& shape,
                               int32_t tile_tokens,
                               bool causal,
                               std::span<PrefillRow> rows,
                               std::span<PrefillTile> tiles) {
  const int32_t heads = shape.num_q_heads / prefill_pack(shape);
  std::sort(rows.begin(), rows.end(), [](const PrefillRow& a, const PrefillRow& b) {
    return a.kv_len != b.kv_len ? a.kv_len > b.kv_len : a.q_begin < b.q_begin;
  });
  PrefillPlan plan;
  if (rows.empty()) return plan;
  plan.heads_per_tile = choose_heads_per_tile(shape, row_bytes(shape, rows.front()));

  size_t end = 0;
  for (size_t row_begin = 0; row_begin < rows.size();) {
    // A section: rows that share the cache.
    int64_t bytes = 0;
    size_t row_end = row_begin;
    const size_t section_begin = end;
    do {
      const PrefillRow& row = rows[row_end];
      plan.any_ragged |= row.ragged;
      for (int32_t first = 0; first < row.q_len; first += tile_tokens) {
        TENON_CHECK_LT(end, tiles.size());
        tiles[end++] =
            PrefillTile{.q_begin = row.q_begin + first,
                        .q_len = std::min(tile_tokens, row.q_len - first),
                        .kv_len = row.kv_len,
                        .visible = causal ? row.kv_len - row.q_len + first + 1 : row.kv_len,
                        .kv_begin = row.kv_begin,
                        .head_begin = 0,
                        .ragged = row.ragged ? 1 : 0,
                        .reserved = 0};
      }
      bytes += row_bytes(shape, row) * plan.heads_per_tile;
      ++row_end;
    } while (row_end < rows.size() &&
             bytes + row_bytes(shape, rows[row_end]) * plan.heads_per_tile <= kCacheBytes);
    row_begin = row_end;

    const auto section = tiles.subspan(section_begin, end - section_begin);
    std::sort(section.begin(), section.end(), [=](const PrefillTile& a, const PrefillTile& b) {
      const int32_t a_keys = tile_keys(a, causal);
      const int32_t b_keys = tile_keys(b, causal);
      return a_keys != b_keys ? a_keys > b_keys : a.q_begin < b.q_begin;
    });
    for (int32_t head = plan.heads_per_tile; head < heads; head += plan.heads_per_tile) {
      TENON_CHECK_LE(end + section.size(), tiles.size());
      for (const PrefillTile& tile : section) {
        tiles[end] = tile;
        tiles[end++].head_begin = head;
      }
    }
  }
  plan.num_tiles = static_cast<int32_t>(end);
  return plan;
}

}  // namespace tenon::flash
