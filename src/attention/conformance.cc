#include "attention/conformance.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention/synthetic_batch.h"
#include "base/check.h"

namespace tenon {
namespace {

constexpr int32_t kLayer = 1;  // not the first, so that a forgotten layer stride shows
constexpr int32_t kNumLayers = 2;
constexpr int64_t kRowGap = 5;  // q and out rows are strided; the gap must stay as it was
constexpr float kEpsilon = std::numeric_limits<float>::epsilon();

// Everything a backend reads, made once a case.
struct Problem {
  AttentionRequirements requirements;
  AttentionLimits limits;
  KvCacheSpec spec;
  int64_t num_blocks = 0;
  SyntheticBatch batch;
  std::vector<float> q;        // [T, q_heads * dim_qk + gap]
  std::vector<float> k, v;     // [keys + 1, kv_heads * dim]; the last row is padding, all NaN
  std::vector<int64_t> slots;  // of every key of every row, then -1
  double out_tolerance = 0;
  double lse_tolerance = 0;

  [[nodiscard]] int64_t q_stride() const {
    return int64_t{requirements.num_q_heads} * requirements.head_dim_qk + kRowGap;
  }
  [[nodiscard]] int64_t out_stride() const {
    return int64_t{requirements.num_q_heads} * requirements.head_dim_v + kRowGap;
  }
};

struct Output {
  std::vector<float> out;  // [T, q_heads * dim_v + gap]
  std::vector<float> lse;  // [T, q_heads]
};

double max_norm(const std::vector<float>& values, int64_t dim, int64_t stride) {
  double largest = 0;
  for (int64_t row = 0; (row + 1) * stride <= static_cast<int64_t>(values.size()); ++row) {
    for (int64_t begin = 0; begin + dim <= stride; begin += dim) {
      double sum = 0;
      for (int64_t i = 0; i < dim; ++i) {
        const double value = values[static_cast<size_t>(row * stride + begin + i)];
        sum += value * value;
      }
      if (std::isfinite(sum)) largest = std::max(largest, sum);
    }
  }
  return std::sqrt(largest);
}

// An f32 score is off by about an epsilon of |q| |k| scale, a weight by as much relative to itself,
// the output by that times the largest |v| (twice: numerator and sum), plus the roundings of the
// weighted sum itself.
void set_tolerances(Problem& p, float scale) {
  const AttentionRequirements& r = p.requirements;
  const double q_norm = max_norm(p.q, r.head_dim_qk, p.q_stride());
  const double k_norm = max_norm(p.k, r.head_dim_qk, int64_t{r.num_kv_heads} * r.head_dim_qk);
  double v_max = 0;
  for (const float value : p.v) {
    if (std::isfinite(value)) v_max = std::max(v_max, std::abs(static_cast<double>(value)));
  }
  const double score_error = kEpsilon * (1 + scale * q_norm * k_norm);
  p.out_tolerance = v_max * (2 * score_error + 4 * kEpsilon);
  p.lse_tolerance = 4 * score_error;  // the score's, and the rounding of a sum as large as a score
}

float softmax_scale(const ConformanceCase& c) {
  return 1.0F / std::sqrt(static_cast<float>(c.head_dim_qk));
}

Problem make_problem(const ConformanceCase& c, uint64_t seed) {
  Problem p;
  AttentionRequirements& r = p.requirements;
  r.kv_dtype = c.kv_dtype;
  r.head_dim_qk = c.head_dim_qk;
  r.head_dim_v = c.head_dim_v;
  r.num_q_heads = c.num_q_heads;
  r.num_kv_heads = c.num_kv_heads;
  r.block_size = c.block_size;
  r.causal = c.causal;
  r.sliding_window = c.sliding_window.has_value();
  r.logits_soft_cap = c.soft_cap > 0;
  r.needs_lse = true;
  p.spec = {kNumLayers, c.num_kv_heads, c.head_dim_qk, c.head_dim_v, c.block_size, c.kv_dtype};

  auto rows = parse_batch_spec(c.batch);
  TENON_CHECK(rows.ok());
  p.num_blocks = blocks_needed(*rows, c.block_size) + 5;  // some pages belong to nobody
  p.batch = make_batch(*rows, c.block_size, p.num_blocks, seed + 17);
  const BatchView& view = p.batch.view;
  const Status valid = validate_batch_view(view, c.block_size, p.num_blocks);
  TENON_CHECK(valid.ok());
  p.limits = {std::max(1, view.num_rows()), std::max(1, view.num_tokens()),
              std::max(1, view.max_seq_len)};

  for (int32_t row = 0; row < view.num_rows(); ++row) {
    const int32_t* pages = view.page_indices.data() + view.page_indptr[static_cast<size_t>(row)];
    for (int32_t key = 0; key < view.seq_lens[static_cast<size_t>(row)]; ++key) {
      p.slots.push_back(int64_t{pages[key / c.block_size]} * c.block_size + key % c.block_size);
    }
  }
  p.slots.push_back(-1);
  const auto keys = p.slots.size();
  const auto k_width = static_cast<size_t>(c.num_kv_heads) * static_cast<size_t>(c.head_dim_qk);
  const auto v_width = static_cast<size_t>(c.num_kv_heads) * static_cast<size_t>(c.head_dim_v);
  p.q = random_floats(static_cast<size_t>(view.num_tokens() * p.q_stride()), seed);
  p.k = random_floats(keys * k_width, seed + 1);
  p.v = random_floats(keys * v_width, seed + 2);
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  std::fill(p.k.end() - static_cast<int64_t>(k_width), p.k.end(), kNan);
  std::fill(p.v.end() - static_cast<int64_t>(v_width), p.v.end(), kNan);
  set_tolerances(p, softmax_scale(c));
  return p;
}

// Fills every cell with NaN and infinity, so that whoever reads an unused one is found out.
void poison(const KvPool& pool) {
  const int64_t elements = pool.bytes() / dtype_bytes(pool.spec().dtype, 1);
  auto* base = static_cast<std::byte*>(pool.view(0).base);
  if (pool.spec().dtype == DType::kF32) {
    const float values[] = {std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::infinity()};
    for (int64_t i = 0; i < elements; ++i) std::memcpy(base + 4 * i, &values[i % 2], 4);
  } else {
    const bool half = pool.spec().dtype == DType::kF16;
    const uint16_t values[] = {static_cast<uint16_t>(half ? 0x7E01 : 0x7FC1),
                               static_cast<uint16_t>(half ? 0x7C00 : 0x7F80)};
    for (int64_t i = 0; i < elements; ++i) std::memcpy(base + 2 * i, &values[i % 2], 2);
  }
}

// One backend with its own pool, and the layer under test.
class Subject {
 public:
  static Result<Subject> create(const AttentionRegistry& registry,
                                std::string_view name,
                                const Problem& problem,
                                const ConformanceCase& c,
                                const BackendContext& context) {
    Subject subject;
    TENON_ASSIGN_OR_RETURN(BackendChoice choice, get_attention_backend(registry, name, context));
    subject.backend_ = std::move(choice.backend);
    const std::vector<KvLayout>& layouts = subject.backend_->info().layouts;
    if (std::find(layouts.begin(), layouts.end(), c.layout) == layouts.end()) {
      return unsupported("KV layout {} is not accepted", kv_layout_name(c.layout));
    }
    TENON_RETURN_IF_ERROR(subject.backend_->prepare(problem.limits));
    TENON_ASSIGN_OR_RETURN(subject.pool_,
                           KvPool::create(problem.spec, c.layout, problem.num_blocks));
    poison(subject.pool_);
    LayerParams params;
    params.layer = kLayer;
    params.num_q_heads = c.num_q_heads;
    params.num_kv_heads = c.num_kv_heads;
    params.head_dim_qk = c.head_dim_qk;
    params.head_dim_v = c.head_dim_v;
    params.scale = softmax_scale(c);
    params.sliding_window = c.sliding_window;
    params.logits_soft_cap = c.soft_cap;
    params.kv = subject.pool_.view(kLayer);
    params.kv.k_scale = c.k_scale;
    params.kv.v_scale = c.v_scale;
    subject.impl_ = subject.backend_->make_impl(params);
    subject.write(problem);
    return subject;
  }

