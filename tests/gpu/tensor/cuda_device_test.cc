#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "tensor/cuda/cuda_check.h"
#include "tests/gpu.h"

namespace tenon {
namespace {

std::vector<int32_t> counting(size_t size) {
  std::vector<int32_t> values(size);
  std::iota(values.begin(), values.end(), 1);
  return values;
}

TEST(CudaDevice, MemoryArrivesZeroedAndCopiesKeepTheOrderOfTheStream) {
  TENON_GPU_OR_SKIP(device);
  constexpr size_t kCount = 1 << 20;
  constexpr size_t kBytes = kCount * sizeof(int32_t);
  auto memory = device->allocate(kBytes);
  auto host = device->allocate_host(2 * kBytes);
  ASSERT_TRUE(memory.ok() && host.ok());
  std::vector<int32_t> seen(kCount, -1);
  device->read(seen.data(), memory->data(), kBytes);
  EXPECT_EQ(seen, std::vector<int32_t>(kCount, 0));

  const std::vector<int32_t> values = counting(kCount);
  std::memcpy(host->data(), values.data(), kBytes);
  device->upload(memory->data(), host->data(), kBytes);
  device->download(host->data() + kBytes, memory->data(), kBytes);
  const auto fence = device->make_fence();
  fence->record();
  ASSERT_TRUE(fence->wait().ok());
  EXPECT_EQ(std::memcmp(host->data() + kBytes, values.data(), kBytes), 0);

  auto copy = to_device<int32_t>(*device, values);
  ASSERT_TRUE(copy.ok());
  device->read(seen.data(), copy->data(), kBytes);
  EXPECT_EQ(seen, values);
}

TEST(CudaDevice, TooMuchMemorySaysHowMuchThereIsAndHarmsNothing) {
  TENON_GPU_OR_SKIP(device);
  const auto memory = device->allocate(size_t{1} << 50);
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(memory.status().message().find("are free"), std::string::npos);
  EXPECT_TRUE(device->allocate(1 << 20).ok());
  EXPECT_TRUE(device->synchronize().ok());
}

TEST(CudaDevice, AGraphReplaysWhatWasCapturedOnTheDataOfTheMoment) {
  TENON_GPU_OR_SKIP(device);
  constexpr size_t kCount = 1000;
  constexpr size_t kBytes = kCount * sizeof(int32_t);
  auto from = device->allocate(kBytes);
  auto to = device->allocate(kBytes);
  ASSERT_TRUE(from.ok() && to.ok());
  ASSERT_TRUE(device->begin_capture().ok());
  device->note(
      cudaMemcpyAsync(to->data(), from->data(), kBytes, cudaMemcpyDeviceToDevice, device->stream()),
      "copy");
  auto graph = device->end_capture();
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  const std::vector<int32_t> values = counting(kCount);
  device->write(from->data(), values.data(), kBytes);
  std::vector<int32_t> seen(kCount);
  device->read(seen.data(), to->data(), kBytes);
  EXPECT_EQ(seen, std::vector<int32_t>(kCount, 0)) << "captured work must not run";
  (*graph)->launch();
  device->read(seen.data(), to->data(), kBytes);
  EXPECT_EQ(seen, values);
}

TEST(CudaDevice, TheSideStreamForksAndJoins) {
  TENON_GPU_OR_SKIP(device);
  constexpr size_t kBytes = size_t{64} << 20;
  auto a = device->allocate(kBytes);
  auto b = device->allocate(kBytes);
  ASSERT_TRUE(a.ok() && b.ok());
  for (int value = 1; value < 20; ++value) {
    device->note(cudaMemsetAsync(a->data(), value, kBytes, device->stream()), "set");
    device->fork_side();
    device->note(cudaMemcpyAsync(b->data(), a->data(), kBytes, cudaMemcpyDeviceToDevice,
                                 device->side_stream()),
                 "copy");
    device->join_side();
    device->note(cudaMemsetAsync(a->data(), 0, kBytes, device->stream()), "set");
    std::vector<std::byte> seen(kBytes);
    device->read(seen.data(), b->data(), kBytes);
    EXPECT_EQ(seen.front(), static_cast<std::byte>(value));
    EXPECT_EQ(seen.back(), static_cast<std::byte>(value));
  }
  EXPECT_TRUE(device->status().ok());
}

TEST(CudaDevice, AProfileAddsUpTheSections) {
  TENON_GPU_OR_SKIP(device);
  constexpr size_t kBytes = size_t{256} << 20;
  auto memory = device->allocate(kBytes);
  ASSERT_TRUE(memory.ok());
  const auto work = [&] {
    device->note(cudaMemsetAsync(memory->data(), 1, kBytes, device->stream()), "set");
  };
  work();
  ASSERT_TRUE(device->synchronize().ok());
  const auto timer = device->make_timer();
  device->start_profile();
  timer->start();
  for (int i = 0; i < 10; ++i) {
    device->enter(StepSection::kLinear);
    work();
    work();
    device->enter(StepSection::kAttention);
    work();
    device->enter(StepSection::kBetweenSteps);
  }
  timer->stop();
  ASSERT_TRUE(device->synchronize().ok());
  const double linear = device->profile_seconds(StepSection::kLinear);
  const double attention = device->profile_seconds(StepSection::kAttention);
  EXPECT_GT(attention, 0);
  EXPECT_NEAR(linear / attention, 2.0, 0.8);
  EXPECT_LE(linear + attention, timer->seconds() * 1.1);
}

TEST(CudaStatus, NamesTheCallAndTheError) {
  EXPECT_TRUE(cuda_status(cudaSuccess, "x").ok());
  EXPECT_EQ(cuda_status(cudaErrorMemoryAllocation, "x").code(), StatusCode::kResourceExhausted);
  const Status status = cuda_status(cudaErrorIllegalAddress, "rms_norm");
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_NE(status.message().find("rms_norm"), std::string::npos);
  EXPECT_NE(status.message().find("cudaErrorIllegalAddress"), std::string::npos);
}

}  // namespace
}  // namespace tenon
