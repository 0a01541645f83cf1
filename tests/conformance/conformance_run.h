// What the quick and the full run share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "attention/conformance.h"

namespace tenon {

inline const AttentionRegistry& conformance_registry() {
  static const AttentionRegistry made = [] {
    AttentionRegistry list;
    register_attention_backends(list);
    return list;
  }();
  return made;
}

// Every case of every instruction set must pass; a refusal is a failure, too.
inline void expect_conformance(const std::string& backend, const ConformanceOptions& options) {
  auto results = run_conformance(conformance_registry(), backend, options);
  ASSERT_TRUE(results.ok()) << results.status().message();
  EXPECT_EQ(results->size(), options.isas.size() * conformance_cases(options.level).size());
  double worst = 0;
  for (const ConformanceResult& result : *results) {
    EXPECT_TRUE(result.outcome == ConformanceOutcome::kPassed)
        << result.name << "\n  " << result.detail;
    worst = std::max(worst, result.worst);
  }
  std::printf("%s: %zu cases, worst error %.3f of its tolerance\n", backend.c_str(),
              results->size(), worst);
}

}  // namespace tenon
