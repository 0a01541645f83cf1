#include "attention/backends/flashinfer/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace tenon::flashinfer {
namespace {

// Measured on an H200. They decide between plans that are all correct.
constexpr double kBytesPerSecond = 4.5e12;  // read by all blocks together
constexpr double kCudaCoreBytes = 1.16e13;  // by CUDA cores, for one query head a KV head
constexpr double kStartSeconds = 4.7e-6;    // FA2: launch, page table, first keys
constexpr double kCudaCoreStartSeconds = 1.7e-6;
constexpr double kMergeSeconds = 3.3e-6;
constexpr double kMergePartialSeconds = 6e-8;
constexpr double kFa2Flops = 3.1e14;
constexpr double kFa3PagedFlops = 5e14;
constexpr double kFa3RaggedFlops = 6.8e14;
constexpr double kFa3TileSeconds = 2e-6;  // start and end of a work tile
// With less work than this on either side, streams cost more than running side by side saves.
constexpr double kWorthForking = 1e-5;
// What it costs the host to launch a layer without a graph: a graph may be slower by less.
constexpr double kGraphWorth = 2e-5;
constexpr int32_t kGraphKeys = 2048;
// Keys and values that blocks running at the same time should share in L2.
constexpr int64_t kSharedBytes = 8 << 20;

constexpr int64_t kAlignment = 16;

int32_t ceil_div(int64_t value, int64_t by) {
  return static_cast<int32_t>((value + by - 1) / by);
}

// Seconds that one block takes for kKeyTile keys when it does not wait for others.
double key_tile_seconds(const PlanShape& shape, bool cuda_core, bool decode) {
  const double size = shape.head_dim / 128.0;
  if (cuda_core) return 1.35e-6 * shape.group() * size;
  return decode ? 1.6e-6 * (0.4 + 0.6 * size) : 7.2e-6 * size;
}

// The tile that FlashInfer's authors chose for an average of `packed` rows of (token, head).
int32_t choose_tile(int64_t packed, int32_t head_dim) {
  if (packed > 64 && head_dim < 256) return 128;
  return packed > 16 ? 64 : 16;
}

// Floating-point operations of a causal row, for one query head.
double causal_flops(int32_t q_len, int32_t seq_len, int32_t head_dim) {
  const double pairs = double(q_len) * (seq_len - q_len) + 0.5 * q_len * (q_len + 1.0);
  return 4.0 * pairs * head_dim;
}

}  // namespace

// Hands out aligned pieces of the plan buffer; without memory it only counts, so that capacities
// come from the code that fills.
class Planner::Writer {
 public:
  explicit Writer(std::span<std::byte> buffer) : buffer_(buffer) {}

