// tenon backends: the table behind the choice of an attention backend, and the conformance suite.
#include <algorithm>
#include <cstdio>

#include "attention/conformance.h"
#include "attention/registry.h"
#include "cli/commands.h"
#include "tenon/engine.h"
#include "tensor/device.h"

namespace tenon::cli {
namespace {

int verify(const BackendsOptions& options) {
  AttentionRegistry registry;
  register_attention_backends(registry);
  auto device = make_device(options.engine.device);
  if (!device.ok()) return fail(device.status());
  const std::vector<BackendEntry>& entries = registry.entries();
  const auto entry = std::find_if(entries.begin(), entries.end(),
                                  [&](const BackendEntry& e) { return e.name == options.verify; });
  // On a machine with a GPU, `auto` means it for the backends that run there.
  if (entry != entries.end() && options.engine.device == "auto") {
    const std::vector<DeviceType> can = entry->make({})->info().devices;
    if (std::find(can.begin(), can.end(), (*device)->type()) == can.end()) {
      device = make_device("cpu");
    }
  }
  ConformanceOptions conformance;
  conformance.level = options.verify_level;
  conformance.device = device->get();
  conformance.isas = {options.engine.cpu_isa};
  int passed = 0, failed = 0, refused = 0;
  auto results =
      run_conformance(registry, options.verify, conformance, [&](const ConformanceResult& result) {
        switch (result.outcome) {
          case ConformanceOutcome::kPassed: ++passed; break;
          case ConformanceOutcome::kRefused:
            ++refused;
            std::printf("refused  %s: %s\n", result.name.c_str(), result.detail.c_str());
            break;
          case ConformanceOutcome::kFailed:
            ++failed;
            std::printf("FAILED   %s: %s\n", result.name.c_str(), result.detail.c_str());
            break;
        }
      });
  if (!results.ok()) return fail(results.status());
  double worst = 0;
  for (const ConformanceResult& result : *results) worst = std::max(worst, result.worst);
  std::printf(
      "%s on %s against reference: %d passed, %d failed, %d refused; largest error %.2f of its "
      "tolerance\n",
      options.verify.c_str(), (*device)->info().name.c_str(), passed, failed, refused, worst);
  return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace

int backends_command(const BackendsOptions& options) {
  if (!options.verify.empty()) return verify(options);
  auto report = report_attention_backends(options.engine);
  if (!report.ok()) return fail(report.status());
  std::printf("Model: %s\nAsks for: %s\n\n", options.engine.model.c_str(), report->wanted.c_str());
  for (const AttentionVerdict& backend : report->backends) {
    std::printf("%s %-10s preference %3d  %s\n", backend.name == report->chosen ? "*" : " ",
                backend.name.c_str(), backend.preference, backend.summary.c_str());
    for (const std::string& reason : backend.reasons)
      std::printf("    not possible: %s\n", reason.c_str());
  }
  std::printf("\nChosen: %s\n", report->reason.c_str());
  return 0;
}

}  // namespace tenon::cli
