// A CUDA GPU as a Device. Everything below folders named cuda/ may use it; nothing else does.
//
// Ownership:     owns its streams; outlives buffers, fences and graphs it made.
// Thread safety: the engine thread only.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tensor/device.h"

namespace tenon {

class CudaDevice final : public Device {
 public:
  // Errors: kUnsupported when there is no GPU, its architecture is not sm_90, or the driver is
  // older than the runtime of this build; the message names what was found and what is needed.
  static Result<std::unique_ptr<CudaDevice>> create(int index = 0);
  ~CudaDevice() override;

  // The stream of all work.
  [[nodiscard]] cudaStream_t stream() const { return stream_; }
  // A second stream for work that runs beside the first: fork with fork_side(), enqueue there, and
  // join_side() before anything on stream() depends on it.
  [[nodiscard]] cudaStream_t side_stream() const { return side_stream_; }
  void fork_side();
  void join_side();
  // For copies beside the work (swap).
  [[nodiscard]] cudaStream_t copy_stream() const { return copy_stream_; }

  [[nodiscard]] int index() const { return index_; }
  [[nodiscard]] int num_sms() const { return num_sms_; }
  [[nodiscard]] int max_shared_bytes() const { return max_shared_bytes_; }  // a block may opt in to
  [[nodiscard]] int64_t l2_bytes() const { return l2_bytes_; }

  // Keeps the first error: call with cudaGetLastError() after a launch.
  void note(cudaError_t error, std::string_view what);

  [[nodiscard]] DeviceType type() const override { return DeviceType::kCuda; }
  [[nodiscard]] const DeviceInfo& info() const override { return info_; }
  Result<Buffer> allocate(size_t bytes) override;
  Result<Buffer> allocate_host(size_t bytes) override;
  [[nodiscard]] int64_t available_bytes() const override;
  void upload(void* device, const void* host, size_t bytes) override;
  void download(void* host, const void* device, size_t bytes) override;
  void write(void* device, const void* host, size_t bytes) override;
  void read(void* host, const void* device, size_t bytes) override;
  std::unique_ptr<Fence> make_fence() override;
  std::unique_ptr<StreamTimer> make_timer() override;
  Status synchronize() override;
  [[nodiscard]] Status status() const override { return first_error_; }
  Status begin_capture() override;
  Result<std::unique_ptr<DeviceGraph>> end_capture() override;
  void enter(StepSection section) override;
  void start_profile() override;
  double profile_seconds(StepSection section) override;

 private:
  CudaDevice() = default;
  Status open(int index);
  void fold_profile(bool wait);

  int index_ = 0;
  int num_sms_ = 0;
  int max_shared_bytes_ = 0;
  int64_t l2_bytes_ = 0;
  DeviceInfo info_;
  cudaStream_t stream_ = nullptr, side_stream_ = nullptr, copy_stream_ = nullptr;
  cudaEvent_t fork_ = nullptr, join_ = nullptr;
  Status first_error_;

  // A profile: marks in stream order, folded into seconds_ once their events have passed.
  struct Mark {
    cudaEvent_t event = nullptr;
    StepSection section = StepSection::kOther;
  };
  std::vector<Mark> marks_;
  size_t num_marks_ = 0;
  bool profiling_ = false;
  double seconds_[kNumStepSections] = {};
};

}  // namespace tenon
