#include "sampling/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

namespace tenon {
namespace {

constexpr float kNegInf = -std::numeric_limits<float>::infinity();
constexpr float kBan = -100.0F;  // the OpenAI API's "ban" value of logit_bias

// SplitMix64's finaliser (Steele, Lea, Flood: Fast splittable pseudorandom number generators,
// 2014). Counter based: the draw of output number n is a function of (seed, n), so preemption and
// batching cannot shift it.
uint64_t mix(uint64_t value) {
  value += 0x9E3779B97F4A7C15ULL;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
  return value ^ (value >> 31);
}

// Uniform in [0, 1).
double uniform(uint64_t seed, uint64_t counter) {
  return static_cast<double>(mix(mix(seed) ^ counter) >> 11) * 0x1.0p-53;
}

// Probability ratio to the best token below which a token cannot matter before others are
// exhausted; keeps the sorted part short. exp(-20) = 2e-9.
constexpr float kFirstCut = 20.0F;

bool better(const std::pair<float, int32_t>& a, const std::pair<float, int32_t>& b) {
  return a.first != b.first ? a.first > b.first : a.second < b.second;
}

}  // namespace

int32_t argmax(std::span<const float> values) {
  // Independent lanes, so that the compiler can use vector registers; then the first index of the
  // maximum.
  constexpr size_t kLanes = 32;
  std::array<float, kLanes> best;
  best.fill(kNegInf);
  const size_t whole = values.size() / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float value = values[i + lane];
      best[lane] = value > best[lane] ? value : best[lane];
    }
  }
  float top = kNegInf;
  for (const float value : best) top = std::max(top, value);
  for (size_t i = whole; i < values.size(); ++i) top = values[i] > top ? values[i] : top;
  if (top == kNegInf) return -1;
  const auto found = std::find(values.begin(), values.end(), top);
  return static_cast<int32_t>(found - values.begin());
}

RequestSampler::RequestSampler(SamplingParams params,
                               std::span<const int32_t> prompt,
                               std::span<const int32_t> end_tokens,
                               uint64_t fallback_seed)
    : params_(std::move(params)),
      end_tokens_(end_tokens.begin(), end_tokens.end()),
      seed_(params_.seed ? static_cast<uint64_t>(*params_.seed) : fallback_seed) {
  if (params_.repetition_penalty != 1.0F) {
    for (const int32_t token : prompt) {
      if (in_seen_.emplace(token, true).second) seen_.push_back(token);
    }
  }
}

void RequestSampler::accept(int32_t token) {
  ++num_accepted_;
  if (params_.presence_penalty != 0.0F || params_.frequency_penalty != 0.0F)
    ++output_counts_[token];
  if (params_.repetition_penalty != 1.0F && in_seen_.emplace(token, true).second) {
    seen_.push_back(token);
  }
}

bool RequestSampler::is_eos(int32_t token) const {
  return std::find(end_tokens_.begin(), end_tokens_.end(), token) != end_tokens_.end();
}

bool RequestSampler::ends_with(int32_t token) const {
  const auto& stops = params_.stop_token_ids;
  if (std::find(stops.begin(), stops.end(), token) != stops.end()) return true;
  return !params_.ignore_eos && is_eos(token);
}

bool RequestSampler::adjusts_logits() const {
  return !params_.logit_bias.empty() || num_accepted_ < params_.min_tokens || !seen_.empty() ||
         !output_counts_.empty();
}

void RequestSampler::adjust(std::span<float> logits) const {
  const auto at = [&](int32_t token) -> float& { return logits[static_cast<size_t>(token)]; };
  for (const auto& [token, bias] : params_.logit_bias) {
    at(token) = bias <= kBan ? kNegInf : at(token) + bias;
  }
  if (num_accepted_ < params_.min_tokens) {
    for (const int32_t token : params_.stop_token_ids) at(token) = kNegInf;
    if (!params_.ignore_eos) {
      for (const int32_t token : end_tokens_) at(token) = kNegInf;
    }
  }
  for (const int32_t token : seen_) {
    float& logit = at(token);
    logit = logit > 0 ? logit / params_.repetition_penalty : logit * params_.repetition_penalty;
  }
  for (const auto& [token, count] : output_counts_) {
    at(token) -= params_.presence_penalty + params_.frequency_penalty * static_cast<float>(count);
  }
}

