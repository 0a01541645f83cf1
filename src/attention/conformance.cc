#include "attention/conformance.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>

#include "attention/conformance_problem.h"
#include "base/check.h"

namespace tenon {
namespace {

using conformance::Excerpt;
using conformance::make_problem;
using conformance::Output;
using conformance::Problem;
using conformance::Subject;
using conformance::Target;

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
  // `where` is called only for a failure.
  template <typename Where>
  void error(double value, double expected, double tolerance, const Where& where) {
    if (value == expected) return;  // infinities, too
    const double share = std::abs(value - expected) / tolerance;
    if (!(share <= 1))
      fail("{}: {} instead of {} (tolerance {:.3g})", where(), value, expected, tolerance);
    if (!(share <= result_.worst)) result_.worst = share;
  }

 private:
  ConformanceResult& result_;
};

// What the reference made of a batch, and of it with |v| for v when types of 16 bits are involved.
struct Expected {
  Output output;
  std::optional<Output> magnitudes;
};

void compare(const Problem& p,
             const Output& got,
             const Expected& expected,
             std::string_view what,
             Verdict& verdict) {
  const int64_t heads = p.requirements.num_q_heads;
  const int64_t dim = p.requirements.head_dim_v;
  TENON_CHECK_EQ(got.out.size(), expected.output.out.size());
  TENON_CHECK_EQ(got.lse.size(), expected.output.lse.size());
  if (!got.damage.empty()) verdict.fail("{}{}", what, got.damage);
  for (size_t i = 0; i < got.out.size(); ++i) {
    const double value = expected.output.out[i];
    double tolerance = p.out_tolerance;
    if (expected.magnitudes) {
      // Weights off by a unit: sum |w v| / sum w in the numerator, the output in the denominator;
      // then the output's own rounding.
      tolerance += p.roundings.unit * (expected.magnitudes->out[i] + 2 * std::abs(value));
    }
    verdict.error(got.out[i], value, tolerance, [&] {
      const auto at = static_cast<int64_t>(i);
      return fmt::format("{}token {} head {} feature {}", what, at / (heads * dim),
                         at / dim % heads, at % dim);
    });
  }
  for (size_t i = 0; i < got.lse.size(); ++i) {
    verdict.error(got.lse[i], expected.output.lse[i], p.lse_tolerance, [&] {
      const auto at = static_cast<int64_t>(i);
      return fmt::format("{}token {} head {} lse", what, at / heads, at % heads);
    });
  }
}

void expect_same_bits(const Problem& p,
                      const Output& part,
                      const Output& whole,
                      int32_t first_token,
                      std::string_view what,
                      Verdict& verdict) {
  const auto width = static_cast<size_t>(p.out_width());
  const auto heads = part.lse.empty() ? 0 : static_cast<size_t>(p.requirements.num_q_heads);
  const auto begin = static_cast<size_t>(first_token);
  for (size_t token = 0; token < part.out.size() / width; ++token) {
    const bool same =
        std::memcmp(&part.out[token * width], &whole.out[(begin + token) * width],
                    width * sizeof(float)) == 0 &&
        std::memcmp(part.lse.data() + token * heads, whole.lse.data() + (begin + token) * heads,
                    heads * sizeof(float)) == 0;
    if (!same) return verdict.fail("token {}: other bits {}", begin + token, what);
  }
}

void check_invariance(Subject& subject, const Problem& p, const Output& whole, Verdict& verdict) {
  const BatchView& view = p.batch.view;
  for (int32_t row = 0; row < view.num_rows(); ++row) {
    const int32_t query_len = view.query_len(row);
    const auto run = [&](int32_t first_query, int32_t num_queries, const char* what) {
      const Excerpt excerpt = row_excerpt(p, row, first_query, num_queries);
      auto part = subject.forward(excerpt.batch.view, excerpt.first_token);
      if (!part.ok()) return verdict.fail("row {} {}: {}", row, what, part.status().message());
      expect_same_bits(p, *part, whole, excerpt.first_token, what, verdict);
    };
    run(0, query_len, "when its row is alone");
    if (!p.requirements.causal) continue;  // there, a token's result depends on the keys after it
    for (int32_t i = 0; i < query_len; i += 1 + query_len / 8) {
      run(i, 1, "when decoded alone");
      run(i, query_len - i, "when chunked otherwise");
    }
  }
}

// Rotation in double, of what was rounded to the activations' type before and is after.
void check_rope(const Problem& p, const std::vector<float>& rotated, Verdict& verdict) {
  const RopeTable& rope = p.rope;
  const int64_t half = rope.rotary_dim / 2;
  const int64_t dim = p.requirements.head_dim_qk;
  for (int64_t token = 0; token < p.batch.view.num_tokens(); ++token) {
    const float* before = p.activations.data() + token * p.qkv_stride();
    const float* after = rotated.data() + token * p.qkv_stride();
    const int64_t position = p.positions[static_cast<size_t>(token)];
    for (int64_t column = 0; column < p.qkv_stride(); ++column) {
      const int64_t feature = column % dim;
      const bool turned = column < p.q_width() + p.k_width() && feature < rope.rotary_dim;
      const auto where = [&] { return fmt::format("RoPE of token {} column {}", token, column); };
      if (std::isnan(before[column])) continue;  // a token that is stored nowhere
      if (!turned) {
        verdict.error(after[column], before[column], 0, where);
        continue;
      }
      const int64_t pair = rope.interleaved ? feature / 2 : feature % half;
      const bool first = rope.interleaved ? feature % 2 == 0 : feature < half;
      const int64_t step = rope.interleaved ? 1 : half;
      const double own = before[column];
      const double other = before[column + (first ? step : -step)];
      const auto entry = static_cast<size_t>(position * half + pair);
      const double cos = rope.cos[entry];
      const double sin = rope.sin[entry];
      const double value = own * cos + (first ? -other : other) * sin;
      const double tolerance =
          p.roundings.unit * std::abs(value) +
          4 * std::numeric_limits<float>::epsilon() * (std::abs(own) + std::abs(other));
      verdict.error(after[column], value, tolerance, where);
    }
  }
}

Expected expect(const AttentionRegistry& registry, const Problem& problem, const BatchView& view) {
  const auto run = [&](const Problem& p) {
    auto reference = make_reference(registry, p);
    TENON_CHECK(reference.ok());
    auto output = reference->forward(view, 0);
    TENON_CHECK(output.ok());
    return std::move(*output);
  };
  Expected expected;
  expected.output = run(problem);
  if (problem.roundings.unit > 0) expected.magnitudes = run(with_magnitudes(problem));
  return expected;
}

// A case, set up, with what is expected of it.
struct Trial {
  Problem problem;
  std::optional<Excerpt> earlier;  // for graphs: the same rows some steps earlier
  Expected expected;               // without values for a case with RoPE: they depend on its bits
  Expected expected_earlier;
};

Trial prepare(const AttentionRegistry& registry,
              const ConformanceCase& c,
              DeviceType device,
              uint64_t seed) {
  Trial trial;
  trial.problem = make_problem(c, device, seed);
  if (c.graph_rows > 0) trial.earlier = shortened(trial.problem, 3);
  if (c.rope.rotary_dim > 0) return trial;
  trial.expected = expect(registry, trial.problem, trial.problem.batch.view);
  if (trial.earlier) {
    trial.expected_earlier = expect(registry, trial.problem, trial.earlier->batch.view);
  }
  return trial;
}

// Captures the step of the rows as they were some steps earlier, and replays it on both plans.
Status check_graph(Subject& subject, const Trial& trial, Verdict& verdict) {
  const Problem& p = trial.problem;
  const GraphBounds bounds{p.batch.view.num_rows()};
  TENON_ASSIGN_OR_RETURN(Target target, subject.make_target(p.batch.view.num_tokens()));
  TENON_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceGraph> graph,
                         subject.capture(trial.earlier->batch.view, bounds, target));
  const auto replay = [&](const BatchView& view, const Expected& expected,
                          std::string_view what) -> Status {
    subject.poison(target);
    TENON_RETURN_IF_ERROR(subject.plan(view, bounds));
    graph->launch();
    TENON_ASSIGN_OR_RETURN(const Output output, subject.collect(target));
    compare(p, output, expected, what, verdict);
    return ok_status();
  };
  TENON_RETURN_IF_ERROR(replay(p.batch.view, trial.expected, "graph, replayed: "));
  TENON_RETURN_IF_ERROR(
      replay(trial.earlier->batch.view, trial.expected_earlier, "graph, as captured: "));
  TENON_RETURN_IF_ERROR(replay(p.batch.view, trial.expected, "graph, replayed again: "));
  if (subject.plan(p.batch.view, {bounds.num_rows + 1}).ok()) {
    verdict.fail("a plan of {} rows was made for a graph of {}", bounds.num_rows,
                 bounds.num_rows + 1);
  }
  return ok_status();
}