  template <typename T>
  T* take(int64_t count, int64_t& offset) {
    offset = used_;
    used_ += (count * static_cast<int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
    TENON_CHECK_LE(used_, static_cast<int64_t>(buffer_.size()));
    return reinterpret_cast<T*>(buffer_.data() + offset);
  }
  [[nodiscard]] int64_t used() const { return used_; }

 private:
  std::span<std::byte> buffer_;
  int64_t used_ = 0;
};

int32_t resident_blocks(const PlanShape& shape, bool cuda_core) {
  // Two blocks of the FA2 template share an SM's registers, eight of the CUDA-core kernel do.
  const int32_t per_sm = cuda_core ? 8 : 2;
  return std::max(1, per_sm * shape.num_sms / shape.num_kv_heads);
}

namespace {

// Blocks when chunks have `units` key tiles.
int64_t count_blocks(std::span<const ChunkingRow> rows, int32_t units) {
  int64_t blocks = 0;
  for (const ChunkingRow& row : rows) {
    blocks += int64_t{row.tiles} * std::max(1, ceil_div(row.seq_len, int64_t{units} * kKeyTile));
  }
  return blocks;
}

struct ChunkingCosts {
  Chunking whole, cut;
};

// Of a launch of at most `max_blocks` blocks for each KV head; 0: as many as are useful.
ChunkingCosts chunking_costs(const PlanShape& shape,
                             bool cuda_core,
                             std::span<const ChunkingRow> rows,
                             int64_t max_blocks = 0) {
  int64_t tiles = 0;
  int64_t key_tiles = 0;
  int64_t keys = 0;
  double flops = 0;
  int32_t max_len = 1;
  bool decode = true;
  for (const ChunkingRow& row : rows) {
    tiles += row.tiles;
    keys += int64_t{row.tiles} * row.seq_len;
    key_tiles += int64_t{row.tiles} * std::max(1, ceil_div(row.seq_len, kKeyTile));
    flops += causal_flops(row.q_len, row.seq_len, shape.head_dim);
    max_len = std::max(max_len, row.seq_len);
    decode = decode && row.q_len <= 1 && row.tiles <= 1;
  }
  const int64_t resident = resident_blocks(shape, cuda_core);
  const double unit = key_tile_seconds(shape, cuda_core, decode);
  // What memory or tensor cores take for all of it.
  const double bytes = double(keys) * double(shape.key_bytes()) * shape.num_kv_heads;
  const double together =
      cuda_core ? bytes / std::min(kBytesPerSecond, kCudaCoreBytes / shape.group())
                : std::max(bytes / kBytesPerSecond, flops * shape.num_q_heads / kFa2Flops);
  // A block alone is bound by latency, all of them together by that; near both limits by both.
  const auto launch_seconds = [&](int32_t units) {
    const double latency = unit * std::max(double(units), double(key_tiles) / double(resident));
    return (cuda_core ? kCudaCoreStartSeconds : kStartSeconds) + std::hypot(latency, together);
  };
  const int32_t max_units = ceil_div(max_len, kKeyTile);
  ChunkingCosts costs;
  costs.whole = {false, max_units * kKeyTile, launch_seconds(max_units)};

  // More rows than run at once: only decode rows of very different lengths are cut.
  const bool skewed = decode && shape.split != AttentionSplit::kUnified;
  const int64_t limit = max_blocks > 0      ? max_blocks
                        : tiles <= resident ? resident
                        : skewed            ? tiles + resident
                                            : tiles;
  costs.cut = costs.whole;
  costs.cut.split = true;
  costs.cut.seconds += kMergeSeconds + kMergePartialSeconds;
  for (const int32_t parts :
       {2, 3, 4, 6, 8, 11, 16, 22, 32, 45, 64, 91, 128, 181, 256, 512, 1024}) {
    const int32_t units = ceil_div(max_units, parts);
    const int64_t blocks = count_blocks(rows, units);
    if (blocks > limit) break;
    const double seconds = launch_seconds(units) + kMergeSeconds + parts * kMergePartialSeconds;
    if (seconds < costs.cut.seconds) costs.cut = {true, units * kKeyTile, seconds};
    if (units == 1) break;
  }
  return costs;
}

}  // namespace

Chunking choose_chunking(const PlanShape& shape,
                         bool cuda_core,
                         std::span<const ChunkingRow> rows) {
  const ChunkingCosts costs = chunking_costs(shape, cuda_core, rows);
  return costs.cut.seconds < costs.whole.seconds ? costs.cut : costs.whole;
}

PlanCapacity plan_capacity(const PlanShape& shape, const AttentionLimits& limits) {
  const int64_t rows = limits.max_num_seqs;
  const int64_t tokens = limits.max_num_batched_tokens;
  const int64_t pages = rows * num_pages(limits.max_seq_len, shape.block_size);
  // Query tiles: 16 only where rows fill at most one on average, otherwise 64 or more.
  const int64_t tiles = std::max(2 * rows, tokens * shape.group() / 64 + rows);
  const int64_t resident =
      std::max(resident_blocks(shape, false), shape.cuda_core ? resident_blocks(shape, true) : 0);
  const int64_t blocks = tiles + resident;
  const int64_t fa3_tiles = tokens / kFa3Tile + rows;

  const auto piece = [](int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  };
  PlanCapacity capacity;
  capacity.plan_bytes = 2 * piece(4 * (rows + 1)) + piece(4 * rows) + piece(4 * pages);
  capacity.plan_bytes += static_cast<int64_t>(Plan::kMaxBlockLaunches) *
                         (3 * piece(4 * blocks) + piece(blocks) + piece(4) + piece(4 * (rows + 1)) +
                          piece(4 * (tokens + 1)));
  if (shape.fa3) {
    capacity.plan_bytes +=
        static_cast<int64_t>(Plan::kMaxFa3Launches) *
        (static_cast<int64_t>(sizeof(Fa3Tile)) * fa3_tiles * shape.num_kv_heads + piece(4));
  }
  // Cut decode rows have a partial a block; cut prefill tiles, which all run at once, one for each
  // of their tokens. Outputs whose rows are not dense pass through here, too.
  const int64_t prefill_partials =
      int64_t{resident_blocks(shape, false)} * ceil_div(128, shape.group());
  capacity.partials = std::max({rows + resident, prefill_partials, tokens});
  return capacity;
}

Planner::Planner(const PlanShape& shape, const AttentionLimits& limits) : shape_(shape) {
  rows_.reserve(static_cast<size_t>(limits.max_num_seqs));
  graph_rows_.reserve(static_cast<size_t>(limits.max_num_seqs));
  order_.reserve(static_cast<size_t>(limits.max_num_seqs));
}

Status Planner::plan(const BatchView& batch,
                     const GraphBounds* graph,
                     std::span<std::byte> buffer) {
  plan_ = Plan();
  plan_.num_tokens = batch.num_tokens();
  if (graph != nullptr && (batch.num_rows() != graph->num_rows ||
                           batch.num_tokens() != graph->num_rows || batch.max_query_len != 1)) {
    return make_status(StatusCode::kFailedPrecondition,
                       "{} rows and {} tokens in a graph for {} rows of one token",
                       batch.num_rows(), batch.num_tokens(), graph->num_rows);
  }
  Writer writer(buffer);
  const int32_t rows = batch.num_rows();
  if (rows == 0) return ok_status();

  auto* q_indptr = writer.take<int32_t>(rows + 1, plan_.q_indptr);
  auto* page_indptr = writer.take<int32_t>(rows + 1, plan_.page_indptr);
  auto* last = writer.take<int32_t>(rows, plan_.last_page_len);
  std::copy_n(batch.query_start_loc.data(), rows + 1, q_indptr);
  std::copy_n(batch.page_indptr.data(), rows + 1, page_indptr);
  for (int32_t row = 0; row < rows; ++row) {
    last[row] = last_page_len(batch.seq_lens[static_cast<size_t>(row)], shape_.block_size);
  }
  TENON_RETURN_IF_ERROR(plan_rows(batch, graph, writer));
  // Last, since their number varies: what is before keeps its place in a graph.
  auto* pages = writer.take<int32_t>(batch.page_indptr.back(), plan_.page_indices);
  std::copy_n(batch.page_indices.data(), batch.page_indptr.back(), pages);
  plan_.bytes = writer.used();
  return ok_status();
}

Status Planner::plan_rows(const BatchView& batch, const GraphBounds* graph, Writer& writer) {
  const int32_t rows = batch.num_rows();
  if (shape_.split == AttentionSplit::kUnified && graph == nullptr) {
    return add_prefill(batch, {0, rows}, writer);
  }
  const int32_t decode_end = graph != nullptr ? rows : batch.num_decode_rows;
  if (decode_end > 0) TENON_RETURN_IF_ERROR(add_decode(batch, {0, decode_end}, graph, writer));

  Rows extend{decode_end, rows - batch.num_prefill_rows};
  Rows prefill{extend.end, rows};
  if (graph != nullptr) return ok_status();
  // Rows without keys would break the protocol of FA3's work scheduler.
  bool own_keys = shape_.split == AttentionSplit::kAuto;
  bool fa3 = shape_.fa3;
  for (int32_t row = decode_end; row < rows; ++row) {
    const int32_t seq_len = batch.seq_lens[static_cast<size_t>(row)];
    fa3 &= seq_len > 0 || batch.query_len(row) == 0;
    if (row >= prefill.begin) own_keys &= seq_len == batch.query_len(row);
  }
  if (!own_keys) {
    extend.end = rows;
    prefill.begin = rows;
  }
  Rows fa2 = extend;
  if (fa3) {
    // Extends that fit one packed query tile, or too few to fill the machine, go to FA2, which
    // packs the heads of a group and cuts long rows.
    int32_t short_end = extend.begin;
    while (short_end < extend.end && batch.query_len(short_end) * shape_.group() <= 64) ++short_end;
    const Rows rest{short_end, extend.end};
    fa2.end = !rest.empty() && fa3_is_faster(batch, rest) ? short_end : extend.end;
  } else {
    fa2.end = rows;
  }
  if (!fa2.empty()) TENON_RETURN_IF_ERROR(add_prefill(batch, fa2, writer));
  if (!fa3) return ok_status();
  if (!prefill.empty()) add_fa3(batch, prefill, Fa3Keys::kRagged, writer);
  if (fa2.end < extend.end) add_fa3(batch, {fa2.end, extend.end}, Fa3Keys::kPaged, writer);
  if (shape_.split != AttentionSplit::kAuto || plan_.num_fa3_launches == 0 || decode_end == 0) {
    return ok_status();
  }

  // Decode waits for memory, prefill for the tensor cores: they run side by side, on SMs shared out
  // so that both take about as long.
  double sm_seconds = 0;
  for (size_t i = 0; i < plan_.num_fa3_launches; ++i) {
    const Fa3Launch& launch = plan_.fa3[i];
    double flops = 0;
    for (int32_t row = launch.first_row; row < launch.first_row + launch.num_rows; ++row) {
      flops += causal_flops(batch.query_len(row), batch.seq_lens[static_cast<size_t>(row)],
                            shape_.head_dim);
    }
    const bool ragged = launch.keys == Fa3Keys::kRagged;
    sm_seconds +=
        shape_.num_q_heads * (flops * shape_.num_sms / (ragged ? kFa3RaggedFlops : kFa3PagedFlops) +
                              launch.num_tiles * kFa3TileSeconds);
  }
  gather(batch, plan_.blocks[0]);
  const double decode_seconds = choose_chunking(shape_, plan_.blocks[0].cuda_core, rows_).seconds;
  if (std::min(decode_seconds, sm_seconds / shape_.num_sms) < kWorthForking) return ok_status();
  plan_.fa3_ahead = std::clamp(static_cast<int32_t>(sm_seconds / decode_seconds), 1,
                               std::min(shape_.max_fa3_ahead, shape_.num_sms - 1));
  return ok_status();
}

// Of extend rows, which read pages either way.
bool Planner::fa3_is_faster(const BatchView& batch, Rows rows) const {
  const int32_t tile = kFa3Tile;
  double fa3_flops = 0;
  double longest = 0;
  double flops = 0;
  for (int32_t row = rows.begin; row < rows.end; ++row) {
    const int32_t q_len = batch.query_len(row);
    const int32_t seq_len = batch.seq_lens[static_cast<size_t>(row)];
    const int32_t tiles = ceil_div(q_len, tile);
    // FA3 computes whole tiles, FA2 packs rows better.
    fa3_flops += causal_flops(tiles * tile, seq_len - q_len + tiles * tile, shape_.head_dim);
    longest = std::max(longest, 4.0 * std::min(tile, tiles * tile) * seq_len * shape_.head_dim);
    flops += causal_flops(q_len, seq_len, shape_.head_dim);
  }
  const double fa3 = std::max(fa3_flops * shape_.num_q_heads / kFa3PagedFlops,
                              longest * shape_.num_sms / kFa3PagedFlops);
  return fa3 < flops * shape_.num_q_heads / kFa2Flops + kMergeSeconds;
}

void Planner::gather(const BatchView& batch, const BlockLaunch& launch) {
  rows_.clear();
  for (int32_t row = launch.first_row; row < launch.first_row + launch.num_rows; ++row) {
    const int32_t packed = batch.query_len(row) * shape_.group();
    rows_.push_back({launch.cuda_core ? 1 : ceil_div(packed, launch.tile), batch.query_len(row),
                     batch.seq_lens[static_cast<size_t>(row)]});
  }
}

Status Planner::add_decode(const BatchView& batch,
                           Rows rows,
                           const GraphBounds* graph,
                           Writer& writer) {
  const auto begin = static_cast<size_t>(rows.begin);
  const auto end = static_cast<size_t>(rows.end);
  BlockLaunch launch;
  launch.first_row = rows.begin;
  launch.num_rows = rows.end - rows.begin;
  launch.first_token = batch.query_start_loc[begin];
  launch.num_tokens = batch.query_start_loc[end] - launch.first_token;
  bool single = launch.num_tokens == launch.num_rows;
  for (int32_t row = rows.begin; single && row < rows.end; ++row)
    single = batch.query_len(row) == 1;
  launch.tile = choose_tile(ceil_div(int64_t{launch.num_tokens} * shape_.group(), launch.num_rows),
                            shape_.head_dim);
  launch.cuda_core = single && shape_.cuda_core && shape_.split == AttentionSplit::kSplit;
  gather(batch, launch);
  const bool either = single && shape_.cuda_core && shape_.split == AttentionSplit::kAuto;
  const auto fastest = [&] {
    Chunking best = choose_chunking(shape_, launch.cuda_core, rows_);
    if (!either) return best;
    const Chunking other = choose_chunking(shape_, true, rows_);
    launch.cuda_core = other.seconds < best.seconds;
    return launch.cuda_core ? other : best;
  };

  Chunking chunking = fastest();
  if (graph != nullptr) {
    // Kernel and grid are those for rows of a usual length, since they depend on their number
    // alone.
    rows_.swap(graph_rows_);
    rows_.assign(static_cast<size_t>(launch.num_rows), ChunkingRow{1, 1, kGraphKeys});
    launch.cuda_core = launch.cuda_core && !either;
    const bool cut = fastest().split;
    rows_.swap(graph_rows_);
    const int32_t resident = resident_blocks(shape_, launch.cuda_core);
    launch.num_blocks = cut ? std::max(resident / 2, 2 * launch.num_rows) : launch.num_rows;
    const ChunkingCosts costs = chunking_costs(shape_, launch.cuda_core, rows_, launch.num_blocks);
    const Chunking& fixed = cut ? costs.cut : costs.whole;
    if (fixed.seconds > chunking.seconds + kGraphWorth) {
      return make_status(StatusCode::kFailedPrecondition,
                         "rows of up to {} keys: faster without the graph of {} rows",
                         batch.max_seq_len, launch.num_rows);
    }
    chunking = fixed;
  }
  launch.split = chunking.split;
  launch.chunk_keys = chunking.chunk_keys;
  return add_blocks(batch, launch, writer);
}

Status Planner::add_prefill(const BatchView& batch, Rows rows, Writer& writer) {
  const auto begin = static_cast<size_t>(rows.begin);
  const auto end = static_cast<size_t>(rows.end);
  BlockLaunch launch;
  launch.first_row = rows.begin;
  launch.num_rows = rows.end - rows.begin;
  launch.first_token = batch.query_start_loc[begin];
  launch.num_tokens = batch.query_start_loc[end] - launch.first_token;
  launch.tile =
      choose_tile(int64_t{launch.num_tokens} * shape_.group() / launch.num_rows, shape_.head_dim);
  gather(batch, launch);
  const Chunking chunking = choose_chunking(shape_, false, rows_);
  launch.split = chunking.split;
  launch.chunk_keys = chunking.chunk_keys;
  return add_blocks(batch, launch, writer);
}

// Requires: rows_ of the launch. Fills the launch's tables and appends it.
Status Planner::add_blocks(const BatchView& batch, BlockLaunch launch, Writer& writer) {
  const auto chunks_of = [&](const ChunkingRow& row) {
    return launch.split ? std::max(1, ceil_div(row.seq_len, launch.chunk_keys)) : 1;
  };
  int64_t used = 0;
  for (const ChunkingRow& row : rows_) used += int64_t{row.tiles} * chunks_of(row);
  launch.num_blocks = std::max(launch.num_blocks, static_cast<int32_t>(used));
  if (launch.num_blocks == 0) return ok_status();

  auto* block_rows = writer.take<int32_t>(launch.num_blocks, launch.block_rows);
  auto* block_tiles = writer.take<int32_t>(launch.num_blocks, launch.block_tiles);
  auto* block_chunks = writer.take<int32_t>(launch.num_blocks, launch.block_chunks);
  auto* block_valid = writer.take<bool>(launch.num_blocks, launch.block_valid);
  *writer.take<int32_t>(1, launch.chunk_size) = launch.chunk_keys;

  // The CUDA-core kernel numbers its outputs by block: rows in order. Otherwise the most keys come
  // first, lest a long row be the last to start.
  order_.clear();
  for (int32_t row = 0; row < launch.num_rows; ++row) order_.push_back(row);
  const auto longer = [&](int32_t a, int32_t b) {
    return rows_[static_cast<size_t>(a)].seq_len > rows_[static_cast<size_t>(b)].seq_len;
  };
  if (!launch.cuda_core && !std::is_sorted(order_.begin(), order_.end(), longer)) {
    std::sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
      const int32_t keys_a = rows_[static_cast<size_t>(a)].seq_len;
      const int32_t keys_b = rows_[static_cast<size_t>(b)].seq_len;
      return keys_a != keys_b ? keys_a > keys_b : a < b;
    });
  }
  int32_t block = 0;
  for (const int32_t row : order_) {
    const ChunkingRow& cut = rows_[static_cast<size_t>(row)];
    const int32_t chunks = chunks_of(cut);
    for (int32_t tile = cut.tiles - 1; tile >= 0; --tile) {
      for (int32_t chunk = 0; chunk < chunks; ++chunk, ++block) {
        block_rows[block] = row;
        block_tiles[block] = tile;
        block_chunks[block] = chunk;
        block_valid[block] = true;
      }
    }
  }
  for (; block < launch.num_blocks; ++block) {
    block_rows[block] = block_tiles[block] = block_chunks[block] = 0;
    block_valid[block] = false;
  }

  if (launch.split) {
    auto* out_indptr = writer.take<int32_t>(launch.num_rows + 1, launch.out_indptr);
    auto* token_begin = writer.take<int32_t>(launch.num_tokens + 1, launch.token_begin);
    int32_t partials = 0;
    int32_t token = 0;
    for (int32_t row = 0; row < launch.num_rows; ++row) {
      const int32_t chunks = chunks_of(rows_[static_cast<size_t>(row)]);
      out_indptr[row] = partials;
      for (int32_t i = 0; i < batch.query_len(launch.first_row + row); ++i) {
        token_begin[token++] = partials;
        partials += chunks;
      }
    }
    out_indptr[launch.num_rows] = partials;
    token_begin[token] = partials;
  }
  plan_.blocks[plan_.num_block_launches++] = launch;
  return ok_status();
}

