// tenon inspect: what a model file holds, and what running it would take.
#include <algorithm>
#include <cstdio>
#include <map>

#include "cli/commands.h"
#include "models/inspect.h"

namespace tenon::cli {
namespace {

double mib(int64_t bytes) {
  return static_cast<double>(bytes) / 1048576.0;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

void print_tensors(const ModelSummary& summary, bool all) {
  struct TypeTotal {
    int64_t tensors = 0, bytes = 0;
  };
  std::map<std::string, TypeTotal> totals;
  for (const TensorSummary& tensor : summary.tensors) {
    ++totals[tensor.type].tensors;
    totals[tensor.type].bytes += tensor.bytes;
  }
  std::printf("\nTensors: %zu, %.1f M parameters, %.1f MiB\n", summary.tensors.size(),
              static_cast<double>(summary.parameters) * 1e-6, mib(summary.weight_bytes));
  for (const auto& [type, total] : totals) {
    std::printf("  %-5s %5lld tensors %10.1f MiB\n", type.c_str(),
                static_cast<long long>(total.tensors), mib(total.bytes));
  }
  constexpr size_t kShown = 12;
  const size_t shown = all ? summary.tensors.size() : std::min(kShown, summary.tensors.size());
  for (size_t i = 0; i < shown; ++i) {
    const TensorSummary& tensor = summary.tensors[i];
    std::printf("  %-40s %-5s %-16s %10.3f MiB\n", tensor.name.c_str(), tensor.type.c_str(),
                shape_text(tensor.shape).c_str(), mib(tensor.bytes));
  }
  if (shown < summary.tensors.size()) {
    std::printf("  ... and %zu more (--all)\n", summary.tensors.size() - shown);
  }
}

void print_memory_plan(const ModelSummary& summary) {
  const ModelConfig& config = *summary.config;
  const int64_t per_token = summary.kv_bytes_per_token_f16;
  std::printf("\nMemory plan\n  weights                        %10.1f MiB\n",
              mib(summary.weight_bytes));
  std::printf(
      "  KV cache, f16                  %10.1f KiB per token (twice that with --kv-cache-dtype "
      "float32)\n",
      static_cast<double>(per_token) / 1024.0);
  for (const int64_t tokens : {int64_t{2048}, int64_t{config.max_position}}) {
    if (tokens > config.max_position) continue;
    std::printf("  KV cache for %7lld tokens    %10.1f MiB\n", static_cast<long long>(tokens),
                mib(tokens * per_token));
  }
}

}  // namespace

int inspect_command(const InspectOptions& options) {
  auto summary = inspect_model(options.path);
  if (!summary.ok()) return fail(summary.status());
  std::printf("%s\nFormat: %s\nArchitecture: %s\n", options.path.c_str(), summary->format.c_str(),
              summary->architecture.c_str());
  if (summary->config) {
    const ModelConfig& c = *summary->config;
    std::printf(
        "Runs as: %s: %d layers, hidden %d, feed-forward %d, %d query heads on %d KV heads of size "
        "%d, vocabulary %d, "
        "context %d\n",
        c.architecture.c_str(), c.num_layers, c.hidden_size, c.intermediate_size, c.num_heads,
        c.num_kv_heads, c.head_dim, c.vocab_size, c.max_position);
  } else {
    std::printf("Cannot run here: %s\n", summary->why_not.message().c_str());
  }
  std::printf("\nMetadata: %zu entries\n", summary->metadata.size());
  constexpr size_t kShown = 40;
  const size_t shown =
      options.all ? summary->metadata.size() : std::min(kShown, summary->metadata.size());
  for (size_t i = 0; i < shown; ++i) {
    std::printf("  %-44s %s\n", summary->metadata[i].first.c_str(),
                summary->metadata[i].second.c_str());
  }
  if (shown < summary->metadata.size())
    std::printf("  ... and %zu more (--all)\n", summary->metadata.size() - shown);
  print_tensors(*summary, options.all);
  if (summary->config) print_memory_plan(*summary);
  for (const std::string& note : summary->notes) std::printf("Note: %s\n", note.c_str());
  return 0;
}

}  // namespace tenon::cli
