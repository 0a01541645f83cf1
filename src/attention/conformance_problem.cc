#include "attention/conformance_problem.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace tenon::conformance {
namespace {

constexpr int32_t kNumLayers = 2;
constexpr float kEpsilon = std::numeric_limits<float>::epsilon();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
// Keys and values of 16 bytes and more are loaded at once on a GPU, so rows stay aligned to that
// there, as they are in an engine; on the CPU nothing is aligned.
constexpr int64_t kCpuRowGap = 5;
constexpr int64_t kCudaRowGap = 8;

void round_to(DType dtype, std::vector<float>& values) {
  if (dtype == DType::kBF16) {
    for (float& value : values) value = bf16_to_f32(f32_to_bf16(value));
  } else if (dtype == DType::kF16) {
    for (float& value : values) value = f16_to_f32(f32_to_f16(value));
  }
}

// Largest norm of the `dim` values at each multiple of `dim` in columns [begin, end) of a matrix.
double max_norm(
    const std::vector<float>& matrix, int64_t stride, int64_t begin, int64_t end, int64_t dim) {
  double largest = 0;
  for (int64_t row = 0; (row + 1) * stride <= static_cast<int64_t>(matrix.size()); ++row) {
    for (int64_t column = begin; column < end; column += dim) {
      double sum = 0;
      for (int64_t i = 0; i < dim; ++i) {
        const double value = matrix[static_cast<size_t>(row * stride + column + i)];
        sum += value * value;
      }
      if (std::isfinite(sum)) largest = std::max(largest, sum);
    }
  }
  return std::sqrt(largest);
}

// How much larger a value may come back than it was stored: half a unit of three mantissa bits.
double quantised_growth(DType dtype) {
  return dtype == DType::kF8E4M3 ? 1.0625 : 1.0;
}

// An f32 score is off by about an epsilon of |q| |k| scale, a weight by as much relative to itself,
// the output by that times the largest |v| (twice: numerator and sum), plus the roundings of the
// weighted sum itself. Roundings to 16 bits come on top: of the weights before they meet V or are
// summed (compare() adds them, by element), and of the output.
void set_tolerances(Problem& p) {
  const AttentionRequirements& r = p.requirements;
  const int64_t q_end = p.q_width();
  const int64_t k_end = q_end + p.k_width();
  const double q_norm = max_norm(p.activations, p.qkv_stride(), 0, q_end, r.head_dim_qk);
  const double k_norm =
      quantised_growth(r.kv_dtype) *
      std::max(max_norm(p.activations, p.qkv_stride(), q_end, k_end, r.head_dim_qk),
               max_norm(p.context_k, p.k_width(), 0, p.k_width(), r.head_dim_qk));
  // The largest value is the largest norm of vectors of one.
  const double v_max =
      quantised_growth(r.kv_dtype) *
      std::max(max_norm(p.activations, p.qkv_stride(), k_end, k_end + p.v_width(), 1),
               max_norm(p.context_v, p.v_width(), 0, p.v_width(), 1));
  double score = p.softmax_scale() * q_norm * k_norm;
  for (const float slope : p.alibi_slopes) {
    score = std::max(score, double{slope} * p.batch.view.max_seq_len);
  }
  const double score_error = kEpsilon * (1 + score);
  p.out_tolerance = v_max * (2 * score_error + 4 * kEpsilon);
  p.lse_tolerance = 4 * score_error;  // the score's, and the rounding of a sum as large as a score
  if (r.q_dtype == DType::kF32) return;
  const bool half = r.q_dtype == DType::kF16;
  p.roundings.unit = std::ldexp(1.0, half ? -11 : -8);
  // Weights are at most 1, and the largest is 1: a weight that underflows is off by this.
  p.roundings.smallest = half ? std::ldexp(1.0, -25) : 0;
  p.out_tolerance += v_max * p.roundings.smallest * p.batch.view.max_seq_len;
  // Matrix units add products in groups and cut what they add; exp2 and log2 are approximations;
  // the sum may be one of the rounded weights.
  p.lse_tolerance = 2 * p.lse_tolerance + p.roundings.unit;
}

RopeTable make_rope(const ConformanceRope& rope, int32_t positions) {
  RopeTable table;
  table.rotary_dim = rope.rotary_dim;
  table.interleaved = rope.interleaved;
  for (int32_t position = 0; position < positions; ++position) {
    for (int32_t i = 0; i < rope.rotary_dim / 2; ++i) {
      const double angle = position * std::pow(10000.0, -2.0 * i / rope.rotary_dim);
      table.cos.push_back(static_cast<float>(std::cos(angle)));
      table.sin.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return table;
}

// Rows of single tokens without keys, counted among the decode rows, as the engine pads a graph.
void pad_for_graph(std::vector<BatchSpecRow>& rows, int32_t graph_rows) {
  for (const BatchSpecRow& row : rows) TENON_CHECK(row.query_len == 1 && row.seq_len > 0);
  TENON_CHECK_LE(rows.size(), static_cast<size_t>(graph_rows));
  rows.resize(static_cast<size_t>(graph_rows), BatchSpecRow{1, 0});
}

void count_all_as_decode(BatchView& view) {
  view.num_decode_rows = view.num_rows();
  view.num_decode_tokens = view.num_tokens();
  view.num_extend_rows = view.num_extend_tokens = 0;
  view.num_prefill_rows = view.num_prefill_tokens = 0;
}

int64_t slot_of(const Problem& p, int32_t row, int32_t key) {
  const BatchView& view = p.batch.view;
  const int32_t block_size = p.requirements.block_size;
  const auto page =
      static_cast<size_t>(view.page_indptr[static_cast<size_t>(row)] + key / block_size);
  return int64_t{view.page_indices[page]} * block_size + key % block_size;
}

void fill_inputs(Problem& p, uint64_t seed) {
  const BatchView& view = p.batch.view;
  const DType dtype = p.requirements.q_dtype;
  std::vector<char> written(static_cast<size_t>(p.num_blocks * p.requirements.block_size));
  for (int32_t row = 0; row < view.num_rows(); ++row) {
    const int32_t seq_len = view.seq_lens[static_cast<size_t>(row)];
    const int32_t query_len = view.query_len(row);
    for (int32_t key = 0; key < seq_len - query_len; ++key) {
      const int64_t slot = slot_of(p, row, key);
      char& seen = written[static_cast<size_t>(slot)];
      if (seen == 0) p.context_slots.push_back(slot);  // those of a shared prefix once
      seen = 1;
    }
    for (int32_t i = 0; i < query_len; ++i) {
      p.positions.push_back(std::max(0, seq_len - query_len + i));
    }
  }
  p.context_slots.push_back(-1);
  const auto keys = static_cast<int64_t>(p.context_slots.size());
  p.activations = random_floats(static_cast<size_t>(view.num_tokens() * p.qkv_stride()), seed);
  p.context_k = random_floats(static_cast<size_t>(keys * p.k_width()), seed + 1);
  p.context_v = random_floats(static_cast<size_t>(keys * p.v_width()), seed + 2);
  for (auto* values : {&p.activations, &p.context_k, &p.context_v}) round_to(dtype, *values);
  std::fill(p.context_k.end() - p.k_width(), p.context_k.end(), kNan);
  std::fill(p.context_v.end() - p.v_width(), p.context_v.end(), kNan);
  for (int64_t token = 0; token < view.num_tokens(); ++token) {
    if (view.slot_mapping[static_cast<size_t>(token)] >= 0) continue;
    float* row = p.activations.data() + token * p.qkv_stride();
    std::fill(row + p.q_width(), row + p.q_width() + p.k_width() + p.v_width(), kNan);
  }
}

}  // namespace

float Problem::softmax_scale() const {
  return 1.0F / std::sqrt(static_cast<float>(requirements.head_dim_qk));
}

namespace {

// Slopes, sinks and scales of heads that differ from each other.
void fill_head_facts(Problem& p) {
  const ConformanceCase& c = p.c;
  for (int32_t head = 0; c.alibi && head < c.num_q_heads; ++head) {
    p.alibi_slopes.push_back(
        std::exp2(-8.0F * static_cast<float>(head + 1) / static_cast<float>(c.num_q_heads)));
  }
  for (int32_t head = 0; c.sinks && head < c.num_q_heads; ++head) {
    p.sinks.push_back(0.75F * static_cast<float>(head % 7) - 1.5F);
  }
  for (int32_t head = 0; c.head_scales && head < c.num_kv_heads; ++head) {
    p.k_head_scales.push_back(0.3F + 0.2F * static_cast<float>(head % 5));
    p.v_head_scales.push_back(1.7F - 0.25F * static_cast<float>(head % 5));
  }
}

bool shares_prefixes(const std::vector<BatchSpecRow>& rows) {
  return std::any_of(rows.begin(), rows.end(),
                     [](const BatchSpecRow& row) { return row.term_prefix > 0; });
}

}  // namespace

Problem make_problem(const ConformanceCase& c, DeviceType device, uint64_t seed) {
  Problem p;
  p.c = c;
  AttentionRequirements& r = p.requirements;
  r.device = device;
  r.q_dtype = c.q_dtype;
  r.kv_dtype = c.kv_dtype;
  r.head_dim_qk = c.head_dim_qk;
  r.head_dim_v = c.head_dim_v;
  r.num_q_heads = c.num_q_heads;
  r.num_kv_heads = c.num_kv_heads;
  r.block_size = c.block_size;
  r.causal = c.causal;
  r.sliding_window = c.sliding_window.has_value();
  r.logits_soft_cap = c.soft_cap > 0;
  r.needs_lse = c.lse;
  r.alibi = c.alibi;
  r.sinks = c.sinks;
  r.kv_sharing = c.shares_kv;
  r.kv_scale_per_head = c.head_scales;
  p.spec = {kNumLayers, c.num_kv_heads, c.head_dim_qk, c.head_dim_v, c.block_size, c.kv_dtype};
  p.row_gap = device == DeviceType::kCpu ? kCpuRowGap : kCudaRowGap;

  auto rows = parse_batch_spec(c.batch);
  TENON_CHECK(rows.ok());
  r.cascade = shares_prefixes(*rows) && c.cascade == CascadeMode::kOn;
  if (c.graph_rows > 0) pad_for_graph(*rows, c.graph_rows);
  p.num_blocks = blocks_needed(*rows, c.block_size) + 5;  // some pages belong to nobody
  p.batch = make_batch(*rows, c.block_size, p.num_blocks, seed + 17);
  if (c.graph_rows > 0) count_all_as_decode(p.batch.view);
  share_prefixes(p.batch, c.block_size);
  const BatchView& view = p.batch.view;
  const Status valid = validate_batch_view(view, c.block_size, p.num_blocks);
  TENON_CHECK(valid.ok());
  p.limits = {std::max(1, view.num_rows()), std::max(1, view.num_tokens()),
              std::max({1, view.max_seq_len, c.max_seq_len})};
  fill_head_facts(p);
  fill_inputs(p, seed);
  if (c.rope.rotary_dim > 0) p.rope = make_rope(c.rope, std::max(1, view.max_seq_len));
  set_tolerances(p);
  return p;
}

Problem with_activations(const Problem& problem, std::vector<float> activations) {
  Problem p;
  p.c = problem.c;
  p.c.rope = {};
  p.requirements = problem.requirements;
  p.limits = problem.limits;
  p.spec = problem.spec;
  p.num_blocks = problem.num_blocks;
  p.row_gap = problem.row_gap;
  p.activations = std::move(activations);
  p.context_k = problem.context_k;
  p.context_v = problem.context_v;
  p.context_slots = problem.context_slots;
  p.alibi_slopes = problem.alibi_slopes;
  p.sinks = problem.sinks;
  p.k_head_scales = problem.k_head_scales;
  p.v_head_scales = problem.v_head_scales;
  p.batch = shortened(problem, 1).batch;
  return p;
}

Problem with_magnitudes(const Problem& problem) {
  Problem p = with_activations(problem, problem.activations);
  for (float& value : p.context_v) value = std::abs(value);
  for (size_t i = 0; i < p.activations.size(); ++i) {
    const auto column = static_cast<int64_t>(i) % p.qkv_stride();
    if (column >= p.q_width() + p.k_width()) p.activations[i] = std::abs(p.activations[i]);
  }
  return p;
}

Excerpt row_excerpt(const Problem& p, int32_t row, int32_t first_query, int32_t num_queries) {
  const BatchView& whole = p.batch.view;
  const auto r = static_cast<size_t>(row);
  const int32_t unseen = whole.query_len(row) - first_query - num_queries;
  // Without a causal mask every query sees all keys of its row.
  const int32_t seq_len =
      whole.seq_lens[r] == 0 ? 0 : whole.seq_lens[r] - (p.requirements.causal ? unseen : 0);
  Excerpt excerpt;
  excerpt.first_token = whole.query_start_loc[r] + first_query;
  const auto token = static_cast<size_t>(excerpt.first_token);
  SyntheticBatch& batch = excerpt.batch;
  batch.query_start_loc = {0, num_queries};
  batch.seq_lens = {seq_len};
  batch.page_indptr = {0, num_pages(seq_len, p.requirements.block_size)};
  const auto pages = whole.page_indices.subspan(static_cast<size_t>(whole.page_indptr[r]),
                                                static_cast<size_t>(batch.page_indptr[1]));
  batch.page_indices.assign(pages.begin(), pages.end());
  const auto slots = whole.slot_mapping.subspan(token, static_cast<size_t>(num_queries));
  batch.slot_mapping.assign(slots.begin(), slots.end());
  fill_view(batch);
  return excerpt;
}

Excerpt shortened(const Problem& p, int32_t divisor) {
  const BatchView& whole = p.batch.view;
  Excerpt excerpt;
  SyntheticBatch& batch = excerpt.batch;
  batch.query_start_loc.assign(whole.query_start_loc.begin(), whole.query_start_loc.end());
  batch.slot_mapping.assign(whole.slot_mapping.begin(), whole.slot_mapping.end());
  batch.page_indptr = {0};
  for (int32_t row = 0; row < whole.num_rows(); ++row) {
    const int32_t query_len = whole.query_len(row);
    const int32_t context = whole.seq_lens[static_cast<size_t>(row)] - query_len;
    const int32_t seq_len = context <= 0 ? whole.seq_lens[static_cast<size_t>(row)]
                                         : query_len + std::max(1, context / divisor);
    const int32_t pages = num_pages(seq_len, p.requirements.block_size);
    const auto first = static_cast<size_t>(whole.page_indptr[static_cast<size_t>(row)]);
    for (int32_t i = 0; i < pages; ++i) {
      batch.page_indices.push_back(whole.page_indices[first + static_cast<size_t>(i)]);
    }
    batch.seq_lens.push_back(seq_len);
    batch.page_indptr.push_back(static_cast<int32_t>(batch.page_indices.size()));
    for (int32_t i = 0; i < query_len && seq_len > 0; ++i) {
      const auto token = static_cast<size_t>(whole.query_start_loc[static_cast<size_t>(row)] + i);
      batch.slot_mapping[token] = slot_of(p, row, seq_len - query_len + i);
    }
  }
  fill_view(batch);
  if (p.c.graph_rows > 0) count_all_as_decode(batch.view);
  share_prefixes(batch, p.requirements.block_size);
  return excerpt;
}

}  // namespace tenon::conformance
