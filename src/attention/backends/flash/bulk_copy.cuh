// Copies into shared memory that run by themselves (bulk, tensor, 16 bytes at a time), and the
// mbarriers that tell of the former's end (sm_90). Thin: one function an instruction, named after
// it. PTX ISA 8.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <cstdio>

namespace tenon::flash::ptx {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- mbarriers: named by their shared-memory address ----

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ bool barrier_try(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}
// Until the phase of `parity` is over. With TENON_FLASH_TRAP defined a wait of about a second ends
// the kernel with the barrier's name: a hang on the device is otherwise silent.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
#ifdef TENON_FLASH_TRAP
  const int64_t begin = clock64();
  while (!barrier_try(barrier, parity)) {
    if (clock64() - begin > 1'500'000'000) {
      printf("block %d thread %d waits for barrier %u parity %u\n", blockIdx.x, threadIdx.x,
             barrier, parity);
      __trap();
    }
  }
#else
  while (!barrier_try(barrier, parity)) {
  }
#endif
}

// ---- copies into shared memory ----

// Ordinary writes to shared memory become visible to wgmma and the bulk copies.
__device__ __forceinline__ void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(map)) : "memory");
}
__device__ __forceinline__ void tma_load_3d(
    uint32_t to, const CUtensorMap* map, uint32_t barrier, int c0, int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(barrier), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}
__device__ __forceinline__ void tma_load_4d(
    uint32_t to, const CUtensorMap* map, uint32_t barrier, int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
// All of the first three dimensions.
__device__ __forceinline__ void tma_load_5d(
    uint32_t to, const CUtensorMap* map, uint32_t barrier, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%5, %5, %5, %3, %4}], [%2];" ::"r"(to),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(barrier), "r"(c3), "r"(c4), "r"(0)
      : "memory");
}
// `bytes` in a row, a multiple of 16.
__device__ __forceinline__ void bulk_load(uint32_t to,
                                          const void* from,
                                          uint32_t bytes,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
// 16 bytes, or 16 zero bytes.
__device__ __forceinline__ void copy_16(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
// The same of memory that is read once, in order: the L2 cache fetches whole lines, which brings 3
// % more of the memory's bandwidth.
__device__ __forceinline__ void copy_16_of_line(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
// 4 bytes, or 4 zero bytes.
__device__ __forceinline__ void copy_4(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 4 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
__device__ __forceinline__ void store_shared_zero_16(uint32_t to) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
}

}  // namespace tenon::flash::ptx