  [[nodiscard]] const BackendInfo& info() const { return backend_->info(); }
  [[nodiscard]] const KvPool& pool() const { return pool_; }

  // Output rows of `view`, whose tokens are tokens first_token... of the problem's batch.
  Result<Output> forward(Problem& p, const BatchView& view, int32_t first_token) {
    TENON_ASSIGN_OR_RETURN(const AttentionMetadata* metadata, backend_->build_metadata(view));
    const int64_t tokens = view.num_tokens();
    Output output;
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    output.out.assign(static_cast<size_t>(tokens * p.out_stride()), kNan);
    output.lse.assign(static_cast<size_t>(tokens * p.requirements.num_q_heads), kNan);
    TensorView q =
        TensorView::dense(p.q.data(), DType::kF32, {view.num_tokens() + first_token, p.q_stride()});
    TensorView out = TensorView::dense(output.out.data(), DType::kF32, {tokens, p.out_stride()});
    q = q.slice(first_token, tokens).columns(0, p.q_stride() - kRowGap);
    impl_->forward({q, {}, {}, out.columns(0, p.out_stride() - kRowGap), output.lse}, *metadata);
    return output;
  }

 private:
  Subject() = default;

  void write(const Problem& p) {
    const AttentionRequirements& r = p.requirements;
    const auto rows = static_cast<int64_t>(p.slots.size());
    impl_->write_kv(TensorView::dense(const_cast<float*>(p.k.data()), DType::kF32,
                                      {rows, int64_t{r.num_kv_heads} * r.head_dim_qk}),
                    TensorView::dense(const_cast<float*>(p.v.data()), DType::kF32,
                                      {rows, int64_t{r.num_kv_heads} * r.head_dim_v}),
                    p.slots);
  }

