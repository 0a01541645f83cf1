// Time of a call on a GPU: captured `count` times in a graph, whose replays are timed by events.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "tensor/cuda/cuda_device.h"

namespace tenon::bench {

class GraphTimer {
 public:
  explicit GraphTimer(CudaDevice* device) : device_(device) {
    device_->note(cudaEventCreate(&begin_), "cudaEventCreate");
    device_->note(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~GraphTimer() {
    (void)cudaEventDestroy(begin_);
    (void)cudaEventDestroy(end_);
  }
  GraphTimer(const GraphTimer&) = delete;
  GraphTimer& operator=(const GraphTimer&) = delete;

  // Median microseconds of one of call(0) .. call(count - 1); -1 if they cannot be captured.
  double microseconds(int count, const std::function<void(int)>& call) {
    call(0);
    (void)device_->synchronize();
    if (!device_->begin_capture().ok()) return -1;
    for (int i = 0; i < count; ++i) call(i);
    auto graph = device_->end_capture();
    if (!graph.ok()) return -1;
    std::vector<float> times;
    for (int i = 0; i < kReplays + 1; ++i) {
      device_->note(cudaEventRecord(begin_, device_->stream()), "timer");
      (*graph)->launch();
      device_->note(cudaEventRecord(end_, device_->stream()), "timer");
      device_->note(cudaEventSynchronize(end_), "timer");
      float ms = 0;
      device_->note(cudaEventElapsedTime(&ms, begin_, end_), "timer");
      if (i > 0) times.push_back(ms);  // the first replay uploads the graph
    }
    std::sort(times.begin(), times.end());
    return 1e3 * times[times.size() / 2] / count;
  }

 private:
  static constexpr int kReplays = 5;
  CudaDevice* device_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace tenon::bench
