// The engine thread: drains submissions, plans, runs, commits, delivers.
#include <atomic>
#include <chrono>
#include <exception>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/bounded_queue.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/setup.h"
#include "engine/stats_recorder.h"
#include "engine/step_runner.h"
#include "sampling/sampler.h"
#include "scheduler/scheduler.h"
#include "tenon/engine.h"

namespace tenon {

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone: return "none";
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kAbort: return "abort";
    case FinishReason::kError: return "error";
  }
  return "unknown";
}

namespace {

constexpr auto kIdleWait = std::chrono::milliseconds(200);

struct Submission {
  RequestId id = 0;
  GenerationRequest request;
  OutputCallback on_output;
  double arrival = 0;
};

// A request as the engine thread follows it, from its submission to its last output.
struct LiveRequest {
  LiveRequest(Submission submission, std::span<const int32_t> eos, uint64_t fallback_seed)
      : sampler(submission.request.sampling, submission.request.prompt, eos, fallback_seed),
        on_output(std::move(submission.on_output)),
        num_prompt_tokens(static_cast<int64_t>(submission.request.prompt.size())) {
    timings.arrival = submission.arrival;
    if (sampler.params().prompt_logprobs) {
      prompt_logprobs.resize(submission.request.prompt.size());
      prompt_logprobs[0].token = submission.request.prompt[0];
    }
  }
  RequestSampler sampler;
  OutputCallback on_output;
  RequestTimings timings;
  double last_token_time = 0;
  int64_t num_prompt_tokens = 0;
  int32_t num_cached_tokens = 0;
  std::vector<TokenLogprobs> prompt_logprobs;  // handed over with the first output
};

class EngineImpl final : public Engine {
 public:
  EngineImpl(EngineParts parts, const EngineConfig& config)
      : parts_(std::move(parts)),
        seed_(static_cast<uint64_t>(config.seed)),
        max_queue_(config.max_queue),
        priorities_(config.scheduling_policy == SchedulingPolicy::kPriority),
        submissions_(static_cast<size_t>(config.max_queue)),
        aborts_(SIZE_MAX),
        scheduler_(parts_.scheduler),
        max_steps_(static_cast<size_t>(parts_.scheduler.max_steps_in_flight)),
        runner_(&parts_, &scheduler_),
        stats_(parts_.info.max_model_len, scheduler_.blocks().num_blocks()),
        steps_(max_steps_) {}

  ~EngineImpl() override {
    stop_.store(true);
    submissions_.close();
    if (thread_.joinable()) thread_.join();
  }

  // Takes the last memory and starts the engine thread.
  Status start() {
    TENON_RETURN_IF_ERROR(runner_.prepare());
    thread_ = std::thread([this] { run(); });
    return ok_status();
  }

  Result<RequestId> submit(GenerationRequest request, OutputCallback on_output) override {
    TENON_RETURN_IF_ERROR(check(request));
    if (stop_.load() || !healthy_.load()) {
      return make_status(StatusCode::kUnavailable, "the engine is shutting down");
    }
    if (num_waiting_.fetch_add(1) >= max_queue_) {
      num_waiting_.fetch_sub(1);
      return resource_exhausted("the queue is full: {} requests are waiting", max_queue_);
    }
    Submission submission;
    submission.id = next_id_.fetch_add(1);
    submission.request = std::move(request);
    submission.on_output = std::move(on_output);
    submission.arrival = now_seconds();
    const RequestId id = submission.id;
    if (!submissions_.try_push(std::move(submission))) {  // it has room for all that may wait
      num_waiting_.fetch_sub(1);
      return make_status(StatusCode::kUnavailable, "the engine is shutting down");
    }
    return id;
  }

  void abort(RequestId id) override {
    (void)aborts_.try_push(RequestId{id});
    submissions_.wake();
  }

  const ModelInfo& model_info() const override { return parts_.info; }
  EngineStats stats() const override { return stats_.snapshot(); }
  bool healthy() const override { return healthy_.load(); }