  std::unique_ptr<AttentionBackend> backend_;
  KvPool pool_;
  std::unique_ptr<AttentionImpl> impl_;
};

// The first difference found, and the worst error.
class Verdict {
 public:
  explicit Verdict(ConformanceResult& result) : result_(result) {}

  template <typename... Args>
  void fail(fmt::format_string<Args...> format, Args&&... args) {
    if (result_.outcome != ConformanceOutcome::kPassed) return;
    result_.outcome = ConformanceOutcome::kFailed;
    result_.detail = fmt::format(format, std::forward<Args>(args)...);
  }
  void error(double value, double expected, double tolerance, const std::string& where) {
    if (value == expected) return;  // infinities, too
    const double share = std::abs(value - expected) / tolerance;
    if (!(share <= 1))
      fail("{}: {} instead of {} (tolerance {:.3g})", where, value, expected, tolerance);
    if (!(share <= result_.worst)) result_.worst = share;
  }

 private:
  ConformanceResult& result_;
};

void compare(const Problem& p, const Output& got, const Output& expected, Verdict& verdict) {
  const int64_t heads = p.requirements.num_q_heads;
  const int64_t dim = p.requirements.head_dim_v;
  for (int64_t token = 0; token < p.batch.view.num_tokens(); ++token) {
    for (int64_t i = 0; i < heads * dim; ++i) {
      const auto at = static_cast<size_t>(token * p.out_stride() + i);
      verdict.error(got.out[at], expected.out[at], p.out_tolerance,
                    fmt::format("token {} head {} feature {}", token, i / dim, i % dim));
    }
    for (int64_t i = 0; i < kRowGap; ++i) {
      const auto at = static_cast<size_t>(token * p.out_stride() + heads * dim + i);
      if (!std::isnan(got.out[at]))
        verdict.fail("token {}: written past the end of the row", token);
    }
    for (int64_t head = 0; head < heads; ++head) {
      const auto at = static_cast<size_t>(token * heads + head);
      verdict.error(got.lse[at], expected.lse[at], p.lse_tolerance,
                    fmt::format("token {} head {} lse", token, head));
    }
  }
}

// One row of the batch, or one token of it as a decode row, as a batch of its own.
struct Excerpt {
  int32_t row = 0;
  int32_t first_query = 0;
  int32_t num_queries = 0;
};

Result<Output> forward_excerpt(Subject& subject, Problem& p, const Excerpt& excerpt) {
  const BatchView& whole = p.batch.view;
  const auto row = static_cast<size_t>(excerpt.row);
  const int32_t unseen = whole.query_len(excerpt.row) - excerpt.first_query - excerpt.num_queries;
  const int32_t seq_len =
      whole.seq_lens[row] == 0 ? 0 : whole.seq_lens[row] - (p.requirements.causal ? unseen : 0);
  const int32_t first_token = whole.query_start_loc[row] + excerpt.first_query;
  const int32_t query_start_loc[] = {0, excerpt.num_queries};
  const int32_t page_indptr[] = {0, num_pages(seq_len, p.requirements.block_size)};
  BatchView view;
  view.query_start_loc = query_start_loc;
  view.seq_lens = {&seq_len, 1};
  view.page_indptr = page_indptr;
  view.page_indices = whole.page_indices.subspan(static_cast<size_t>(whole.page_indptr[row]));
  view.slot_mapping = whole.slot_mapping.subspan(static_cast<size_t>(first_token),
                                                 static_cast<size_t>(excerpt.num_queries));
  view.num_decode_rows = 1;
  view.num_decode_tokens = view.max_query_len = excerpt.num_queries;
  view.max_seq_len = seq_len;
  return subject.forward(p, view, first_token);
}

void expect_same_bits(const Problem& p,
                      const Output& part,
                      const Output& whole,
                      int32_t first_token,
                      const std::string& what,
                      Verdict& verdict) {
  const auto heads = static_cast<size_t>(p.requirements.num_q_heads);
  const auto width = static_cast<size_t>(p.out_stride() - kRowGap);
  const auto stride = static_cast<size_t>(p.out_stride());
  const auto begin = static_cast<size_t>(first_token);
  for (size_t token = 0; token < part.lse.size() / heads; ++token) {
    const bool same = std::memcmp(&part.out[token * stride], &whole.out[(begin + token) * stride],
                                  width * sizeof(float)) == 0 &&
                      std::memcmp(&part.lse[token * heads], &whole.lse[(begin + token) * heads],
                                  heads * sizeof(float)) == 0;
    if (!same) return verdict.fail("token {}: other bits {}", begin + token, what);
  }
}

void check_invariance(Subject& subject, Problem& p, const Output& whole, Verdict& verdict) {
  const BatchView& view = p.batch.view;
  for (int32_t row = 0; row < view.num_rows(); ++row) {
    const int32_t query_len = view.query_len(row);
    const int32_t first_token = view.query_start_loc[static_cast<size_t>(row)];
    const auto run = [&](const Excerpt& excerpt, const char* what) {
      auto part = forward_excerpt(subject, p, excerpt);
      if (!part.ok()) return verdict.fail("row {} {}: {}", row, what, part.status().message());
      expect_same_bits(p, *part, whole, first_token + excerpt.first_query, what, verdict);
    };
    run({row, 0, query_len}, "when its row is alone");
    if (!p.requirements.causal) continue;  // there, a token's result depends on the keys after it
    for (int32_t i = 0; i < query_len; i += 1 + query_len / 8) {
      run({row, i, 1}, "when decoded alone");
      run({row, i, query_len - i}, "when chunked otherwise");
    }
  }
}

// What the reference made of the problem.
struct Oracle {
  Subject subject;
  Output output;
};

// One case, set up.
struct Run {
  const AttentionRegistry& registry;
  std::string_view backend;
  const ConformanceCase& c;
  Problem& problem;
  const Oracle& oracle;
};

ConformanceResult run_on_isa(const Run& run,
                             std::string_view isa,
                             const std::vector<int>& thread_counts) {
  const auto& [registry, backend, c, problem, oracle] = run;
  ConformanceResult result;
  result.name = fmt::format("{} [{}]", describe_case(c), isa);
  Verdict verdict(result);
  BackendContext context;
  context.requirements = problem.requirements;
  context.isa = isa;
  std::optional<Output> first;
  for (const int threads : thread_counts) {
    ThreadPool pool(threads);
    context.pool = &pool;
    auto subject = Subject::create(registry, backend, problem, c, context);
    if (!subject.ok()) {
      result.outcome = subject.status().code() == StatusCode::kUnsupported
                           ? ConformanceOutcome::kRefused
                           : ConformanceOutcome::kFailed;
      result.detail = subject.status().message();
      return result;
    }
    if (std::memcmp(subject->pool().view(0).base, oracle.subject.pool().view(0).base,
                    static_cast<size_t>(oracle.subject.pool().bytes())) != 0) {
      verdict.fail("write_kv: cells differ from the reference's");
    }
    auto output = subject->forward(problem, problem.batch.view, 0);
    if (!output.ok()) {
      verdict.fail("build_metadata: {}", output.status().message());
      return result;
    }
    compare(problem, *output, oracle.output, verdict);
    if (!subject->info().batch_invariant) continue;
    if (first) {
      expect_same_bits(problem, *output, *first, 0, fmt::format("on {} threads", threads), verdict);
      continue;
    }
    check_invariance(*subject, problem, *output, verdict);
    first = std::move(*output);
  }
  return result;
}

}  // namespace

std::vector<ConformanceResult> run_conformance_case(const AttentionRegistry& registry,
                                                    std::string_view backend,
                                                    const ConformanceCase& c,
                                                    const ConformanceOptions& options) {
  Problem problem = make_problem(c, options.seed);
  BackendContext context;
  context.requirements = problem.requirements;
  auto reference = Subject::create(registry, "reference", problem, c, context);
  TENON_CHECK(reference.ok());
  auto expected = reference->forward(problem, problem.batch.view, 0);
  TENON_CHECK(expected.ok());
  const Oracle oracle{std::move(*reference), std::move(*expected)};
  const Run run{registry, backend, c, problem, oracle};
  std::vector<ConformanceResult> results;
  for (const std::string& isa : options.isas) {
    results.push_back(run_on_isa(run, isa, options.threads));
  }
  return results;
}

Result<std::vector<ConformanceResult>> run_conformance(
    const AttentionRegistry& registry,
    std::string_view backend,
    const ConformanceOptions& options,
    const std::function<void(const ConformanceResult&)>& on_result) {
  const bool known = std::any_of(registry.entries().begin(), registry.entries().end(),
                                 [&](const BackendEntry& entry) { return entry.name == backend; });
  if (!known) return invalid_argument("unknown attention backend '{}'", backend);
  std::vector<ConformanceResult> results;
  for (const ConformanceCase& c : conformance_cases(options.level)) {
    for (ConformanceResult& result : run_conformance_case(registry, backend, c, options)) {
      if (on_result) on_result(result);
      results.push_back(std::move(result));
    }
  }
  return results;
}

}  // namespace tenon
