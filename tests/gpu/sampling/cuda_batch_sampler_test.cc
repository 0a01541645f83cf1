// The CUDA sampler against RequestSampler and make_logprobs on the same logits. Tokens must be
// equal, not nearly so: both draw in whole numbers (sampling/draw.h).
#include "sampling/cuda/cuda_batch_sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "sampling/logprobs.h"
#include "sampling/sampler.h"
#include "tests/gpu.h"

namespace tenon {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNaN = std::nanf("");

using Rng = std::mt19937_64;

int32_t pick(Rng& rng, int32_t count) {
  return static_cast<int32_t>(rng() % static_cast<uint64_t>(count));
}
template <typename T>
T one_of(Rng& rng, std::initializer_list<T> values) {
  return values.begin()[pick(rng, static_cast<int32_t>(values.size()))];
}

constexpr int kKindsOfLogits = 14;

std::vector<float> random_logits(Rng& rng, int kind, int32_t vocab) {
  std::normal_distribution<float> normal;
  std::vector<float> row(static_cast<size_t>(vocab));
  const float scale = one_of(rng, {0.001F, 0.5F, 2.0F, 5.0F, 12.0F});
  for (float& value : row) value = normal(rng) * scale;
  const auto some = [&](float value, int share) {
    for (float& v : row) {
      if (pick(rng, share) == 0) v = value;
    }
  };
  switch (kind) {
    case 0:
    case 1:
    case 2: break;  // as they are
    case 3:         // many equal values
      for (float& value : row) value = std::round(value);
      break;
    case 4: std::fill(row.begin(), row.end(), one_of(rng, {0.0F, -3.5F, 20.0F})); break;
    case 5: some(-kInf, 2); break;
    case 6: some(kNaN, 3); break;
    case 7: row[static_cast<size_t>(pick(rng, vocab))] = kInf; break;
    case 8: some(kInf, 5); break;
    case 9: std::fill(row.begin(), row.end(), -kInf); break;
    case 10:
      std::fill(row.begin(), row.end(), kNaN);
      some(-kInf, 3);
      break;
    case 11:  // differences overflow
      for (float& value : row) value *= 1e37F;
      break;
    case 12:  // a peak over a flat floor, and zeros of both signs
      for (float& value : row) value = one_of(rng, {0.0F, -0.0F});
      row[static_cast<size_t>(pick(rng, vocab))] = one_of(rng, {0.0F, 15.0F, 29.0F});
      break;
    case 13:  // one number only
      std::fill(row.begin(), row.end(), one_of(rng, {kNaN, -kInf}));
      row[static_cast<size_t>(pick(rng, vocab))] = -7.0F;
      break;
  }
  return row;
}

SamplingParams random_params(Rng& rng, int32_t vocab) {
  SamplingParams p;
  const auto rarely = [&](int share) { return pick(rng, share) == 0; };
  p.temperature = one_of(rng, {0.0F, 1e-5F, 0.1F, 0.7F, 1.0F, 1.0F, 1.3F, 2.0F});
  if (!rarely(3)) p.top_k = one_of(rng, {-1, 1, 2, 5, 50, 1000, vocab - 1, vocab, vocab + 7});
  if (!rarely(3)) p.top_p = one_of(rng, {0.0F, 1e-6F, 0.1F, 0.5F, 0.9F, 0.95F, 0.999F});
  if (rarely(2)) p.min_p = one_of(rng, {1e-9F, 0.001F, 0.05F, 0.3F, 1.0F});
  if (rarely(3)) p.repetition_penalty = one_of(rng, {0.5F, 1.1F, 2.0F});
  if (rarely(3)) p.presence_penalty = one_of(rng, {-2.0F, 0.3F, 1.5F});
  if (rarely(3)) p.frequency_penalty = one_of(rng, {-0.4F, 0.2F, 1.1F});
  if (rarely(4)) {
    const int count = one_of(rng, {1, 3, 40});
    for (int i = 0; i < count; ++i) {
      p.logit_bias.emplace_back(pick(rng, vocab), one_of(rng, {-100.0F, -5.0F, 2.5F, 100.0F}));
    }
  }
  p.max_tokens = 100;
  if (rarely(3)) p.min_tokens = 1 + pick(rng, 5);
  if (rarely(3)) {
    for (int i = 0; i < 3; ++i) p.stop_token_ids.push_back(pick(rng, vocab));
  }
  p.ignore_eos = rarely(2);
  p.seed = static_cast<int64_t>(rng());
  if (rarely(3)) p.logprobs = one_of(rng, {0, 1, 5, 20});
  return p;
}

// log(sum(exp(row))) over what is a number, in double.
double log_sum_exp(const std::vector<float>& row) {
  double top = -kInf;
  for (const float v : row) top = std::max(top, std::isnan(v) ? -kInf : static_cast<double>(v));
  if (std::isinf(top)) return top;
  double sum = 0;
  for (const float v : row) sum += std::isnan(v) ? 0 : std::exp(v - top);
  return top + std::log(sum);
}

// A request with its prompt, the tokens it has produced so far, and its sampler on the host.
struct Request {
  Request(SamplingParams p, std::vector<int32_t> prompt_ids, uint64_t seed)
      : params(std::move(p)),
        tokens(std::move(prompt_ids)),
        num_prompt(static_cast<int32_t>(tokens.size())),
        sampler(params, tokens, std::vector<int32_t>{0}, seed) {}
  void accept(int32_t token) {
    tokens.push_back(token);
    sampler.accept(token);
  }
  SamplingParams params;
  std::vector<int32_t> tokens;
  int32_t num_prompt;
  RequestSampler sampler;
};

std::string describe(const SamplingParams& p) {
  return fmt::format(
      "T {} k {} p {} min_p {} rep {} pres {} freq {} bias {} min_tokens {} stops {} logprobs {}",
      p.temperature, p.top_k, p.top_p, p.min_p, p.repetition_penalty, p.presence_penalty,
      p.frequency_penalty, p.logit_bias.size(), p.min_tokens, p.stop_token_ids.size(),
      p.logprobs.value_or(-1));
}

class Harness {
 public:
  Harness(CudaDevice* device, BatchSamplerLimits limits) : device_(device), limits_(limits) {
    sampler = make_cuda_batch_sampler(limits, device).value();
    const size_t bytes = static_cast<size_t>(limits.max_rows) *
                         (static_cast<size_t>(limits.vocab_size) + 3) * sizeof(float);
    for (int i = 0; i < limits.max_steps; ++i) {
      memory_.push_back(device->allocate(bytes).value());
    }
  }

