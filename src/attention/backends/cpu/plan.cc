#include "attention/backends/cpu/plan.h"

#include <algorithm>
#include <numeric>

#include "attention/backends/cpu/kernels.h"
#include "base/check.h"

namespace tenon::cpu_attention {
namespace {

// A pair is split when it alone is more than 1 / (kSplitFactor * threads) of the step.
constexpr int64_t kSplitFactor = 4;
constexpr int32_t kDirectRows = 16;
constexpr int32_t kPackedRows =
    128;  // the accumulators (64 features: 32 KiB) stay in the second-level cache
// Rows of a direct item, all its KV heads together: queries and accumulators of 64 features take
// 32 KiB.
constexpr int32_t kDirectItemRows = 64;
// Query tokens of prefix levels a decode token: how deep a whole batch may be nested on average.
constexpr int64_t kMembersPerToken = 4;
// Below this many tile rows a packed tile is not worth transposing K for.
constexpr int32_t kLeastPackedRows = 24;

// Costs in visits of a key by a tile row, of 64 features, for one KV head; measured
// (bench/results). Direct rows pay kLoadCost for every 256 bytes of a cell that is fetched, packed
// ones kPackCost for converting and transposing it. A level of a prefix costs a state to store and
// to take up again for each of its tile rows, and a phase.
constexpr int64_t kLoadCost = 6;
constexpr int64_t kPackCost = 12;
constexpr int64_t kStateCost = 100;
constexpr int64_t kPhaseCost = 4000;

size_t at(int32_t i) {
  return static_cast<size_t>(i);
}

int32_t num_segments(int32_t keys) {
  return (keys + kSegmentKeys - 1) / kSegmentKeys;
}

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int64_t load_cost(const PlanShape& shape) {
  return std::max<int64_t>(1, kLoadCost * shape.cell_bytes / 256);
}

// Of `queries` that see `keys` keys each, for one KV head.
int64_t cost(const PlanShape& shape, int32_t queries, int64_t keys) {
  const int64_t rows = int64_t{queries} * shape.group;
  if (shape.is_direct(queries)) return keys * (rows + load_cost(shape));
  return keys * (rows + kPackCost * ceil_div(rows, kPackedRows));
}

}  // namespace

int32_t PlanShape::direct_rows() const {
  return std::max(kDirectRows, group);
}

bool PlanShape::is_direct(int32_t queries) const {
  return int64_t{queries} * group <= direct_rows();
}

int32_t PlanShape::heads_together(int32_t queries) const {
  return std::clamp(kDirectItemRows / std::max(1, queries * group), 1, num_kv_heads);
}

int32_t PlanShape::tile_queries() const {
  return std::max(1, kPackedRows / group);
}

int32_t PlanShape::max_direct_item_rows() const {
  return std::max(kDirectItemRows, direct_rows());
}

int32_t PlanShape::max_item_rows() const {
  return std::max(max_direct_item_rows(), tile_queries() * group);
}

int32_t PlanShape::max_item_queries() const {
  return std::max(kDirectRows, tile_queries());
}

PlanCapacity plan_capacity(const PlanShape& shape, const AttentionLimits& limits) {
  PlanCapacity capacity;
  if (shape.threads > 1) {
    // Rows above the threshold add up to less than the whole, so there are fewer than this many.
    const int64_t rows = std::min<int64_t>(limits.max_num_seqs, kSplitFactor * shape.threads);
    const int32_t least_together =
        std::clamp(kDirectItemRows / shape.direct_rows(), 1, shape.num_kv_heads);
    capacity.pairs = rows * ceil_div(shape.num_kv_heads, least_together);
    capacity.partials = capacity.pairs * (num_segments(limits.max_seq_len) + 1);
  }
  if (shape.cascade != CascadeMode::kOff) {
    capacity.states = limits.max_num_seqs;
    capacity.members = kMembersPerToken * capacity.states;
  }
  const int64_t full_tiles = limits.max_num_batched_tokens / shape.tile_queries();
  capacity.items = (full_tiles + limits.max_num_seqs + capacity.members) * shape.num_kv_heads +
                   capacity.pairs * kSplitFactor * shape.threads;
  return capacity;
}

void Plan::add(const WorkItem& item) {
  TENON_CHECK_LT(num_items_, memory_.items.size());
  memory_.items[num_items_++] = item;
}

void Plan::end_phase() {
  phase_ends_[at(num_phases_++)] = num_items_;
}

bool Plan::is_direct(const PlanShape& shape, int32_t row) const {
  switch (shape.split) {
    case AttentionSplit::kUnified: return false;  // the kernel for many queries serves all rows
    case AttentionSplit::kSplit:
      if (row >= batch_.num_decode_rows) return false;
      break;
    case AttentionSplit::kAuto: break;
  }
  return shape.is_direct(batch_.query_len(row));
}

void Plan::add_levels(const PlanShape& shape) {
  PrefixTree& tree = memory_.tree;
  tree.clear();
  if (shape.cascade == CascadeMode::kOff || batch_.prefix_groups.empty() ||
      batch_.num_decode_tokens > memory_.max_states) {
    return;
  }
  // A level ends on a page and on a tile, so that its rows go on with whole tiles.
  const int32_t granularity = std::lcm(shape.block_size, kTileKeys) / shape.block_size;
  int64_t members = 0;
  const auto pays = [&](const PrefixLevel& level) {
    const auto capacity = static_cast<int64_t>(memory_.members.size());
    if (level.depth >= kMaxDepth || members + level.queries > capacity) return false;
    const int64_t alone = level.rows * cost(shape, level.queries / level.rows, level.keys);
    const int64_t together = cost(shape, level.queries, level.keys) +
                             int64_t{level.queries} * shape.group * kStateCost +
                             kPhaseCost / shape.num_kv_heads;
    if (shape.cascade == CascadeMode::kAuto && together >= alone) return false;
    members += level.queries;
    return true;
  };
  choose_prefix_groups(batch_, shape.block_size, granularity, pays, tree);
  use_ = cascade_use(tree, shape.block_size);
  if (tree.groups.empty()) return;
  prefix_pages(tree, memory_.prefix_pages.first(at(batch_.num_rows())));
  for (int depth = 0; depth < kMaxDepth; ++depth) {
    const size_t before = num_items_;
    for (size_t i = 0; i < tree.groups.size(); ++i) {
      if (tree.depth(i) == depth) add_level(shape, i);
    }
    if (num_items_ == before) return;
    end_phase();
  }
}

void Plan::add_level(const PlanShape& shape, size_t level) {
  const PrefixGroup& group = memory_.tree.groups[level];
  const auto first_member = static_cast<int32_t>(num_members_);
  for (int32_t i = group.first; i < group.first + group.count; ++i) {
    const int32_t row = memory_.tree.rows[at(i)];
    const int32_t queries = batch_.query_len(row);
    for (int32_t q = 0; q < queries; ++q) {
      memory_.members[num_members_++] = {batch_.query_start_loc[at(row)] + q,
                                         batch_.seq_lens[at(row)] - queries + q};
    }
  }
  const auto members = memory_.members.subspan(at(first_member), num_members_ - at(first_member));
  std::sort(members.begin(), members.end(), [](const Member& a, const Member& b) {
    return a.position != b.position ? a.position < b.position : a.token < b.token;
  });
  const auto queries = static_cast<int32_t>(members.size());
  // As few tiles as the kernel allows, but enough to give every thread some.
  int64_t tiles = ceil_div(queries, shape.tile_queries());
  const int64_t wanted = ceil_div(2 * shape.threads, shape.num_kv_heads);
  const int64_t most = std::max<int64_t>(1, int64_t{queries} * shape.group / kLeastPackedRows);
  tiles = std::max(tiles, std::min(wanted, most));
  const auto step = static_cast<int32_t>(ceil_div(queries, tiles));
  const bool direct = shape.is_direct(step);
  const int32_t together = direct ? shape.heads_together(step) : 1;
  WorkItem item;
  item.row = memory_.tree.rows[at(group.first)];
  item.level = static_cast<int32_t>(level);
  item.key_begin = group.begin_page * shape.block_size;
  item.key_end = group.end_page * shape.block_size;
  item.packed = !direct;
  for (int32_t head = 0; head < shape.num_kv_heads; head += together) {
    for (int32_t begin = 0; begin < queries; begin += step) {
      item.kv_head = head;
      item.num_heads = std::min(together, shape.num_kv_heads - head);
      item.query_begin = first_member + begin;
      item.query_count = std::min(step, queries - begin);
      add(item);
    }
  }
}

void Plan::add_split_row(const PlanShape& shape, int32_t row) {
  WorkItem item;
  item.row = row;
  item.query_count = batch_.query_len(row);
  const int32_t begin = prefix_end(row);
  const int32_t end = batch_.seq_lens[at(row)];
  const int32_t first = begin / kSegmentKeys;
  const int32_t segments = num_segments(end) - first;
  // At most kSplitFactor * threads units a pair: finer gains no balance and costs an atomic each.
  const auto run = static_cast<int32_t>(ceil_div(segments, kSplitFactor * shape.threads));
  const int32_t together = shape.heads_together(item.query_count);
  for (int32_t head = 0; head < shape.num_kv_heads; head += together) {
    TENON_CHECK_LT(num_pairs_, memory_.pairs.size());
    item.kv_head = head;
    item.num_heads = std::min(together, shape.num_kv_heads - head);
    item.pair = static_cast<int32_t>(num_pairs_);
    memory_.pairs[num_pairs_++] = {static_cast<int32_t>(ceil_div(segments, run)),
                                   static_cast<int32_t>(num_partials_), first, segments};
    num_partials_ += segments;
    for (int32_t s = 0; s < segments; s += run) {
      item.key_begin = std::max(begin, (first + s) * kSegmentKeys);
      item.key_end = std::min(end, (first + s + run) * kSegmentKeys);
      add(item);
    }
  }
}

void Plan::add_packed_row(const PlanShape& shape, int32_t row) {
  const int32_t query_len = batch_.query_len(row);
  const int32_t step = shape.tile_queries();
  WorkItem item;
  item.row = row;
  item.key_begin = prefix_end(row);
  item.key_end = batch_.seq_lens[at(row)];
  item.packed = true;
  // The last queries see the most keys: the longest pieces first balance best.
  for (auto tile = static_cast<int32_t>(ceil_div(query_len, step)) - 1; tile >= 0; --tile) {
    item.query_begin = tile * step;
    item.query_count = std::min(step, query_len - item.query_begin);
    for (item.kv_head = 0; item.kv_head < shape.num_kv_heads; ++item.kv_head) {
      add(item);
      ++packed_tiles_;
    }
  }
}

void Plan::add_whole_row(const PlanShape& shape, int32_t row) {
  WorkItem item;
  item.row = row;
  item.query_count = batch_.query_len(row);
  item.key_begin = prefix_end(row);
  item.key_end = batch_.seq_lens[at(row)];
  const int32_t together = shape.heads_together(item.query_count);
  for (int32_t head = 0; head < shape.num_kv_heads; head += together) {
    item.kv_head = head;
    item.num_heads = std::min(together, shape.num_kv_heads - head);
    add(item);
  }
}

void Plan::add_rows(const PlanShape& shape) {
  const auto row_cost = [&](int32_t row) {
    const int32_t query_len = batch_.query_len(row);
    const int64_t keys = batch_.seq_lens[at(row)] - prefix_end(row) - query_len / 2;
    return cost(shape, query_len, keys);
  };
  int64_t total = 0;
  for (int32_t row = 0; row < batch_.num_rows(); ++row) total += row_cost(row);
  const auto splits = [&](int32_t row) {
    const int32_t keys = batch_.seq_lens[at(row)] - prefix_end(row);
    return shape.threads > 1 && keys > kSegmentKeys &&
           row_cost(row) * kSplitFactor * shape.threads > total;
  };
  // Three passes put pieces in order of size: split pairs, packed tiles, whole direct rows.
  for (int32_t row = 0; row < batch_.num_rows(); ++row) {
    if (batch_.query_len(row) == 0) continue;
    if (!is_direct(shape, row)) {
      ++packed_rows_;
    } else {
      ++direct_rows_;
      if (splits(row)) add_split_row(shape, row);
    }
  }
  for (int32_t row = 0; row < batch_.num_rows(); ++row) {
    if (batch_.query_len(row) > 0 && !is_direct(shape, row)) add_packed_row(shape, row);
  }
  for (int32_t row = 0; row < batch_.num_rows(); ++row) {
    if (batch_.query_len(row) > 0 && is_direct(shape, row) && !splits(row)) {
      add_whole_row(shape, row);
    }
  }
  end_phase();
}

void Plan::build(const PlanShape& shape, const BatchView& batch) {
  batch_ = batch;
  block_size_ = shape.block_size;
  num_items_ = num_pairs_ = num_members_ = 0;
  num_partials_ = 0;
  num_phases_ = 0;
  use_ = {};
  direct_rows_ = packed_rows_ = packed_tiles_ = 0;
  add_levels(shape);
  add_rows(shape);
}

std::string Plan::describe() const {
  std::string text = fmt::format(
      "cpu: {} direct rows ({} split into {} segments), {} packed rows in {} tiles; {} work items",
      direct_rows_, num_pairs_, num_partials_, packed_rows_, packed_tiles_, num_items_);
  if (use_.groups > 0) {
    text += fmt::format("; {} prefix levels of {} rows, {} keys not read again", use_.groups,
                        use_.rows, use_.tokens_not_read);
  }
  return text;
}

}  // namespace tenon::cpu_attention
