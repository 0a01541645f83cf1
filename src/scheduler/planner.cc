#include "scheduler/planner.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"

namespace tenon {
namespace {

// Free device blocks as they will be once the plan so far is applied: the block manager's reference
// counts plus what the plan adds and drops. This is what lets a plan count on blocks without
// touching any.
class BlockForecast {
 public:
  BlockForecast(const BlockManager& blocks, PlanScratch& scratch)
      : blocks_(blocks), scratch_(scratch), num_free_(blocks.num_free()) {
    scratch_.ref_deltas.resize(static_cast<size_t>(blocks.num_blocks()) + 1);
  }
  ~BlockForecast() {
    for (const int32_t block : scratch_.touched) delta(block) = 0;
    scratch_.touched.clear();
  }
  BlockForecast(const BlockForecast&) = delete;
  BlockForecast& operator=(const BlockForecast&) = delete;

  [[nodiscard]] int32_t num_free() const { return num_free_; }
  void allocate(int32_t count) { num_free_ -= count; }
  void acquire(std::span<const int32_t> blocks) {
    for (const int32_t block : blocks) {
      if (refs(block) == 0) --num_free_;
      ++delta(block);
      scratch_.touched.push_back(block);
    }
  }
  void release(std::span<const int32_t> blocks) {
    for (const int32_t block : blocks) {
      --delta(block);
      scratch_.touched.push_back(block);
      if (refs(block) == 0) ++num_free_;
    }
  }

 private:
  int32_t& delta(int32_t block) { return scratch_.ref_deltas[static_cast<size_t>(block)]; }
  int32_t refs(int32_t block) { return blocks_.ref_count(block) + delta(block); }

  const BlockManager& blocks_;
  PlanScratch& scratch_;
  int32_t num_free_;
};

class Planner {
 public:
  Planner(const SchedulerState& state, const StepBudget& budget, StepPlan& plan)
      : state_(state),
        budget_(budget),
        plan_(plan),
        forecast_(state.blocks, plan.scratch),
        tokens_left_(budget.max_num_batched_tokens),
        host_free_(state.host_blocks.num_free()),
        victims_end_(state.running.size()) {}

  void run() {
    any_busy_ = std::ranges::any_of(
        state_.running, [this](int32_t slot) { return state_.busy(state_.requests.at(slot)); });
    schedule_single_tokens();
    schedule_chunks();
    // What a preemption freed belongs to the requests that run; admitting now would take it away
    // again.
    if (plan_.preemptions.empty()) admit();
    order_rows();
  }

 private:
  [[nodiscard]] const ScheduledRequest& running(size_t i) const {
    return state_.requests.at(state_.running[i]);
  }

  // Requests at and after victims_end_ are preempted or held back. Only single tokens can lack a
  // block, because admission takes them for all tokens a request has; so no victim ever has a row
  // in this plan.
  void schedule_single_tokens() {
    for (size_t i = 0; i < victims_end_ && tokens_left_ > 0; ++i) {
      const ScheduledRequest& request = running(i);
      if (request.num_uncomputed() != 1 || !state_.may_run(request)) continue;
      if (find_block(i)) add_row(state_.running[i], request.num_computed, 1);
    }
  }

  void schedule_chunks() {
    for (size_t i = 0; i < victims_end_ && tokens_left_ > 0; ++i) {
      const ScheduledRequest& request = running(i);
      if (request.num_uncomputed() <= 1 || !state_.may_run(request)) continue;
      const int32_t chunk = chunk_of(request.num_uncomputed());
      if (chunk > 0) add_row(state_.running[i], request.num_computed, chunk);
    }
  }

  // How much of `wanted` tokens to compute now; 0: none.
  [[nodiscard]] int32_t chunk_of(int32_t wanted) const {
    if (wanted <= tokens_left_) return wanted;
    return budget_.chunked_prefill ? tokens_left_ : 0;
  }

  // Makes sure that the request has a block for its next token, by preempting from the end of the
  // order. False: the row is left out.
  bool find_block(size_t i) {
    const ScheduledRequest& request = running(i);
    const int32_t need = state_.blocks.blocks_for(request.num_tokens()) -
                         static_cast<int32_t>(request.block_table.size());
    while (forecast_.num_free() < need) {
      // Blocks are on their way: preempting for what the next commit brings would empty the engine.
      if (state_.blocks.num_fenced() > 0) return false;
      if (holding_) return false;
      if (victims_end_ == i + 1) {
        // It would be its own victim; those that are busy may leave something soon.
        if (any_busy_) return false;
      } else if (state_.busy(running(victims_end_ - 1))) {
        // Held back, it can be preempted after the next commit, if nothing better happens.
        --victims_end_;
        holding_ = true;
        return false;
      }
      preempt(--victims_end_);
      if (victims_end_ == i) return false;  // it was the last one itself
    }
    forecast_.allocate(need);
    return true;
  }

  void preempt(size_t i) {
    const ScheduledRequest& victim = running(i);
    Preemption out{.id = victim.id, .slot = state_.running[i]};
    const int32_t num_copies = state_.blocks.blocks_for(victim.num_computed);
    if (num_copies > 0 && num_copies <= host_free_ && prefers_swap(victim, num_copies)) {
      out.swap = true;
      out.num_copies = num_copies;
      host_free_ -= num_copies;
    }
    forecast_.release(victim.block_table);
    plan_.preemptions.push_back(out);
  }

  [[nodiscard]] bool prefers_swap(const ScheduledRequest& victim, int32_t num_copies) const {
    switch (state_.config.preemption_mode) {
      case PreemptionMode::kRecompute: return false;
      case PreemptionMode::kSwap: return true;
      case PreemptionMode::kAuto: break;
    }
    const PreemptionCosts& costs = state_.config.costs;
    return 2 * num_copies * costs.seconds_per_block < victim.num_computed * costs.seconds_per_token;
  }