  // `padding`: elements between rows.
  TensorView upload(const std::vector<std::vector<float>>& rows, int64_t padding = 0) {
    Buffer& memory = memory_[next_];
    next_ = (next_ + 1) % memory_.size();
    const int64_t vocab = limits_.vocab_size;
    std::vector<float> dense(rows.size() * static_cast<size_t>(vocab + padding), kInf);
    for (size_t r = 0; r < rows.size(); ++r) {
      std::copy(rows[r].begin(), rows[r].end(),
                dense.begin() + static_cast<int64_t>(r) * (vocab + padding));
    }
    device_->write(memory.data(), dense.data(), dense.size() * sizeof(float));
    TensorView view = TensorView::dense(memory.data(), DType::kF32,
                                        {static_cast<int64_t>(rows.size()), vocab + padding});
    return view.columns(0, vocab);
  }

  std::vector<SampledToken> step(const TensorView& logits, std::span<const SamplingRow> rows) {
    sampler->begin();
    sampler->sample(logits, rows);
    sampler->end();
    auto result = sampler->collect();
    EXPECT_TRUE(result.ok()) << result.status().message();
    if (!result.ok()) return {};
    return {result->begin(), result->end()};
  }

  std::unique_ptr<BatchSampler> sampler;

 private:
  CudaDevice* device_;
  BatchSamplerLimits limits_;
  std::vector<Buffer> memory_;
  size_t next_ = 0;
};

void expect_logprobs(const TokenLogprobs& got,
                     const std::vector<float>& logits,
                     int32_t token,
                     int32_t num_top,
                     const std::string& what) {
  const auto sum = static_cast<float>(log_sum_exp(logits));
  // make_logprobs orders numbers; NaN is nothing here.
  std::vector<float> numbers = logits;
  size_t valid = 0;
  for (float& v : numbers) {
    valid += std::isnan(v) ? 0 : 1;
    if (std::isnan(v)) v = -kInf;
  }
  const TokenLogprobs want = make_logprobs(numbers, sum, token, num_top);
  const auto near = [&](float a, float b) {
    return a == b || std::abs(a - b) <= 4e-6F * (1.0F + std::abs(a) + std::abs(sum));
  };
  EXPECT_EQ(got.token, token) << what;
  EXPECT_TRUE(near(got.logprob, want.logprob))
      << what << ": " << got.logprob << " for " << want.logprob;
  const size_t count = std::min(want.top.size(), valid);
  ASSERT_EQ(got.top.size(), count) << what;
  for (size_t i = 0; i < count; ++i) {
    if (valid == logits.size()) {
      EXPECT_EQ(got.top[i].first, want.top[i].first) << what << " top " << i;
    }
    EXPECT_TRUE(near(got.top[i].second, want.top[i].second)) << what << " top " << i;
  }
}

// Compares one result with the host's; true if they agree.
bool expect_same(const SampledToken& got,
                 const Request& request,
                 const std::vector<float>& logits,
                 SamplerScratch& scratch,
                 const std::string& what) {
  const auto want = request.sampler.sample(logits, scratch);
  if (want.ok()) {
    EXPECT_TRUE(got.error.ok()) << what << ": " << got.error.message();
    EXPECT_EQ(got.token, *want) << what;
    if (got.token != *want) return false;
    if (request.params.logprobs) {
      expect_logprobs(got.logprobs, logits, got.token, *request.params.logprobs, what);
    } else {
      EXPECT_EQ(got.logprobs.token, -1) << what;
    }
    return true;
  }
  EXPECT_EQ(got.token, -1) << what;
  EXPECT_EQ(got.error.code(), want.status().code()) << what;
  EXPECT_EQ(got.error.message(), want.status().message()) << what;
  return got.token == -1;
}

Request random_request(Rng& rng, int32_t vocab) {
  std::vector<int32_t> prompt(static_cast<size_t>(1 + pick(rng, 30)));
  for (int32_t& token : prompt) token = pick(rng, vocab);
  Request request(random_params(rng, vocab), prompt, rng());
  const int produced = pick(rng, 12);
  for (int i = 0; i < produced; ++i) request.accept(pick(rng, std::min(vocab, 20)));
  return request;
}

class RandomRows : public ::testing::TestWithParam<std::tuple<int32_t, int32_t>> {};

TEST_P(RandomRows, AsOnTheHost) {
  TENON_GPU_OR_SKIP(device);
  const auto [vocab, num_rows] = GetParam();
  Rng rng(static_cast<uint64_t>(vocab) * 31 + 5);
  Harness harness(device, {num_rows, num_rows, vocab, 1});
  SamplerScratch scratch;
  const int num_steps = vocab > 20000 ? 2 : 12;
  int mistakes = 0;
  for (int s = 0; s < num_steps; ++s) {
    std::vector<Request> requests;
    std::vector<std::vector<float>> logits;
    std::vector<SamplingRow> rows;
    for (int32_t r = 0; r < num_rows; ++r) {
      requests.push_back(random_request(rng, vocab));
      logits.push_back(random_logits(rng, (s * num_rows + r) % kKindsOfLogits, vocab));
    }
    for (int32_t r = 0; r < num_rows; ++r) {
      const Request& request = requests[static_cast<size_t>(r)];
      // Slots in another order than rows.
      const int32_t state = num_rows - 1 - r;
      harness.sampler->bind(state, request.sampler, request.tokens, request.num_prompt);
      rows.push_back({state, &request.sampler, request.sampler.num_accepted()});
    }
    const TensorView view = harness.upload(logits, s % 3 == 1 ? 3 : 0);
    const auto results = harness.step(view, rows);
    ASSERT_EQ(results.size(), rows.size());
    for (size_t r = 0; r < rows.size() && mistakes < 10; ++r) {
      const std::string what = fmt::format("vocab {} step {} row {} kind {}: {}", vocab, s, r,
                                           (s * num_rows + static_cast<int>(r)) % kKindsOfLogits,
                                           describe(requests[r].params));
      if (!expect_same(results[r], requests[r], logits[r], scratch, what)) ++mistakes;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Vocabularies,
                         RandomRows,
                         ::testing::Values(std::tuple{1, 40},
                                           std::tuple{5, 256},
                                           std::tuple{33, 256},
                                           std::tuple{1000, 300},
                                           std::tuple{4099, 200},
                                           std::tuple{32000, 64},
                                           std::tuple{50257, 64},
                                           std::tuple{128256, 48},
                                           std::tuple{262144, 16}));

// Requests over many steps, three of them in flight: the host learns a token two steps late.
TEST(CudaBatchSampler, StatesOverStepsInFlight) {
  TENON_GPU_OR_SKIP(device);
  constexpr int32_t kVocab = 700;
  constexpr int32_t kRequests = 24;
  constexpr int kSteps = 30;
  constexpr int kInFlight = 3;
  Rng rng(77);
  Harness harness(device, {kRequests, kRequests, kVocab, kInFlight});
  SamplerScratch scratch;
  std::vector<Request> requests;
  for (int32_t i = 0; i < kRequests; ++i) {
    SamplingParams params = random_params(rng, kVocab);
    params.presence_penalty = one_of(rng, {0.0F, 0.5F, 2.0F});
    params.frequency_penalty = one_of(rng, {0.0F, 0.5F, -0.2F});
    params.repetition_penalty = one_of(rng, {1.0F, 1.5F});
    requests.emplace_back(params, std::vector<int32_t>{3, pick(rng, kVocab)}, rng());
    harness.sampler->bind(i, requests.back().sampler, requests.back().tokens,
                          requests.back().num_prompt);
  }
  std::vector<std::vector<std::vector<float>>> logits(kSteps);
  std::vector<std::vector<int32_t>> order(kSteps);
  Buffer ids = device->allocate(2 * kRequests * sizeof(int32_t)).value();
  for (int s = 0; s < kSteps + kInFlight - 1; ++s) {
    if (s < kSteps) {
      // Each step another subset in another order, in two calls.
      for (int32_t i = 0; i < kRequests; ++i) {
        if (pick(rng, 5) != 0) order[s].push_back(i);
      }
      std::shuffle(order[s].begin(), order[s].end(), rng);
      std::vector<SamplingRow> rows;
      for (const int32_t i : order[s]) {
        int32_t accepted = 0;
        for (int e = 0; e < s; ++e) {
          accepted += static_cast<int32_t>(std::count(order[e].begin(), order[e].end(), i));
        }
        rows.push_back({i, &requests[static_cast<size_t>(i)].sampler, accepted});
        logits[s].push_back(random_logits(rng, 0, 12));  // few tokens often: penalties matter
        logits[s].back().resize(kVocab, -8.0F);
      }
      const TensorView view = harness.upload(logits[s]);
      const auto half = static_cast<int64_t>(rows.size() / 2);
      const std::span<const SamplingRow> all(rows);
      harness.sampler->begin();
      harness.sampler->sample(view.slice(0, half), all.first(static_cast<size_t>(half)));
      harness.sampler->sample(view.slice(half, static_cast<int64_t>(rows.size()) - half),
                              all.subspan(static_cast<size_t>(half)));
      harness.sampler->end();
    }
    const int done = s - (kInFlight - 1);
    if (done < 0) continue;
    auto results = harness.sampler->collect();
    ASSERT_TRUE(results.ok()) << results.status().message();
    ASSERT_EQ(results->size(), order[done].size());
    for (size_t r = 0; r < results->size(); ++r) {
      Request& request = requests[static_cast<size_t>(order[done][r])];
      const SampledToken& got = (*results)[r];
      ASSERT_TRUE(
          expect_same(got, request, logits[done][r], scratch,
                      fmt::format("step {} row {}: {}", done, r, describe(request.params))));
      request.accept(got.token);
    }
  }
  // What resolve() puts in is the last token of each.
  std::vector<int32_t> input;
  for (int32_t i = 0; i < kRequests; ++i) input.push_back(~i);
  for (int32_t i = 0; i < kRequests; ++i) input.push_back(i * 11);
  const std::span<int32_t> device_ids(ids.as<int32_t>(), input.size());
  const auto check = [&] {
    std::vector<int32_t> output(input.size());
    device->read(output.data(), ids.data(), output.size() * sizeof(int32_t));
    for (int32_t i = 0; i < kRequests; ++i) {
      const Request& request = requests[static_cast<size_t>(i)];
      if (request.sampler.num_accepted() > 0) {
        EXPECT_EQ(output[static_cast<size_t>(i)], request.tokens.back());
      }
      EXPECT_EQ(output[static_cast<size_t>(kRequests + i)], i * 11);
    }
  };
  device->write(ids.data(), input.data(), input.size() * sizeof(int32_t));
  harness.sampler->resolve(device_ids);
  check();
  // The same inside a graph.
  ASSERT_TRUE(device->begin_capture().ok());
  harness.sampler->resolve(device_ids);
  auto graph = device->end_capture();
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  device->write(ids.data(), input.data(), input.size() * sizeof(int32_t));
  (*graph)->launch();
  check();
}

// A slot that is bound again knows nothing of the request before; a request that comes back after
// preemption draws as if it had never been away.
TEST(CudaBatchSampler, RebindingAStateForgetsThePenalties) {
  TENON_GPU_OR_SKIP(device);
  Harness harness(device, {1, 2, 50, 1});
  SamplingParams params;
  params.temperature = 0.0F;
  params.presence_penalty = 2.0F;
  std::vector<float> logits(50, 0.0F);
  logits[7] = 1.5F;
  logits[9] = 1.0F;
  Request request(params, {1}, 0);
  const TensorView view = harness.upload({logits});
  const auto next = [&](int32_t state, int32_t accepted) {
    const std::vector<SamplingRow> rows = {{state, &request.sampler, accepted}};
    return harness.step(view, rows).at(0).token;
  };
  harness.sampler->bind(0, request.sampler, request.tokens, 1);
  EXPECT_EQ(next(0, 0), 7);
  EXPECT_EQ(next(0, 1), 9);
  EXPECT_EQ(next(0, 2), 0);
  harness.sampler->bind(0, request.sampler, request.tokens, 1);
  EXPECT_EQ(next(0, 0), 7);
  harness.sampler->bind(1, request.sampler, std::vector<int32_t>{1, 7, 9}, 1);
  EXPECT_EQ(next(1, 2), 0);
}

// A row alone, and among others in another place.
TEST(CudaBatchSampler, BatchDoesNotMatter) {
  TENON_GPU_OR_SKIP(device);
  constexpr int32_t kVocab = 20011;
  constexpr int32_t kRows = 90;
  Rng rng(3);
  Harness harness(device, {kRows, kRows, kVocab, 1});
  std::vector<Request> requests;
  std::vector<std::vector<float>> logits;
  for (int32_t r = 0; r < kRows; ++r) {
    SamplingParams params;  // flat: many tokens are possible
    params.temperature = 2.0F;
    params.top_p = one_of(rng, {1.0F, 0.99F});
    requests.emplace_back(params, std::vector<int32_t>{1}, rng());
    logits.push_back(random_logits(rng, 0, kVocab));
  }
  std::vector<int32_t> alone;
  for (int32_t r = 0; r < kRows; ++r) {
    const Request& request = requests[static_cast<size_t>(r)];
    harness.sampler->bind(r, request.sampler, request.tokens, 1);
    const std::vector<SamplingRow> rows = {{r, &request.sampler, 4}};
    alone.push_back(harness.step(harness.upload({logits[static_cast<size_t>(r)]}), rows)[0].token);
  }
  std::vector<int32_t> order(kRows);
  for (int32_t r = 0; r < kRows; ++r) order[static_cast<size_t>(r)] = r;
  std::shuffle(order.begin(), order.end(), rng);
  std::vector<SamplingRow> rows;
  std::vector<std::vector<float>> shuffled;
  for (const int32_t r : order) {
    rows.push_back({r, &requests[static_cast<size_t>(r)].sampler, 4});
    shuffled.push_back(logits[static_cast<size_t>(r)]);
  }
  const auto together = harness.step(harness.upload(shuffled), rows);
  for (size_t i = 0; i < order.size(); ++i) {
    EXPECT_EQ(together[i].token, alone[static_cast<size_t>(order[i])]);
  }
}

// The distribution itself, against probabilities in double; and against top_p on them.
TEST(CudaBatchSampler, DrawsFollowTheDistribution) {
  TENON_GPU_OR_SKIP(device);
  constexpr int32_t kVocab = 3000;  // the weight lies on tokens of several blocks
  constexpr int32_t kRows = 256;
  constexpr int kSteps = 80;
  const std::vector<int32_t> ids = {2, 377, 800, 1204, 1800, 2300, 2301, 2999};
  const std::vector<double> shares = {0.3, 0.2, 0.15, 0.12, 0.1, 0.06, 0.04, 0.03};
  for (const float top_p : {1.0F, 0.85F}) {  // 0.85: the first five (0.87) stay
    const size_t num_kept = top_p < 1.0F ? 5 : ids.size();
    double kept = 0;
    for (size_t i = 0; i < num_kept; ++i) kept += shares[i];
    Harness harness(device, {kRows, kRows, kVocab, 1});
    SamplingParams params;
    params.temperature = 0.5F;
    params.top_p = top_p;
    std::vector<float> row(kVocab, -kInf);
    for (size_t i = 0; i < ids.size(); ++i) {
      row[static_cast<size_t>(ids[i])] = static_cast<float>(0.5 * std::log(shares[i]));
    }
    std::vector<Request> requests;
    std::vector<SamplingRow> rows;
    requests.reserve(kRows);
    for (int32_t r = 0; r < kRows; ++r) {
      requests.emplace_back(params, std::vector<int32_t>{1}, static_cast<uint64_t>(r));
      harness.sampler->bind(r, requests.back().sampler, requests.back().tokens, 1);
    }
    const TensorView view = harness.upload(std::vector<std::vector<float>>(kRows, row));
    std::vector<double> counts(kVocab, 0.0);
    for (int s = 0; s < kSteps; ++s) {
      rows.clear();
      for (int32_t r = 0; r < kRows; ++r) {
        rows.push_back({r, &requests[static_cast<size_t>(r)].sampler, s});
      }
      for (const SampledToken& token : harness.step(view, rows)) {
        ASSERT_GE(token.token, 0);
        counts[static_cast<size_t>(token.token)] += 1;
      }
    }
    double chi_square = 0;
    double drawn = 0;
    for (size_t i = 0; i < num_kept; ++i) {
      const double expected = kRows * kSteps * shares[i] / kept;
      const double count = counts[static_cast<size_t>(ids[i])];
      chi_square += (count - expected) * (count - expected) / expected;
      drawn += count;
    }
    EXPECT_EQ(drawn, kRows * kSteps);
    EXPECT_LT(chi_square, 26.0);  // 7 degrees of freedom: above it once in 2,000 seeds
  }
}

TEST(CudaBatchSampler, LongBiasListsAndBansOfEverything) {
  TENON_GPU_OR_SKIP(device);
  constexpr int32_t kVocab = 5000;
  Harness harness(device, {3, 3, kVocab, 1});
  Rng rng(12);
  SamplerScratch scratch;
  const std::vector<float> logits = random_logits(rng, 0, kVocab);
  SamplingParams params;
  for (int32_t t = 0; t < kVocab; ++t) params.logit_bias.emplace_back(t, -100.0F);
  std::vector<Request> requests;
  requests.emplace_back(params, std::vector<int32_t>{1}, 1);  // everything
  params.logit_bias[4321].second = 1.0F;
  requests.emplace_back(params, std::vector<int32_t>{1}, 1);  // all but one
  params.logit_bias.assign({{4000, -50.0F}, {4000, 20.0F}, {17, -100.0F}, {17, 100.0F}});
  params.top_k = 3;
  requests.emplace_back(params, std::vector<int32_t>{1}, 1);  // twice the same
  std::vector<SamplingRow> rows;
  for (int32_t r = 0; r < 3; ++r) {
    const Request& request = requests[static_cast<size_t>(r)];
    harness.sampler->bind(r, request.sampler, request.tokens, 1);
    rows.push_back({r, &request.sampler, 0});
  }
  const auto results = harness.step(harness.upload({logits, logits, logits}), rows);
  for (size_t r = 0; r < 3; ++r) {
    expect_same(results[r], requests[r], logits, scratch, fmt::format("row {}", r));
  }
  EXPECT_EQ(results[0].error.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(results[1].token, 4321);
}

TEST(CudaBatchSampler, ScoresGivenTokens) {
  TENON_GPU_OR_SKIP(device);
  Rng rng(8);
  for (const int32_t vocab : {7, 50257}) {
    constexpr int32_t kRows = 290;  // more than one launch takes
    Harness harness(device, {kRows, 1, vocab, 1});
    std::vector<std::vector<float>> logits;
    std::vector<int32_t> targets;
    for (int32_t r = 0; r < kRows; ++r) {
      logits.push_back(random_logits(rng, one_of(rng, {0, 3, 5, 12}), vocab));
      targets.push_back(pick(rng, vocab));
    }
    const TensorView view = harness.upload(logits);
    std::vector<TokenLogprobs> results(kRows);
    for (const int32_t num_top : {0, 3, 20}) {
      ASSERT_TRUE(harness.sampler->score(view, targets, num_top, results).ok());
      for (size_t r = 0; r<targets.size(); r += vocab> 1000 ? 9 : 1) {
        expect_logprobs(results[r], logits[r], targets[r], num_top,
                        fmt::format("vocab {} row {} top {}", vocab, r, num_top));
      }
    }
  }
}

TEST(CudaBatchSampler, RefusesAVocabularyThatDoesNotFit) {
  TENON_GPU_OR_SKIP(device);
  const auto sampler = make_cuda_batch_sampler({1, 1, 900000, 1}, device);
  ASSERT_FALSE(sampler.ok());
  EXPECT_EQ(sampler.status().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace tenon
