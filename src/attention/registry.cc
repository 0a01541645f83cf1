#include "attention/registry.h"

#include <fmt/ranges.h>

#include <utility>

#include "base/check.h"

namespace tenon {
namespace {

// A backend and its verdict; only get_attention_backend keeps the backend.
struct Candidate {
  std::unique_ptr<AttentionBackend> backend;
  BackendVerdict verdict;
};

std::vector<Candidate> examine(const AttentionRegistry& registry, const BackendContext& context) {
  std::vector<Candidate> candidates;
  candidates.reserve(registry.entries().size());
  for (const BackendEntry& entry : registry.entries()) {
    Candidate candidate;
    candidate.backend = entry.make(context);
    TENON_CHECK(candidate.backend != nullptr);
    const BackendInfo& info = candidate.backend->info();
    candidate.verdict = {entry.name, info.summary, info.preference,
                         candidate.backend->check(context.requirements)};
    candidates.push_back(std::move(candidate));
  }
  return candidates;
}

std::string list_reasons(const BackendVerdict& verdict) {
  return fmt::format("{}: {}", verdict.name, fmt::join(verdict.reasons, "; "));
}

// "cpu (what it is): fastest of those that can; also possible: reference; not possible: other:
// why".
std::string explain(const BackendVerdict& chosen,
                    const std::vector<Candidate>& candidates,
                    bool automatic) {
  if (!automatic) return fmt::format("{} ({}): asked for by name", chosen.name, chosen.summary);
  std::vector<std::string> others;
  std::vector<std::string> refusals;
  for (const Candidate& candidate : candidates) {
    const BackendVerdict& verdict = candidate.verdict;
    if (verdict.name == chosen.name) continue;
    if (verdict.reasons.empty()) {
      others.push_back(fmt::format("{} (preference {})", verdict.name, verdict.preference));
    } else {
      refusals.push_back(list_reasons(verdict));
    }
  }
  std::string text = fmt::format(
      "{} ({}): auto takes the one preferred most, {}, of those that can serve this model",
      chosen.name, chosen.summary, chosen.preference);
  if (!others.empty()) text += fmt::format("; also possible: {}", fmt::join(others, ", "));
  if (!refusals.empty()) text += fmt::format("; not possible: {}", fmt::join(refusals, " | "));
  return text;
}

}  // namespace

void AttentionRegistry::add(std::string name, BackendFactory make) {
  for (const BackendEntry& entry : entries_) TENON_CHECK(entry.name != name);
  entries_.push_back({std::move(name), std::move(make)});
}

Result<BackendChoice> get_attention_backend(const AttentionRegistry& registry,
                                            std::string_view name,
                                            const BackendContext& context) {
  std::vector<Candidate> candidates = examine(registry, context);
  std::vector<std::string> known;
  std::vector<std::string> refusals;
  Candidate* chosen = nullptr;
  for (Candidate& candidate : candidates) {
    known.push_back(candidate.verdict.name);
    const bool can = candidate.verdict.reasons.empty();
    if (!can) refusals.push_back(list_reasons(candidate.verdict));
    if (name == "auto") {
      if (can && (chosen == nullptr || candidate.verdict.preference > chosen->verdict.preference)) {
        chosen = &candidate;
      }
    } else if (candidate.verdict.name == name) {
      if (!can) {
        return unsupported("attention backend {} cannot serve this model", refusals.back());
      }
      chosen = &candidate;
    }
  }
  if (chosen == nullptr && name == "auto") {
    return unsupported("no attention backend can serve this model: {}", fmt::join(refusals, " | "));
  }
  if (chosen == nullptr) {
    return invalid_argument("unknown attention backend '{}' (known: auto, {})", name,
                            fmt::join(known, ", "));
  }
  BackendChoice choice;
  choice.reason = explain(chosen->verdict, candidates, name == "auto");
  choice.backend = std::move(chosen->backend);
  for (Candidate& candidate : candidates) choice.table.push_back(std::move(candidate.verdict));
  return choice;
}

std::vector<BackendVerdict> attention_backend_table(const AttentionRegistry& registry,
                                                    const BackendContext& context) {
  std::vector<BackendVerdict> table;
  for (Candidate& candidate : examine(registry, context)) {
    table.push_back(std::move(candidate.verdict));
  }
  return table;
}

KvLayout resolve_kv_layout(const AttentionBackend& backend) {
  TENON_CHECK(!backend.info().layouts.empty());
  return backend.info().layouts.front();
}

}  // namespace tenon