int32_t RequestSampler::draw(std::span<const float> logits, SamplerScratch& scratch) const {
  const int32_t best = argmax(logits);
  if (best < 0) return -1;
  const float top = logits[static_cast<size_t>(best)];
  if (!std::isfinite(top)) return top > 0 ? best : -1;  // +inf: that token, with certainty
  const float inverse_temperature = 1.0F / params_.temperature;
  auto& candidates = scratch.candidates;
  const auto vocab = static_cast<int32_t>(logits.size());
  const int32_t top_k = params_.top_k <= 0 || params_.top_k >= vocab ? 0 : params_.top_k;

  // Collects (scaled logit, id) above `cut` below the best and sorts them, best first.
  const auto collect = [&](float cut) {
    candidates.clear();
    for (int32_t id = 0; id < vocab; ++id) {
      const float scaled = (logits[static_cast<size_t>(id)] - top) * inverse_temperature;
      if (scaled >= -cut) candidates.emplace_back(scaled, id);
    }
  };
  const bool sorted = top_k > 0 || params_.top_p < 1.0F;
  // min_p keeps tokens whose probability is at least min_p times the best one's: a cut in logit
  // space.
  const float min_p_cut =
      params_.min_p > 0.0F ? -std::log(params_.min_p) : std::numeric_limits<float>::infinity();
  // The cut that keeps all that matters. top_p refers to the mass of what top_k leaves, so with
  // both of them min_p has to wait until the end. (A cut of infinity would admit -inf.)
  const bool min_p_last = top_k > 0 && params_.top_p < 1.0F;
  constexpr float kEverything = std::numeric_limits<float>::max();
  const float all = min_p_last ? kEverything : std::min(min_p_cut, kEverything);
  const float first_cut = sorted ? std::min(kFirstCut, all) : all;
  collect(first_cut);
  if (top_k > 0 && static_cast<int32_t>(candidates.size()) < top_k && first_cut < all) {
    collect(all);
  }
  if (top_k > 0 && static_cast<int32_t>(candidates.size()) > top_k) {
    std::nth_element(candidates.begin(), candidates.begin() + top_k, candidates.end(), better);
    candidates.resize(static_cast<size_t>(top_k));
  }
  double total = 0;
  if (sorted) std::sort(candidates.begin(), candidates.end(), better);
  for (const auto& [scaled, id] : candidates) total += std::exp(static_cast<double>(scaled));
  if (params_.top_p < 1.0F) {
    // The mass that top_p refers to is that of all tokens left by top_k.
    double mass = total;
    if (top_k == 0) {
      mass = 0;
      for (const float logit : logits) {
        mass += std::exp(static_cast<double>((logit - top) * inverse_temperature));
      }
      if (total < mass * static_cast<double>(params_.top_p) && first_cut < all) {
        collect(all);  // a flat distribution: the short list does not reach top_p
        std::sort(candidates.begin(), candidates.end(), better);
      }
    }
    double kept = 0;
    size_t count = 0;
    while (count < candidates.size()) {
      kept += std::exp(static_cast<double>(candidates[count].first));
      ++count;
      if (kept >= mass * static_cast<double>(params_.top_p)) break;
    }
    candidates.resize(std::max<size_t>(1, count));
    total = kept;
  }
  if (sorted && params_.min_p > 0.0F) {
    while (candidates.size() > 1 && candidates.back().first < -min_p_cut) {
      total -= std::exp(static_cast<double>(candidates.back().first));
      candidates.pop_back();
    }
  }
  double point = uniform(seed_, static_cast<uint64_t>(num_accepted_)) * total;
  for (const auto& [scaled, id] : candidates) {
    point -= std::exp(static_cast<double>(scaled));
    if (point < 0) return id;
  }
  return candidates.back().second;  // rounding left a sliver behind the last one
}

Result<int32_t> RequestSampler::sample(std::span<const float> logits,
                                       SamplerScratch& scratch) const {
  std::span<const float> final_logits = logits;
  if (adjusts_logits()) {
    scratch.logits.assign(logits.begin(), logits.end());
    adjust(scratch.logits);
    final_logits = scratch.logits;
  }
  const int32_t token = params_.greedy() ? argmax(final_logits) : draw(final_logits, scratch);
  if (token < 0 && argmax(logits) >= 0) {
    return invalid_argument(
        "no token is left to sample: logit_bias, or stop_token_ids with min_tokens, bans all");
  }
  if (token < 0)
    return internal_error("no token can be sampled: the model's logits are not numbers");
  return token;
}

}  // namespace tenon
