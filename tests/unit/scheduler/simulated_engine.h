// A scheduler with a pretended model under it, for tests of everything above tensors.
//
// Each KV cell holds a fingerprint of all tokens up to its own (and of the cache salt), the next
// token is a pure function of that fingerprint, and every row reads all cells of its context
// through its block table. A wrong slot, a stale prefix hit, a lost swap copy or a block freed too
// early changes what is read and fails at once. Pending tokens are taken from where the plan says
// that they were sampled, when the row executes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/scheduler.h"

namespace tenon::testing {

using Fingerprint = uint64_t;

inline Fingerprint mix(Fingerprint before, uint64_t value) {
  uint64_t x = (before ^ value) * 0x9e3779b97f4a7c15ULL + 0x632be59bd9b4e019ULL;
  x ^= x >> 31;
  return x * 0xbf58476d1ce4e5b9ULL ^ x >> 29;
}

struct SimulatedModel {
  int32_t vocab_size = 1000;
  int32_t end_token = -1;  // ends a request when sampled

  [[nodiscard]] static Fingerprint begin(const std::string& salt) {
    Fingerprint print = 1;
    for (const char c : salt) print = mix(print, static_cast<uint8_t>(c));
    return print;
  }
  [[nodiscard]] static Fingerprint next(Fingerprint before, int32_t token) {
    return mix(before, static_cast<uint64_t>(token) + 17);
  }
  [[nodiscard]] int32_t sample(Fingerprint print) const {
    return static_cast<int32_t>(mix(print, 5) % static_cast<uint64_t>(vocab_size));
  }
  // What the request must yield whatever else is in the batch.
  [[nodiscard]] std::vector<int32_t> expected_output(const NewRequest& request) const {
    Fingerprint print = begin(request.cache_salt);
    for (const int32_t token : request.prompt) print = next(print, token);
    std::vector<int32_t> output;
    const auto prompt = static_cast<int32_t>(request.prompt.size());
    while (prompt + static_cast<int32_t>(output.size()) < request.max_total_tokens) {
      output.push_back(sample(print));
      if (output.back() == end_token) break;
      print = next(print, output.back());
    }
    return output;
  }
};

class SimulatedEngine {
 public:
  SimulatedEngine(const SchedulerConfig& config, SimulatedModel model)
      : scheduler(config),
        budget(config.budget),
        model_(model),
        device_(static_cast<size_t>(config.num_blocks) * static_cast<size_t>(config.block_size)),
        host_(static_cast<size_t>(config.num_host_blocks) *
              static_cast<size_t>(config.block_size)) {}

  void add(NewRequest request) {
    Client& client = clients_[request.id];
    client.salt = request.cache_salt;
    client.expected = model_.expected_output(request);
    const Status status = scheduler.add(std::move(request));
    ASSERT_TRUE(status.ok()) << status.message();
  }

  void abort(RequestId id) {
    EXPECT_TRUE(scheduler.abort(id));
    clients_.erase(id);
  }

  // Plans and applies one step. Its work, and that of earlier steps, happens now, or, as on a
  // device that lags behind, only when it is committed. False if there was nothing to do.
  bool issue(bool lagging = false) {
    if (!spare_.empty()) {
      in_flight_.push_back(std::move(spare_.back()));
      spare_.pop_back();
    } else {
      in_flight_.emplace_back();
    }
    Flight& flight = in_flight_.back();
    flight.executed = false;
    flight.work.clear();
    scheduler.plan(budget, &flight.plan);
    if (flight.plan.empty()) {
      spare_.push_back(std::move(flight));
      in_flight_.pop_back();
      return false;
    }
    max_in_flight_ = std::max(max_in_flight_, in_flight_.size());
    check_plan(flight.plan);
    scheduler.apply(&flight.plan);
    // What is swapped out is read in order, before anything of this step or a later one overwrites
    // it, but may arrive in host memory late.
    flight.swapping.clear();
    for (const BlockCopy& copy : flight.plan.swap_out_copies) {
      const auto block = block_of(device_, copy.src);
      flight.swapping.insert(flight.swapping.end(), block.begin(), block.end());
    }
    for (const PlanRow& row : flight.plan.rows) {
      const ScheduledRequest& request = scheduler.request(row.slot);
      flight.work.push_back({request.tokens, request.block_table, clients_.at(row.id).salt});
    }
    if (!lagging) {
      for (Flight& earlier : in_flight_) {
        if (!earlier.executed) execute(earlier);
      }
    }
    return true;
  }

  // Commits the oldest step. Requires: one is in flight.
  void commit() {
    Flight flight = std::move(in_flight_.front());
    in_flight_.pop_front();
    if (!flight.executed) execute(flight);
    for (size_t i = 0; i < flight.plan.rows.size(); ++i) {
      const PlanRow& row = flight.plan.rows[i];
      EXPECT_EQ(scheduler.lives(flight.plan, row), clients_.contains(row.id));
      if (!clients_.contains(row.id)) {
        ++(finished.contains(row.id) ? orphans_of_finished : orphans_of_aborted);
      }
      deliver(row, flight.results[i]);
    }
    scheduler.commit(flight.plan, flight.results);
    spare_.push_back(std::move(flight));
  }

