#include "engine/decode_graphs.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tenon {
namespace {

// Padding costs little where rows are few, since weights dominate a step there; large batches get
// steps of 16, which is a tile of the linear layers.
int32_t next_size(int32_t size) {
  if (size < 8) return size < 2 ? size + 1 : size * 2;
  return size + (size < 64 ? 8 : 16);
}

}  // namespace

Status DecodeGraphs::capture(Device* device, int32_t max_rows, const Step& step) {
  for (int32_t size = 1;; size = std::min(next_size(size), max_rows)) {
    TENON_RETURN_IF_ERROR(step.plan(size));
    TENON_RETURN_IF_ERROR(device->begin_capture());
    const Status enqueued = step.enqueue(size);
    auto graph = device->end_capture();  // in any case: the stream must not stay in capture mode
    TENON_RETURN_IF_ERROR(enqueued);
    if (!graph.ok()) {
      return graph.status().with_context(fmt::format("capturing a decode step of {} rows", size));
    }
    entries_.push_back({size, std::move(graph).value()});
    if (size == max_rows) break;
  }
  return ok_status();
}

int32_t DecodeGraphs::size_for(int32_t num_rows) const {
  const auto found =
      std::lower_bound(entries_.begin(), entries_.end(), num_rows,
                       [](const Entry& entry, int32_t rows) { return entry.size < rows; });
  return found == entries_.end() ? 0 : found->size;
}

void DecodeGraphs::launch(int32_t size) const {
  for (const Entry& entry : entries_) {
    if (entry.size == size) return entry.graph->launch();
  }
  TENON_CHECK(false);
}

}  // namespace tenon
