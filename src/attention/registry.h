// The list of attention backends and the choice among them.
// Thread safety: build the registry once at start; const members are safe from any thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "attention/backend.h"
#include "base/status.h"

namespace tenon {

using BackendFactory = std::function<std::unique_ptr<AttentionBackend>(const BackendContext&)>;

struct BackendEntry {
  std::string name;
  BackendFactory make;  // cheap: no memory is taken before prepare()
};

class AttentionRegistry {
 public:
  void add(std::string name, BackendFactory make);
  [[nodiscard]] const std::vector<BackendEntry>& entries() const { return entries_; }

 private:
  std::vector<BackendEntry> entries_;
};

// Filled in src/backends.cc, the only place that lists backends.
void register_attention_backends(AttentionRegistry& registry);

// One row of the selection table.
struct BackendVerdict {
  std::string name;
  std::string summary;
  int32_t preference = 0;
  std::vector<std::string> reasons;  // why not; empty: it can
};

struct BackendChoice {
  std::unique_ptr<AttentionBackend> backend;
  std::string reason;  // one line: why this one
  std::vector<BackendVerdict> table;
};

// name "auto": the backend with the highest preference that passes check(). Any other name is
// honoured or refused. Errors: kInvalidArgument (unknown name; lists the known ones), kUnsupported
// (all reasons; for `auto` those of every backend).
Result<BackendChoice> get_attention_backend(const AttentionRegistry& registry,
                                            std::string_view name,
                                            const BackendContext& context);

// The table `tenon backends` prints, without choosing.
std::vector<BackendVerdict> attention_backend_table(const AttentionRegistry& registry,
                                                    const BackendContext& context);

// The layout both the backend and the engine will use: the backend's first choice.
KvLayout resolve_kv_layout(const AttentionBackend& backend);

}  // namespace tenon