void Planner::add_fa3(const BatchView& batch, Rows rows, Fa3Keys keys, Writer& writer) {
  const int32_t tile = kFa3Tile;
  Fa3Launch launch;
  launch.keys = keys;
  launch.first_row = rows.begin;
  launch.num_rows = rows.end - rows.begin;
  launch.first_token = batch.query_start_loc[static_cast<size_t>(rows.begin)];
  launch.num_tokens = batch.query_start_loc[static_cast<size_t>(rows.end)] - launch.first_token;
  order_.clear();
  int32_t tiles = 0;
  int32_t max_len = 1;
  for (int32_t row = rows.begin; row < rows.end; ++row) {
    if (batch.query_len(row) == 0) continue;
    order_.push_back(row);
    tiles += ceil_div(batch.query_len(row), tile);
    max_len = std::max(max_len, batch.seq_lens[static_cast<size_t>(row)]);
  }
  if (tiles == 0) return;
  std::sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
    const int32_t keys_a = batch.seq_lens[static_cast<size_t>(a)];
    const int32_t keys_b = batch.seq_lens[static_cast<size_t>(b)];
    return keys_a != keys_b ? keys_a > keys_b : a < b;
  });

  // Row by row and, when rows are long, some KV heads at a time, so that the blocks of a time share
  // keys in L2; then the tiles with the most keys first, and short rows last.
  int32_t kv_heads = shape_.num_kv_heads;
  for (int32_t parts = 2; kv_heads * max_len * shape_.key_bytes() > kSharedBytes && kv_heads > 1;
       ++parts) {
    if (shape_.num_kv_heads % parts == 0) kv_heads = shape_.num_kv_heads / parts;
  }
  launch.heads_per_tile = kv_heads * shape_.group();
  launch.num_tiles = tiles * (shape_.num_kv_heads / kv_heads);
  auto* const table = writer.take<Fa3Tile>(launch.num_tiles, launch.tiles);
  *writer.take<int32_t>(1, launch.counter) = 0;
  int32_t next = 0;
  for (const int32_t row : order_) {
    const auto r = static_cast<size_t>(row);
    Fa3Tile entry;
    entry.q_begin = batch.query_start_loc[r];
    entry.kv_begin = keys == Fa3Keys::kRagged ? batch.query_start_loc[r] : batch.page_indptr[r];
    entry.q_len = batch.query_len(row);
    entry.kv_len = batch.seq_lens[r];
    entry.row = row - rows.begin;
    for (int32_t head = 0; head < shape_.num_q_heads; head += launch.heads_per_tile) {
      entry.head_begin = head;
      for (entry.tile = ceil_div(entry.q_len, tile) - 1; entry.tile >= 0; --entry.tile) {
        table[next++] = entry;
      }
    }
  }
  plan_.fa3[plan_.num_fa3_launches++] = launch;
}

std::string Plan::describe() const {
  std::string text;
  const auto add = [&](int32_t first, int32_t count, const std::string& what) {
    if (!text.empty()) text += "; ";
    text += fmt::format("rows {}..{} {}", first, first + count - 1, what);
  };
  for (size_t i = 0; i < num_block_launches; ++i) {
    const BlockLaunch& launch = blocks[i];
    std::string what = launch.cuda_core ? "CUDA cores" : fmt::format("FA2 tile {}", launch.tile);
    what += fmt::format(", {} blocks", launch.num_blocks);
    if (launch.split) what += fmt::format(", split at {} keys", launch.chunk_keys);
    add(launch.first_row, launch.num_rows, what);
  }
  for (size_t i = 0; i < num_fa3_launches; ++i) {
    const Fa3Launch& launch = fa3[i];
    add(launch.first_row, launch.num_rows,
        fmt::format("FA3 {}, {} tiles", launch.keys == Fa3Keys::kRagged ? "ragged" : "paged",
                    launch.num_tiles));
  }
  if (fa3_ahead > 0) text += fmt::format("; side by side, {} blocks of FA3 ahead", fa3_ahead);
  return text.empty() ? "no rows" : text;
}

}  // namespace tenon::flashinfer
