// For tests that need a GPU: they skip, with the reason, where there is none.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "tensor/cuda/cuda_device.h"

namespace tenon::testing {

// One device for all tests of a program; nullptr and why without a usable GPU.
inline Result<CudaDevice*> gpu() {
  static const Result<std::unique_ptr<CudaDevice>> device = CudaDevice::create();
  if (!device.ok()) return device.status();
  return device->get();
}

}  // namespace tenon::testing

// In a test body: declares `name` or skips.
#define TENON_GPU_OR_SKIP(name)                                                         \
  auto name##_or = ::tenon::testing::gpu();                                             \
  if (!name##_or.ok()) GTEST_SKIP() << "needs a GPU: " << name##_or.status().message(); \
  ::tenon::CudaDevice* const name = *name##_or