 private:
  Status check(GenerationRequest& request) const {
    const ModelInfo& info = parts_.info;
    TENON_RETURN_IF_ERROR(request.sampling.validate(info.vocab_size));
    if (request.prompt.empty()) return invalid_argument("the prompt is empty").with_param("prompt");
    for (const int32_t token : request.prompt) {
      if (token < 0 || token >= info.vocab_size) {
        return invalid_argument("prompt: token id {} is not in the vocabulary of {} tokens", token,
                                info.vocab_size)
            .with_param("prompt");
      }
    }
    const auto length = static_cast<int64_t>(request.prompt.size());
    const int64_t least_output = request.sampling.max_tokens > 0 ? 1 : 0;
    if (length + least_output > info.max_model_len) {
      return invalid_argument(
                 "This model's maximum context length is {} tokens. However, the prompt has {} "
                 "tokens{}.",
                 info.max_model_len, length,
                 least_output > 0 ? " and leaves no room for an answer" : "")
          .with_param("prompt");
    }
    if (request.priority != 0 && !priorities_) {
      return invalid_argument(
                 "priority {} needs a server started with --scheduling-policy priority",
                 request.priority)
          .with_param("priority");
    }
    // The context is the harder limit: an answer that reaches it ends with finish reason `length`.
    request.sampling.max_tokens = static_cast<int32_t>(
        std::min<int64_t>(request.sampling.max_tokens, info.max_model_len - length));
    request.sampling.min_tokens =
        std::min(request.sampling.min_tokens, request.sampling.max_tokens);
    const auto total = static_cast<int32_t>(length) + request.sampling.max_tokens;
    return scheduler_.check_fits(static_cast<int32_t>(length), total);
  }

  // The engine thread. An exception can only be lack of memory or a bug; either way every request
  // hears of it.
  void run() {
    try {
      loop();
    } catch (const std::exception& error) {
      log_error("the engine stops: {}", error.what());
      healthy_.store(false);
      stop_.store(true);
      submissions_.close();
      fail_all(internal_error("the engine has stopped: {}", error.what()));
    }
  }

  void loop() {
    while (!stop_.load()) {
      const bool idle = !scheduler_.has_requests() && num_steps_ == 0;
      take_messages(idle ? kIdleWait : std::chrono::milliseconds(0));
      const Status status = advance();
      if (!status.ok()) {
        log_error("the engine stops: {}", status.message());
        healthy_.store(false);
        stop_.store(true);
        fail_all(status);
      }
      publish_gauges();
    }
    submissions_.close();
    take_messages(std::chrono::milliseconds(0));
    fail_all(make_status(StatusCode::kAborted, "the engine is shutting down"));
    publish_gauges();
  }

  // Launches the next step if there is one, and ends the oldest unless the device has less to do
  // than it may.
  Status advance() {
    bool launched = false;
    if (num_steps_ < max_steps_) {
      StepPlan& plan = steps_[(first_step_ + num_steps_) % steps_.size()];
      const double begin = now_seconds();
      scheduler_.plan(parts_.scheduler.budget, &plan);
      if (!plan.empty()) {
        scheduler_.apply(&plan);
        times_.schedule += now_seconds() - begin;
        TENON_RETURN_IF_ERROR(launch(plan, begin));
        launched = true;
      }
    }
    if (num_steps_ == 0 || (launched && num_steps_ < max_steps_)) return ok_status();
    return end_oldest_step();
  }

  void take_messages(std::chrono::milliseconds timeout) {
    inbox_.clear();
    abort_ids_.clear();
    submissions_.drain(inbox_, timeout);
    aborts_.drain(abort_ids_, std::chrono::milliseconds(0));
    // Once more: an abort follows its submission, so every abort taken above now has its request in
    // the inbox.
    submissions_.drain(inbox_, std::chrono::milliseconds(0));
    for (Submission& submission : inbox_) admit(std::move(submission));
    for (const RequestId id : abort_ids_) {
      if (scheduler_.abort(id)) finish(id, FinishReason::kAbort, {});
    }
  }

