// An Engine without a model: tokens come from a script, one per request and step, on a thread of
// its own. Thread safe, as Engine is.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <mutex>
#include <new>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/status.h"
#include "tenon/engine.h"

namespace tenon::testing {

class FakeEngine final : public Engine {
 public:
  // The token of a request's given position.
  using Script = std::function<int32_t(const GenerationRequest& request, int32_t position)>;
  static constexpr int32_t kVocabSize = 259;
  static constexpr int32_t kEos = 258;

  explicit FakeEngine(int32_t max_model_len = 200) {
    info_.architecture = "FakeForCausalLM";
    info_.vocab_size = kVocabSize;
    info_.max_model_len = max_model_len;
    info_.eos_token_ids = {kEos};
    info_.device = "cpu";
    info_.attention_backend = "fake";
    info_.attention_reason = "a \"test\"";
    info_.block_size = 16;
    info_.num_kv_blocks = 100;
    info_.kv_cache_dtype = "f16";
    stats_.kv_blocks_total = info_.num_kv_blocks;
    stats_.time_to_first_token = {{0.1, 1.0}, {0, 0, 0}, 0};
    thread_ = std::thread([this] { run(); });
  }
  ~FakeEngine() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  // 'a', 'b', 'c', ... unless changed. Set before the first request.
  void set_script(Script script) { script_ = std::move(script); }
  void set_step_time(std::chrono::microseconds time) { step_time_.store(time); }
  void set_max_queue(size_t count) { max_queue_ = count; }
  // Steps stop until release().
  void hold() { held_.store(true); }
  void release() {
    held_.store(false);
    wake_.notify_all();
  }
  // submit() throws once that many requests are running.
  void throw_at(size_t count) { throw_at_ = count; }
  void die() { healthy_.store(false); }
  void fail_next(Status status) {
    std::lock_guard lock(mutex_);
    failure_ = std::move(status);
  }

  Result<RequestId> submit(GenerationRequest request, OutputCallback on_output) override {
    TENON_RETURN_IF_ERROR(request.sampling.validate(kVocabSize));
    std::lock_guard lock(mutex_);
    if (requests_.size() >= throw_at_) throw std::bad_alloc();
    if (requests_.size() >= max_queue_) return resource_exhausted("the queue is full");
    seen_.push_back(request);
    requests_.push_back({++last_id_, std::move(request), std::move(on_output), 0});
    stats_.running = static_cast<int64_t>(requests_.size());
    wake_.notify_all();
    return last_id_;
  }
  void abort(RequestId id) override {
    std::lock_guard lock(mutex_);
    aborts_.insert(id);
    wake_.notify_all();
  }
  [[nodiscard]] const ModelInfo& model_info() const override { return info_; }
  [[nodiscard]] EngineStats stats() const override {
    std::lock_guard lock(mutex_);
    return stats_;
  }
  [[nodiscard]] bool healthy() const override { return healthy_.load(); }

  [[nodiscard]] size_t active() const {
    std::lock_guard lock(mutex_);
    return requests_.size();
  }
  // Every request that was accepted.
  [[nodiscard]] std::vector<GenerationRequest> seen() const {
    std::lock_guard lock(mutex_);
    return seen_;
  }

 private:
  struct Running {
    RequestId id;
    GenerationRequest request;
    OutputCallback on_output;
    int32_t position;
  };
  using Delivery = std::pair<OutputCallback, RequestOutput>;

  void run() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      wake_.wait(lock, [this] {
        return stopping_ || !aborts_.empty() || (!requests_.empty() && !held_.load());
      });
      std::vector<Delivery> deliveries;
      for (auto it = requests_.begin(); it != requests_.end();) it = step(it, deliveries);
      aborts_.clear();
      stats_.running = static_cast<int64_t>(requests_.size());
      stats_.kv_blocks_used = stats_.running;
      ++stats_.steps;
      lock.unlock();
      for (auto& [callback, output] : deliveries) callback(std::move(output));
      deliveries.clear();
      std::this_thread::sleep_for(step_time_.load());
      lock.lock();
    }
    for (Running& running : requests_) {
      RequestOutput output;
      output.id = running.id;
      output.finish_reason = FinishReason::kAbort;
      running.on_output(std::move(output));
    }
  }

  std::list<Running>::iterator step(std::list<Running>::iterator it,
                                    std::vector<Delivery>& deliveries) {
    const bool aborted = aborts_.count(it->id) > 0;
    if (held_.load() && !aborted) return std::next(it);
    RequestOutput output = aborted ? RequestOutput() : next_output(*it);
    output.id = it->id;
    if (aborted) output.finish_reason = FinishReason::kAbort;
    const bool last = output.finish_reason != FinishReason::kNone;
    deliveries.emplace_back(it->on_output, std::move(output));
    return last ? requests_.erase(it) : std::next(it);
  }

  RequestOutput next_output(Running& running) {
    const SamplingParams& sampling = running.request.sampling;
    RequestOutput output;
    if (!failure_.ok()) {
      output.finish_reason = FinishReason::kError;
      output.error = std::exchange(failure_, Status());
      return output;
    }
    if (running.position == 0) {
      stats_.prompt_tokens += running.request.prompt.size();
      ++stats_.time_to_first_token.counts[0];
      if (sampling.prompt_logprobs) {
        for (const int32_t id : running.request.prompt) {
          output.prompt_logprobs.push_back(logprobs_of(id, *sampling.prompt_logprobs));
        }
      }
    }
    if (running.position >= sampling.max_tokens) {
      output.finish_reason = FinishReason::kLength;
      return output;
    }
    const int32_t token = script_(running.request, running.position++);
    output.tokens = {token};
    ++stats_.generation_tokens;
    if (sampling.logprobs) output.logprobs = {logprobs_of(token, *sampling.logprobs)};
    const bool eos = token == kEos && !sampling.ignore_eos;
    const bool stops =
        std::count(sampling.stop_token_ids.begin(), sampling.stop_token_ids.end(), token) > 0;
    if (eos || stops) {
      output.finish_reason = FinishReason::kStop;
      output.stop_token = token;
      output.stopped_by_eos = eos;
    } else if (running.position >= sampling.max_tokens) {
      output.finish_reason = FinishReason::kLength;
    }
    return output;
  }

  // The token itself has -0.5, its successors -1.5, -2.5, ...
  static TokenLogprobs logprobs_of(int32_t token, int32_t count) {
    TokenLogprobs result{token, -0.5F, {}};
    for (int32_t i = 0; i < count; ++i) {
      result.top.emplace_back((token + i) % kVocabSize, -0.5F - static_cast<float>(i));
    }
    return result;
  }

  ModelInfo info_;
  Script script_ = [](const GenerationRequest&, int32_t position) { return 'a' + position % 26; };
  std::atomic<std::chrono::microseconds> step_time_{std::chrono::microseconds(100)};
  std::atomic<bool> held_{false};
  std::atomic<bool> healthy_{true};
  size_t max_queue_ = 4096;
  size_t throw_at_ = 1 << 20;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::list<Running> requests_;
  std::set<RequestId> aborts_;
  std::vector<GenerationRequest> seen_;
  RequestId last_id_ = 0;
  EngineStats stats_;
  Status failure_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tenon::testing