  [[nodiscard]] bool can_grow(const ScheduledRequest& request) const {
    return state_.blocks_needed(request.num_prompt_tokens, request.max_total_tokens) >
           state_.blocks.blocks_for(request.num_tokens());
  }

  void admit() {
    int32_t num_running = static_cast<int32_t>(state_.running.size());
    if (num_running >= budget_.max_num_seqs) return;
    // Each running request fills its last block within block_size steps and then wants another.
    auto reserve = static_cast<int32_t>(std::ranges::count_if(
        state_.running, [this](int32_t slot) { return can_grow(state_.requests.at(slot)); }));
    auto next_swapped = state_.swapped.begin();
    auto next_waiting = state_.waiting.begin();
    for (; num_running < budget_.max_num_seqs && tokens_left_ > 0; ++num_running) {
      const bool has_swapped = next_swapped != state_.swapped.end();
      const bool has_waiting = next_waiting != state_.waiting.end();
      if (!has_swapped && !has_waiting) return;
      const bool from_swap =
          has_swapped && (!has_waiting || state_.runs_before(*next_swapped, *next_waiting));
      const int32_t slot = from_swap ? *next_swapped++ : *next_waiting++;
      // A request alone always passes: add() made sure that the pool holds it at its longest.
      if (can_grow(state_.requests.at(slot))) ++reserve;
      if (!try_admit(slot, reserve)) return;
    }
  }

  bool try_admit(int32_t slot, int32_t reserve) {
    const ScheduledRequest& request = state_.requests.at(slot);
    if (state_.busy(request)) return false;  // still being copied out
    const bool from_swap = request.state == RequestState::kSwapped;
    const size_t hits_begin = plan_.hit_blocks.size();
    Admission out{.id = request.id,
                  .slot = slot,
                  .from_swap = from_swap,
                  .first = request.num_cached_tokens < 0};
    if (from_swap) {
      // What the index still has of a swapped request need not be copied.
      out.num_hits = find_prefix(request, request.num_computed);
      out.num_copies = state_.blocks.blocks_for(request.num_computed) - out.num_hits;
    } else if (request.read_prefix_cache) {
      out.num_hits = find_prefix(request, request.num_tokens() - 1);
    }
    out.num_cached = out.num_hits * state_.blocks.block_size();
    out.num_new_blocks = state_.blocks.blocks_for(request.num_tokens()) - out.num_hits;

    const int32_t start = from_swap ? request.num_computed : out.num_cached;
    const int32_t chunk = chunk_of(request.num_tokens() - start);
    const auto hits = std::span(plan_.hit_blocks).subspan(hits_begin);
    forecast_.acquire(hits);
    if (chunk == 0 || forecast_.num_free() < out.num_new_blocks + reserve) {
      forecast_.release(hits);
      plan_.hit_blocks.resize(hits_begin);
      return false;
    }
    forecast_.allocate(out.num_new_blocks);
    plan_.admissions.push_back(out);
    add_row(slot, start, chunk);
    return true;
  }

  int32_t find_prefix(const ScheduledRequest& request, int32_t max_tokens) {
    return state_.blocks.find_prefix(request.tokens, max_tokens, request.chain, plan_.hit_blocks);
  }

  void add_row(int32_t slot, int32_t start, int32_t num_tokens) {
    const ScheduledRequest& request = state_.requests.at(slot);
    const RowKind kind = start == 0        ? RowKind::kPrefill
                         : num_tokens == 1 ? RowKind::kDecode
                                           : RowKind::kExtend;
    // A pending token is the last one, and all before it are computed.
    const bool pending = request.tokens[static_cast<size_t>(start)] == kPendingToken;
    plan_.rows.push_back({.id = request.id,
                          .slot = slot,
                          .start = start,
                          .num_tokens = num_tokens,
                          .kind = kind,
                          .sample = start + num_tokens == request.num_tokens(),
                          .pending_step = pending ? request.last_step : 0,
                          .pending_row = pending ? request.last_row : 0});
    int32_t& count = kind == RowKind::kDecode   ? plan_.num_decode_rows
                     : kind == RowKind::kExtend ? plan_.num_extend_rows
                                                : plan_.num_prefill_rows;
    ++count;
    plan_.num_tokens += num_tokens;
    tokens_left_ -= num_tokens;
  }

  void order_rows() {
    const auto before = [this](const PlanRow& a, const PlanRow& b) {
      if (a.kind != b.kind) return a.kind < b.kind;
      if (a.kind == RowKind::kExtend && a.num_tokens != b.num_tokens) {
        return a.num_tokens < b.num_tokens;
      }
      return state_.runs_before(a.slot, b.slot);
    };
    if (!std::ranges::is_sorted(plan_.rows, before)) std::ranges::sort(plan_.rows, before);
  }

  const SchedulerState& state_;
  const StepBudget& budget_;
  StepPlan& plan_;
  BlockForecast forecast_;
  int32_t tokens_left_;
  int32_t host_free_;
  size_t victims_end_;
  bool any_busy_ = false;
  bool holding_ = false;  // a request is held back to become a victim
};

}  // namespace

void plan_step(const SchedulerState& state, const StepBudget& budget, StepPlan* plan) {
  plan->step = state.last_applied + 1;
  plan->rows.clear();
  plan->num_decode_rows = plan->num_extend_rows = plan->num_prefill_rows = plan->num_tokens = 0;
  plan->preemptions.clear();
  plan->admissions.clear();
  plan->hit_blocks.clear();
  plan->swap_out_copies.clear();
  plan->swap_in_copies.clear();
  Planner(state, budget, *plan).run();
}

}  // namespace tenon