  void admit(Submission submission) {
    NewRequest request;
    request.id = submission.id;
    request.prompt = submission.request.prompt;
    request.max_total_tokens = static_cast<int32_t>(submission.request.prompt.size()) +
                               submission.request.sampling.max_tokens;
    request.priority = submission.request.priority;
    request.cache_salt = submission.request.cache_salt;
    request.read_prefix_cache = !submission.request.sampling.prompt_logprobs.has_value();
    const RequestId id = submission.id;
    auto live = std::make_unique<LiveRequest>(std::move(submission), parts_.info.eos_token_ids,
                                              seed_ ^ (id << 20));
    live_.emplace(id, std::move(live));
    const Status added = scheduler_.add(std::move(request));
    if (!added.ok()) {
      RequestOutput output;
      output.error = added;
      finish(id, FinishReason::kError, std::move(output));
    }
  }

  Status launch(const StepPlan& plan, double begin) {
    for (const Admission& admission : plan.admissions) {
      LiveRequest& live = *live_.at(admission.id);
      if (live.timings.first_scheduled == 0) {
        live.timings.first_scheduled = begin;
        num_waiting_.fetch_sub(1);
      }
      if (admission.first) live.num_cached_tokens = admission.num_cached;
    }
    targets_.clear();
    for (const PlanRow& row : plan.rows) {
      LiveRequest& live = *live_.at(row.id);
      targets_.push_back(
          {&live.sampler, live.prompt_logprobs.empty() ? nullptr : &live.prompt_logprobs});
    }
    ++num_steps_;
    return runner_.launch(plan, targets_);
  }

  Status end_oldest_step() {
    const StepPlan& plan = steps_[first_step_];
    TENON_ASSIGN_OR_RETURN(std::span<SampledToken> sampled, runner_.collect());
    const double begin = now_seconds();
    first_step_ = (first_step_ + 1) % steps_.size();
    --num_steps_;
    collect_results(plan, sampled);
    scheduler_.commit(plan, results_);
    if (!plan.rows.empty()) stats_.record_step(plan.num_tokens);
    record_times(now_seconds() - begin);
    publish_gauges();  // before the outputs: who has seen a request end must find it gone in the
                       // gauges
    for (size_t i = 0; i < plan.rows.size(); ++i) {
      if (results_[i].finished) {
        finish(plan.rows[i].id, reasons_[i], std::move(outputs_[i]));
      } else if (!outputs_[i].tokens.empty()) {
        LiveRequest& live = *live_.at(plan.rows[i].id);
        complete(plan.rows[i].id, live, outputs_[i]);
        live.on_output(std::move(outputs_[i]));
      }
    }
    return ok_status();
  }

  void record_times(double commit) {
    times_.commit += commit;
    StepTimes times = runner_.times();
    times.schedule = times_.schedule;
    times.commit = times_.commit;
    stats_.record_times(times, runner_.graph_steps(), runner_.cascade());
  }

  // Decides for each row which token it got and whether its request ends, and prepares its output.
  void collect_results(const StepPlan& plan, std::span<SampledToken> sampled) {
    const double now = now_seconds();
    results_.assign(plan.rows.size(), {});
    reasons_.assign(plan.rows.size(), FinishReason::kNone);
    outputs_.clear();
    outputs_.resize(plan.rows.size());
    int64_t delivered = 0;
    for (size_t i = 0; i < plan.rows.size(); ++i) {
      // A row of a request that has ended since has no result.
      if (!plan.rows[i].sample || !scheduler_.lives(plan, plan.rows[i])) continue;
      LiveRequest& live = *live_.at(plan.rows[i].id);
      RequestSampler& sampler = live.sampler;
      if (!sampled[i].error.ok()) {
        outputs_[i].error = sampled[i].error;
        results_[i].finished = true;
        reasons_[i] = FinishReason::kError;
        continue;
      }
      const int32_t token = sampled[i].token;
      if (token < 0) {  // the prompt was only to be scored
        results_[i].finished = true;
        reasons_[i] = FinishReason::kLength;
        continue;
      }
      sampler.accept(token);
      ++delivered;
      results_[i].token = token;
      outputs_[i].tokens.push_back(token);
      if (sampler.params().logprobs) outputs_[i].logprobs.push_back(std::move(sampled[i].logprobs));
      record_token_time(live, now);
      if (sampler.ends_with(token)) {
        reasons_[i] = FinishReason::kStop;
        outputs_[i].stop_token = token;
        outputs_[i].stopped_by_eos = sampler.is_eos(token);
      } else if (sampler.num_accepted() >= sampler.params().max_tokens) {
        reasons_[i] = FinishReason::kLength;
      }
      results_[i].finished = reasons_[i] != FinishReason::kNone;
    }
    stats_.record_tokens_delivered(delivered);
  }