struct Run {
  const AttentionRegistry& registry;
  std::string_view backend;
  const ConformanceOptions& options;
};

struct Finding {
  Output output;
  bool batch_invariant = false;  // as the backend claims
};

// What one subject makes of a trial.
Result<Finding> examine(const Run& run,
                        const Trial& trial,
                        const BackendContext& context,
                        Verdict& verdict) {
  const Problem& p = trial.problem;
  TENON_ASSIGN_OR_RETURN(Subject subject,
                         Subject::create(run.registry, run.backend, p, context, p.c.layout));
  const std::vector<float> activations = subject.read_activations();
  std::optional<Problem> rotated;  // the problem as the subject's own rotation left it
  std::optional<Expected> rotated_expected;
  if (p.c.rope.rotary_dim > 0) {
    check_rope(p, activations, verdict);
    rotated = with_activations(p, activations);
    rotated->roundings = p.roundings;
    rotated_expected = expect(run.registry, *rotated, p.batch.view);
  }
  const Expected& expected = rotated ? *rotated_expected : trial.expected;
  TENON_ASSIGN_OR_RETURN(const Subject reference,
                         make_reference(run.registry, rotated ? *rotated : p, subject.layout()));

  // A step behind another one, without waiting in between.
  const Excerpt before = shortened(p, 2);
  TENON_ASSIGN_OR_RETURN(Target ignored, subject.make_target(p.batch.view.num_tokens()));
  TENON_ASSIGN_OR_RETURN(Target target, subject.make_target(p.batch.view.num_tokens()));
  TENON_RETURN_IF_ERROR(
      subject.enqueue(before.batch.view, 0, nullptr, ignored).with_context("build_metadata"));
  TENON_RETURN_IF_ERROR(
      subject.enqueue(p.batch.view, 0, nullptr, target).with_context("build_metadata"));
  TENON_ASSIGN_OR_RETURN(Output output, subject.collect(target));
  compare(p, output, expected, "", verdict);
  if (p.c.graph_rows > 0 && context.device->type() == DeviceType::kCuda) {
    TENON_RETURN_IF_ERROR(check_graph(subject, trial, verdict).with_context("graph"));
  }
  if (subject.info().batch_invariant) check_invariance(subject, p, output, verdict);
  if (subject.read_cells() != reference.read_cells()) {
    verdict.fail("write_kv: cells differ from the reference's");
  }
  const std::vector<float> now = subject.read_activations();
  if (std::memcmp(now.data(), activations.data(), now.size() * sizeof(float)) != 0) {
    verdict.fail("forward: changed its inputs");
  }
  return Finding{std::move(output), subject.info().batch_invariant};
}

