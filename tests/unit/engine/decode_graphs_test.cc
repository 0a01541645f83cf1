#include "engine/decode_graphs.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "base/status.h"

namespace tenon {
namespace {

// Records what was captured; a graph appends its size to `launched`.
class RecordingDevice final : public Device {
 public:
  class Graph final : public DeviceGraph {
   public:
    Graph(RecordingDevice* device, int32_t size) : device_(device), size_(size) {}
    void launch() override { device_->launched.push_back(size_); }

   private:
    RecordingDevice* device_;
    int32_t size_;
  };

  [[nodiscard]] DeviceType type() const override { return DeviceType::kCpu; }
  [[nodiscard]] const DeviceInfo& info() const override { return info_; }
  Result<Buffer> allocate(size_t bytes) override { return Buffer(bytes); }
  Result<Buffer> allocate_host(size_t bytes) override { return Buffer(bytes); }
  [[nodiscard]] int64_t available_bytes() const override { return 0; }
  void upload(void*, const void*, size_t) override {}
  void download(void*, const void*, size_t) override {}
  void write(void*, const void*, size_t) override {}
  void read(void*, const void*, size_t) override {}
  std::unique_ptr<Fence> make_fence() override { return nullptr; }
  std::unique_ptr<StreamTimer> make_timer() override { return nullptr; }
  Status synchronize() override { return ok_status(); }
  [[nodiscard]] Status status() const override { return ok_status(); }
  Status begin_capture() override {
    EXPECT_FALSE(std::exchange(capturing, true));
    return ok_status();
  }
  Result<std::unique_ptr<DeviceGraph>> end_capture() override {
    EXPECT_TRUE(std::exchange(capturing, false));
    return std::unique_ptr<DeviceGraph>(std::make_unique<Graph>(this, enqueued));
  }
  void enter(StepSection) override {}
  void start_profile() override {}
  double profile_seconds(StepSection) override { return 0; }

  bool capturing = false;
  int32_t enqueued = 0;
  std::vector<int32_t> launched;

 private:
  DeviceInfo info_;
};

TEST(DecodeGraphs, EveryBatchHasASizeThatHoldsItWithLittlePadding) {
  RecordingDevice device;
  DecodeGraphs graphs;
  DecodeGraphs::Step step;
  int32_t planned = 0;
  step.plan = [&](int32_t size) {
    EXPECT_FALSE(device.capturing) << "what happens anew each time must not be captured";
    planned = size;
    return ok_status();
  };
  step.enqueue = [&](int32_t size) {
    EXPECT_TRUE(device.capturing);
    EXPECT_EQ(planned, size);
    device.enqueued = size;
    return ok_status();
  };
  ASSERT_TRUE(graphs.capture(&device, 250, step).ok());
  for (int32_t rows = 1; rows <= 250; ++rows) {
    const int32_t size = graphs.size_for(rows);
    EXPECT_GE(size, rows);
    EXPECT_LT(size - rows, 16);
    graphs.launch(size);
    EXPECT_EQ(device.launched.back(), size);
  }
  EXPECT_EQ(graphs.size_for(1), 1);
  EXPECT_EQ(graphs.size_for(250), 250);
  EXPECT_EQ(graphs.size_for(251), 0) << "more rows than were captured: no graph";
}

TEST(DecodeGraphs, AStepThatCannotBeEnqueuedEndsTheCapture) {
  RecordingDevice device;
  DecodeGraphs graphs;
  DecodeGraphs::Step step;
  step.plan = [](int32_t) { return ok_status(); };
  step.enqueue = [](int32_t size) {
    return size < 4 ? ok_status() : internal_error("a kernel failed");
  };
  EXPECT_EQ(graphs.capture(&device, 8, step).message(), "a kernel failed");
  EXPECT_FALSE(device.capturing) << "the stream must not stay in capture mode";
}

TEST(DecodeGraphs, NoneBeforeACapture) {
  EXPECT_EQ(DecodeGraphs().size_for(1), 0);
}

}  // namespace
}  // namespace tenon
