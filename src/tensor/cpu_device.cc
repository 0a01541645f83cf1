// The CPU as a Device: what is enqueued has happened when the call returns.
#include <array>
#include <cstring>

#include "base/clock.h"
#include "base/host_memory.h"
#include "tensor/device.h"

namespace tenon {
namespace {

class CpuFence final : public Fence {
 public:
  void record() override {}
  Status wait() override { return ok_status(); }
};

class CpuTimer final : public StreamTimer {
 public:
  void start() override { begin_ = now_seconds(); }
  void stop() override { end_ = now_seconds(); }
  double seconds() override { return end_ - begin_; }

 private:
  double begin_ = 0, end_ = 0;
};

class CpuDevice final : public Device {
 public:
  CpuDevice() { info_.name = "cpu"; }

  [[nodiscard]] DeviceType type() const override { return DeviceType::kCpu; }
  [[nodiscard]] const DeviceInfo& info() const override { return info_; }

  Result<Buffer> allocate(size_t bytes) override {
    Buffer buffer = Buffer::try_allocate(bytes);
    if (bytes > 0 && buffer.data() == nullptr) {
      return resource_exhausted("no memory for {} bytes", bytes);
    }
    return buffer;
  }
  Result<Buffer> allocate_host(size_t bytes) override { return allocate(bytes); }
  [[nodiscard]] int64_t available_bytes() const override { return available_memory_bytes(); }

  void upload(void* device, const void* host, size_t bytes) override { copy(device, host, bytes); }
  void download(void* host, const void* device, size_t bytes) override {
    copy(host, device, bytes);
  }
  void write(void* device, const void* host, size_t bytes) override { copy(device, host, bytes); }
  void read(void* host, const void* device, size_t bytes) override { copy(host, device, bytes); }

  std::unique_ptr<Fence> make_fence() override { return std::make_unique<CpuFence>(); }
  std::unique_ptr<StreamTimer> make_timer() override { return std::make_unique<CpuTimer>(); }
  Status synchronize() override { return ok_status(); }
  [[nodiscard]] Status status() const override { return ok_status(); }

  Status begin_capture() override { return unsupported("the CPU has no graphs"); }
  Result<std::unique_ptr<DeviceGraph>> end_capture() override {
    return unsupported("the CPU has no graphs");
  }

  void enter(StepSection section) override {
    if (!profiling_) return;
    const double now = now_seconds();
    seconds_[static_cast<size_t>(section_)] += now - since_;
    section_ = section;
    since_ = now;
  }
  void start_profile() override {
    seconds_ = {};
    section_ = StepSection::kBetweenSteps;
    since_ = now_seconds();
    profiling_ = true;
  }
  double profile_seconds(StepSection section) override {
    return seconds_[static_cast<size_t>(section)];
  }

 private:
  static void copy(void* to, const void* from, size_t bytes) {
    if (to != from && bytes > 0) std::memcpy(to, from, bytes);
  }

  DeviceInfo info_;
  bool profiling_ = false;
  StepSection section_ = StepSection::kBetweenSteps;
  double since_ = 0;
  std::array<double, kNumStepSections> seconds_{};
};

}  // namespace

std::unique_ptr<Device> make_cpu_device() {
  return std::make_unique<CpuDevice>();
}

}  // namespace tenon
