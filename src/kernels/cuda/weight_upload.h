// Brings stored weights into device memory as 16-bit floats: threads convert into a ring of pinned
// buffers while the copies of earlier parts run.
//
// Ownership:     borrows device and pool; owns the ring, made when it is first needed.
// Thread safety: the engine thread only.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "kernels/ops.h"
#include "tensor/cuda/cuda_device.h"

namespace tenon {

class WeightUpload {
 public:
  WeightUpload(CudaDevice* device, ThreadPool* pool) : device_(device), pool_(pool) {}

  // Enqueues all rows of `source` as `dtype` (bf16 or f16) to `target`, dense. Returns when the
  // source has been read; its file pages are then dropped from memory. Errors: kResourceExhausted
  // (the ring), the device's.
  Status put(const WeightSource& source, DType dtype, std::byte* target);

  // Waits for the copies and gives the ring back.
  Status release();

 private:
  static constexpr int kSlots = 3;
  struct Slot {
    Buffer memory;
    std::unique_ptr<Fence> copied;
  };
  Status take_ring();
  void fill(
      const WeightSource& source, int64_t first_row, int64_t rows, DType dtype, std::byte* to);

  CudaDevice* device_;
  ThreadPool* pool_;
  std::array<Slot, kSlots> ring_;
  size_t next_ = 0;
  std::vector<std::vector<float>> decoded_;  // a stored row in f32, by thread
};

}  // namespace tenon