  void record_token_time(LiveRequest& live, double now) {
    if (live.timings.first_token == 0) {
      live.timings.first_token = now;
      stats_.record_first_token(live.timings);
    } else {
      stats_.record_inter_token(now - live.last_token_time);
    }
    live.last_token_time = now;
  }

  // Fills what every output of a request carries.
  static void complete(RequestId id, LiveRequest& live, RequestOutput& output) {
    output.id = id;
    output.num_cached_tokens = live.num_cached_tokens;
    output.timings = live.timings;
    output.prompt_logprobs = std::move(live.prompt_logprobs);
    live.prompt_logprobs.clear();
  }

  // Sends the last output. Requires: the scheduler has already dropped the request.
  void finish(RequestId id, FinishReason reason, RequestOutput output) {
    const auto found = live_.find(id);
    if (found == live_.end()) return;
    LiveRequest& live = *found->second;
    if (live.timings.first_scheduled == 0) num_waiting_.fetch_sub(1);
    live.timings.finished = now_seconds();
    output.finish_reason = reason;
    complete(id, live, output);
    stats_.record_finish(reason, live.timings, live.num_prompt_tokens, live.sampler.num_accepted(),
                         live.sampler.params().max_tokens);
    publish_gauges();
    runner_.release(id);
    live.on_output(std::move(output));
    live_.erase(id);
  }

  void fail_all(const Status& status) {
    const bool aborted = status.code() == StatusCode::kAborted;
    std::vector<RequestId> ids;
    for (const auto& [id, live] : live_) ids.push_back(id);
    for (const RequestId id : ids) {
      scheduler_.abort(id);
      RequestOutput output;
      if (!aborted) output.error = status;
      finish(id, aborted ? FinishReason::kAbort : FinishReason::kError, std::move(output));
    }
  }

  void publish_gauges() { stats_.update(scheduler_, static_cast<int64_t>(submissions_.size())); }

  EngineParts parts_;
  const uint64_t seed_;
  const int64_t max_queue_;
  const bool priorities_;
  BoundedQueue<Submission> submissions_;
  BoundedQueue<RequestId> aborts_;
  std::atomic<RequestId> next_id_{1};
  std::atomic<int64_t> num_waiting_{0};  // submitted and never scheduled
  std::atomic<bool> stop_{false};
  std::atomic<bool> healthy_{true};

  // Engine thread only.
  Scheduler scheduler_;
  const size_t max_steps_;
  StepRunner runner_;
  StatsRecorder stats_;
  std::unordered_map<RequestId, std::unique_ptr<LiveRequest>> live_;
  std::vector<Submission> inbox_;
  std::vector<RequestId> abort_ids_;
  std::vector<StepPlan> steps_;  // a ring of those on their way
  size_t first_step_ = 0, num_steps_ = 0;
  StepTimes times_;
  std::vector<SamplingTarget> targets_;
  std::vector<RowResult> results_;
  std::vector<FinishReason> reasons_;
  std::vector<RequestOutput> outputs_;

  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(const EngineConfig& config,
                                               const LoadProgress& progress) {
  TENON_ASSIGN_OR_RETURN(EngineParts parts, build_engine(config, progress));
  auto engine = std::make_unique<EngineImpl>(std::move(parts), config);
  TENON_RETURN_IF_ERROR(engine->start());
  return std::unique_ptr<Engine>(std::move(engine));
}

}  // namespace tenon