ConformanceResult run_trial(const Run& run,
                            const Trial& trial,
                            Device& device,
                            std::string_view isa) {
  ConformanceResult result;
  const bool on_cpu = device.type() == DeviceType::kCpu;
  result.name = fmt::format("{} [{}]", describe_case(trial.problem.c), on_cpu ? isa : "cuda");
  Verdict verdict(result);
  BackendContext context;
  context.requirements = trial.problem.requirements;
  context.device = &device;
  context.split = trial.problem.c.split;
  context.cascade = trial.problem.c.cascade;
  context.isa = isa;
  std::optional<Output> first;
  const std::vector<int> one = {1};
  for (const int threads : on_cpu ? run.options.threads : one) {
    ThreadPool pool(threads);
    context.pool = &pool;
    auto finding = examine(run, trial, context, verdict);
    if (!finding.ok()) {
      if (finding.status().code() == StatusCode::kUnsupported && !first &&
          result.outcome == ConformanceOutcome::kPassed) {
        result.outcome = ConformanceOutcome::kRefused;
        result.detail = finding.status().message();
      }
      verdict.fail("{}", finding.status().message());
      return result;
    }
    if (first && finding->batch_invariant) {
      expect_same_bits(trial.problem, finding->output, *first, 0,
                       fmt::format("on {} threads", threads), verdict);
    }
    if (!first) first = std::move(finding->output);
  }
  return result;
}

}  // namespace

std::vector<ConformanceResult> run_conformance_case(const AttentionRegistry& registry,
                                                    std::string_view backend,
                                                    const ConformanceCase& c,
                                                    const ConformanceOptions& options) {
  const std::unique_ptr<Device> cpu = make_cpu_device();
  Device& device = options.device != nullptr ? *options.device : *cpu;
  const Trial trial = prepare(registry, c, device.type(), options.seed);
  std::vector<ConformanceResult> results;
  for (const std::string& isa : options.isas) {
    results.push_back(run_trial({registry, backend, options}, trial, device, isa));
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
  const std::unique_ptr<Device> cpu = make_cpu_device();
  Device& device = options.device != nullptr ? *options.device : *cpu;
  const std::vector<ConformanceCase> cases = conformance_cases(options.level, device.type());
  // The reference takes most of the time, so some cases are prepared at once.
  ThreadPool pool(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  const auto at_once = static_cast<size_t>(2 * pool.num_threads());
  std::vector<ConformanceResult> results;
  for (size_t begin = 0; begin < cases.size(); begin += at_once) {
    std::vector<Trial> trials(std::min(at_once, cases.size() - begin));
    pool.parallel_for(static_cast<int64_t>(trials.size()), 1, [&](int64_t i, int64_t, int) {
      const auto at = static_cast<size_t>(i);
      trials[at] = prepare(registry, cases[begin + at], device.type(), options.seed);
    });
    for (const Trial& trial : trials) {
      for (const std::string& isa : options.isas) {
        ConformanceResult result = run_trial({registry, backend, options}, trial, device, isa);
        if (on_result) on_result(result);
        results.push_back(std::move(result));
      }
      if (Status status = device.status(); !status.ok()) return status;
    }
  }
  return results;
}

}  // namespace tenon
