// The ceilings of a device at this moment, to be printed beside every measured rate: a number
// without them says little on a machine that is shared or throttles.
//
// Thread safety: as the device and the pool.
#pragma once

#include <string>

#include "base/status.h"
#include "base/thread_pool.h"
#include "tensor/device.h"

namespace tenon {

struct Ceilings {
  double read_bytes_per_second = 0;  // of memory far larger than the caches, read only
  double flops_per_second = 0;
  std::string flops_name;  // what ran: "f32 FMA", "cuBLASLt bf16 8192^3"
};

// Takes some seconds on a GPU, so that its clocks are those of sustained work. Defined beside the
// list of devices (src/backends.cc). Errors: kResourceExhausted; the device's.
[[nodiscard]] Result<Ceilings> measure_ceilings(Device& device, ThreadPool& pool);

}  // namespace tenon