  // One synchronous step; false if there was nothing to do.
  bool step() {
    if (!issue()) return false;
    last_plan = in_flight_.back().plan;
    commit();
    return true;
  }
  // With as many steps in flight as a request may have.
  void run_ahead_to_end(int max_turns = 100000) {
    const auto depth = static_cast<size_t>(scheduler.state().config.max_steps_in_flight);
    while (num_in_flight() > 0 || scheduler.has_requests()) {
      ASSERT_GT(max_turns--, 0);
      const bool issued = num_in_flight() < depth && issue(true);
      ASSERT_TRUE(issued || num_in_flight() > 0);
      if (!issued || num_in_flight() == depth) commit();
    }
  }
  void run_to_end(int max_steps = 100000) {
    while (scheduler.has_requests() && max_steps-- > 0) ASSERT_TRUE(step());
    ASSERT_FALSE(scheduler.has_requests());
  }

  [[nodiscard]] size_t num_in_flight() const { return in_flight_.size(); }
  [[nodiscard]] const StepPlan& newest_plan() const { return in_flight_.back().plan; }
  [[nodiscard]] bool lives(RequestId id) const { return clients_.contains(id); }

  Scheduler scheduler;
  StepBudget budget;                                   // of the next step
  StepPlan last_plan;                                  // of step()
  std::map<RequestId, std::vector<int32_t>> finished;  // outputs
  uint64_t recomputed_tokens = 0;  // computed although the request had them before
  uint64_t pending_rows = 0;       // rows whose token was not known when they were planned
  uint64_t orphans_of_finished = 0, orphans_of_aborted = 0;  // rows of requests that had ended

 private:
  struct Cell {
    int32_t position = -1;
    Fingerprint print = 0;
    bool operator==(const Cell&) const = default;
  };
  struct Work {  // what a row sees, copied when the step is issued
    std::vector<int32_t> tokens, block_table;
    std::string salt;
  };
  struct Flight {
    StepPlan plan;
    std::vector<Work> work;
    std::vector<Cell> swapping;  // content of the blocks on their way to the host
    std::vector<RowResult> results;
    bool executed = false;
  };
  struct Client {
    std::string salt;
    std::vector<int32_t> expected, received;
    std::set<int32_t> had;  // positions whose KV it once had
  };

  std::span<Cell> block_of(std::vector<Cell>& pool, int32_t block) {
    const auto size = static_cast<size_t>(scheduler.blocks().block_size());
    return std::span(pool).subspan(static_cast<size_t>(block) * size, size);
  }

  Cell& cell(const Work& work, int32_t position) {
    const int32_t size = scheduler.blocks().block_size();
    const int32_t block = work.block_table.at(static_cast<size_t>(position / size));
    return device_.at(static_cast<size_t>(block) * static_cast<size_t>(size) +
                      static_cast<size_t>(position % size));
  }

  void execute(Flight& flight) {
    flight.executed = true;
    auto arriving = flight.swapping.begin();
    for (const BlockCopy& copy : flight.plan.swap_out_copies) {
      for (Cell& target : block_of(host_, copy.dst)) target = *arriving++;
    }
    for (const BlockCopy& copy : flight.plan.swap_in_copies) {
      std::ranges::copy(block_of(host_, copy.src), block_of(device_, copy.dst).begin());
    }
    // As attention does: all rows write, then all rows read.
    flight.results.assign(flight.plan.rows.size(), {});
    std::vector<int32_t>& sampled = sampled_[flight.plan.step];
    // A device keeps no more of them than there are steps in flight.
    while (sampled_.size() > max_in_flight_) sampled_.erase(sampled_.begin());
    sampled.assign(flight.plan.rows.size(), kPendingToken);
    for (size_t i = 0; i < flight.work.size(); ++i) {
      const PlanRow& row = flight.plan.rows[i];
      Work& work = flight.work[i];
      resolve_pending(row, work);
      Fingerprint print = SimulatedModel::begin(work.salt);
      for (int32_t p = 0; p < row.start + row.num_tokens; ++p) {
        print = SimulatedModel::next(print, work.tokens.at(static_cast<size_t>(p)));
        if (p >= row.start) cell(work, p) = {p, print};
      }
    }
    for (size_t i = 0; i < flight.work.size(); ++i) {
      const PlanRow& row = flight.plan.rows[i];
      Fingerprint print = SimulatedModel::begin(flight.work[i].salt);
      for (int32_t p = 0; p < row.start + row.num_tokens; ++p) {
        print = SimulatedModel::next(print, flight.work[i].tokens[static_cast<size_t>(p)]);
        const Cell& read = cell(flight.work[i], p);
        ASSERT_EQ(read.position, p) << "request " << row.id << ", step " << flight.plan.step;
        ASSERT_EQ(read.print, print) << "request " << row.id << ", step " << flight.plan.step;
      }
      if (row.sample) flight.results[i].token = sampled[i] = model_.sample(print);
    }
  }

