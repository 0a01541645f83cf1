// Decode steps captured as graphs, for a set of batch sizes: one launch instead of some three
// hundred. A batch between two sizes is padded to the larger with rows that compute nothing.
//
// Ownership:     owns the graphs. Thread safety: the engine thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "tensor/device.h"

namespace tenon {

class DecodeGraphs {
 public:
  // What makes a decode step of num_rows rows whose addresses and launches depend on num_rows
  // alone.
  struct Step {
    std::function<Status(int32_t num_rows)> plan;     // what happens anew for each launch
    std::function<Status(int32_t num_rows)> enqueue;  // what is captured
  };
  // Captures sizes up to max_rows. Errors: those of `step` and of the device.
  Status capture(Device* device, int32_t max_rows, const Step& step);

  // The smallest captured size that holds num_rows; 0 if there is none.
  [[nodiscard]] int32_t size_for(int32_t num_rows) const;
  // Requires: a captured size.
  void launch(int32_t size) const;

 private:
  struct Entry {
    int32_t size = 0;
    std::unique_ptr<DeviceGraph> graph;
  };
  std::vector<Entry> entries_;  // ascending
};

}  // namespace tenon
