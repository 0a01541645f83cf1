// Device: where the work of one engine runs. Memory, one in-order stream of work, fences, graphs.
//
// Everything enqueued on a Device (copies here, kernels by Ops, attention and samplers) runs in the
// order it was enqueued. On the CPU that is immediately; on a GPU later, so that the host plans the
// next step meanwhile. Functions that enqueue return nothing: the first asynchronous error is kept
// and status() tells it.
//
// Ownership:     a Device outlives the buffers, fences and graphs it made.
// Thread safety: the engine thread only, but for info().
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "tensor/tensor.h"

namespace tenon {

struct DeviceInfo {
  std::string name;                       // "cpu", "NVIDIA H200"
  int64_t total_bytes = 0;                // of its memory; 0: the host's
  bool asynchronous = false;              // enqueued work runs behind the host's back
  double bandwidth_bytes_per_second = 0;  // of its memory, by its clock and bus; 0: unknown
};

// A point in the stream.
class Fence {
 public:
  virtual ~Fence() = default;
  virtual void record() = 0;
  // Blocks until everything enqueued before the last record() is done. Errors: the device's first
  // asynchronous error.
  virtual Status wait() = 0;
};

// Measures stretches of the stream's time. start() and stop() enqueue.
class StreamTimer {
 public:
  virtual ~StreamTimer() = default;
  virtual void start() = 0;
  virtual void stop() = 0;
  // Of the last stretch. Requires: a fence recorded after stop() has passed.
  [[nodiscard]] virtual double seconds() = 0;
};

// A sequence of kernels recorded once and launched as one.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  virtual void launch() = 0;
};

// What a stretch of a step is spent on, for profiles.
enum class StepSection : uint8_t { kOther, kAttention, kLinear, kSampling, kBetweenSteps };
inline constexpr int kNumStepSections = 5;

class Device {
 public:
  virtual ~Device() = default;
  [[nodiscard]] virtual DeviceType type() const = 0;
  [[nodiscard]] virtual const DeviceInfo& info() const = 0;

  // Zeroed memory that kernels of this device may use. Errors: kResourceExhausted saying how much
  // there is.
  [[nodiscard]] virtual Result<Buffer> allocate(size_t bytes) = 0;
  // Zeroed host memory that upload() and download() can use while the host goes on (pinned).
  [[nodiscard]] virtual Result<Buffer> allocate_host(size_t bytes) = 0;
  // Memory that allocate() can still give.
  [[nodiscard]] virtual int64_t available_bytes() const = 0;

  // Enqueue copies. The host side must come from allocate_host() and stay unchanged until a fence
  // recorded after the call has passed.
  virtual void upload(void* device, const void* host, size_t bytes) = 0;
  virtual void download(void* host, const void* device, size_t bytes) = 0;
  // Copies from any host memory and returns when `host` may be reused. Not for the step loop.
  virtual void write(void* device, const void* host, size_t bytes) = 0;
  // Copies to any host memory and waits. Not for the step loop.
  virtual void read(void* host, const void* device, size_t bytes) = 0;

  [[nodiscard]] virtual std::unique_ptr<Fence> make_fence() = 0;
  [[nodiscard]] virtual std::unique_ptr<StreamTimer> make_timer() = 0;
  // Waits for everything enqueued. Errors: as status().
  virtual Status synchronize() = 0;
  // The first asynchronous error so far. Such an error is final: the device cannot be used again in
  // this process.
  [[nodiscard]] virtual Status status() const = 0;

  // Records what is enqueued between the two calls instead of running it.
  // Errors: kUnsupported on a device without graphs; end_capture(): what could not be recorded.
  virtual Status begin_capture() = 0;
  virtual Result<std::unique_ptr<DeviceGraph>> end_capture() = 0;

  // From here on the stream works for `section`. Costs nothing unless a profile is being taken.
  virtual void enter(StepSection section) = 0;
  // Starts taking a profile.
  virtual void start_profile() = 0;
  // Seconds spent on `section` since then, as far as the device has come.
  [[nodiscard]] virtual double profile_seconds(StepSection section) = 0;
};

// The CPU: host memory, everything at once.
[[nodiscard]] std::unique_ptr<Device> make_cpu_device();

// `values` in memory of `device`. Errors: kResourceExhausted.
template <typename T>
[[nodiscard]] Result<Buffer> to_device(Device& device, std::span<const T> values) {
  TENON_ASSIGN_OR_RETURN(Buffer buffer, device.allocate(values.size_bytes()));
  if (!values.empty()) device.write(buffer.data(), values.data(), values.size_bytes());
  return buffer;
}

// The device for --device auto|cpu|cuda: auto takes the GPU if the build and the machine have a
// usable one. Defined beside the list of backends (src/backends.cc). Errors: kInvalidArgument
// (name), kUnsupported with the reason (no GPU, another architecture, an old driver, a build
// without CUDA).
[[nodiscard]] Result<std::unique_ptr<Device>> make_device(std::string_view name);

}  // namespace tenon