  // The last tokens of a row's context may all be pending: each was sampled one row earlier.
  void resolve_pending(const PlanRow& row, Work& work) {
    if (row.pending_step > 0) {
      ++pending_rows;
      work.tokens[static_cast<size_t>(row.start)] =
          sampled_.at(row.pending_step).at(static_cast<size_t>(row.pending_row));
    }
    for (int32_t p = 0; p < row.start; ++p) {
      int32_t& token = work.tokens[static_cast<size_t>(p)];
      if (token == kPendingToken) token = resolved_.at({row.id, p});
    }
    for (int32_t p = 0; p < row.start + row.num_tokens; ++p) {
      ASSERT_NE(work.tokens[static_cast<size_t>(p)], kPendingToken) << "request " << row.id;
    }
    if (row.pending_step > 0) {
      resolved_[{row.id, row.start}] = work.tokens[static_cast<size_t>(row.start)];
    }
  }

  void deliver(const PlanRow& row, RowResult& result) {
    const auto found = clients_.find(row.id);
    if (found == clients_.end()) return;
    Client& client = found->second;
    for (int32_t p = 0; p < row.start + row.num_tokens; ++p) {
      if (!client.had.insert(p).second && p >= row.start) ++recomputed_tokens;
    }
    if (!row.sample) return;
    const size_t limit = client.expected.size();
    if (limit > 0) client.received.push_back(result.token);
    if (limit == 0) result.token = -1;  // only scores the prompt
    if (client.received.size() < limit) return;
    result.finished = true;
    EXPECT_EQ(client.received, client.expected) << "request " << row.id;
    finished[row.id] = std::move(client.received);
    clients_.erase(found);
  }

  void check_plan(const StepPlan& plan) const {
    int32_t num_tokens = 0;
    std::map<RequestId, int> rows;
    RowKind last = RowKind::kDecode;
    for (const PlanRow& row : plan.rows) {
      const ScheduledRequest& request = scheduler.request(row.slot);
      EXPECT_EQ(request.id, row.id);
      EXPECT_GT(row.num_tokens, 0);
      EXPECT_LE(row.start + row.num_tokens, request.num_tokens());
      EXPECT_LT(row.start + row.num_tokens,
                std::max(request.max_total_tokens, request.num_prompt_tokens + 1));
      EXPECT_LT(request.rows_in_flight, scheduler.state().config.max_steps_in_flight);
      const auto first = request.tokens.begin() + row.start;
      const auto num_pending = std::count(first, first + row.num_tokens, kPendingToken);
      EXPECT_EQ(num_pending, row.pending_step > 0 ? 1 : 0);
      if (row.pending_step > 0) {
        EXPECT_TRUE(request.run_ahead);
        EXPECT_EQ(row.num_tokens, 1);
        EXPECT_GT(row.pending_step, scheduler.state().last_committed);
        EXPECT_LT(row.pending_step, plan.step);
      }
      EXPECT_EQ(row.sample, row.start + row.num_tokens == request.num_tokens());
      EXPECT_EQ(row.kind == RowKind::kPrefill, row.start == 0);
      EXPECT_LE(last, row.kind);
      last = row.kind;
      EXPECT_EQ(++rows[row.id], 1);
      num_tokens += row.num_tokens;
    }
    EXPECT_EQ(num_tokens, plan.num_tokens);
    EXPECT_LE(num_tokens, budget.max_num_batched_tokens);
    EXPECT_EQ(plan.num_decode_rows + plan.num_extend_rows + plan.num_prefill_rows,
              static_cast<int32_t>(plan.rows.size()));
    for (const Preemption& preemption : plan.preemptions) {
      EXPECT_FALSE(rows.contains(preemption.id));
      EXPECT_EQ(scheduler.request(preemption.slot).rows_in_flight, 0);
      EXPECT_FALSE(scheduler.request(preemption.slot).ends_pending());
    }
    for (const Admission& admission : plan.admissions) EXPECT_EQ(rows[admission.id], 1);
    EXPECT_TRUE(plan.preemptions.empty() || plan.admissions.empty());
  }

  SimulatedModel model_;
  std::vector<Cell> device_, host_;
  std::map<RequestId, Client> clients_;
  std::map<StepId, std::vector<int32_t>> sampled_;             // by row, of executed steps
  std::map<std::pair<RequestId, int32_t>, int32_t> resolved_;  // by position; once pending
  std::deque<Flight> in_flight_;
  size_t max_in_flight_ = 1;
  std::vector<Flight> spare_;
};

}  // namespace tenon::testing
