// The PTX that the prefill kernel is built from besides bulk_copy.cuh: named barriers, warpgroup
// matrix products (sm_90a). Thin: one function an instruction, named after it.
#pragma once

#include <cstdint>

#include "attention/backends/flash/bulk_copy.cuh"

namespace tenon::flash::ptx {

// ---- named barriers of warps ----

__device__ __forceinline__ void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

template <int kRegisters>
__device__ __forceinline__ void registers_raise() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void registers_lower() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

__device__ __forceinline__ void store_shared_if_negative(uint32_t to, float value) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.lt.f32 p, %1, 0f00000000;\n"
      "@p st.shared.f32 [%0], %1;\n"
      "}\n" ::"r"(to),
      "f"(value)
      : "memory");
}

__device__ __forceinline__ void store_shared_16(uint32_t to, const uint32_t (&words)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]), "r"(words[1]),
               "r"(words[2]), "r"(words[3])
               : "memory");
}

__device__ __forceinline__ void store_shared_float(uint32_t to, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
}
__device__ __forceinline__ float2 load_shared_float2(uint32_t from) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(pair.x), "=f"(pair.y)
               : "r"(from)
               : "memory");
  return pair;
}

// ---- arithmetic ----

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Two floats as two 16-bit numbers, `low` in the lower half.
template <bool kBf16>
__device__ __forceinline__ uint32_t pack_16(float low, float high) {
  uint32_t packed;
  if constexpr (kBf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  }
  return packed;
}

// ---- warpgroup matrix products ----

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// The compiler takes a wgmma's results for ready where the instruction stands; this makes every use
// of `values` depend on the place of the call, which is after the wait.
template <int N>
__device__ __forceinline__ void pin(float (&values)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(values[i])::"memory");
}
template <int N>
__device__ __forceinline__ void pin(uint32_t (&values)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(values[i])::"memory");
}

// Shared-memory operands are made of atoms of 8 rows of 64 16-bit numbers (128 bytes a row, 1024 an
// atom), swizzled as the bulk copies do in 128-byte mode. `group_bytes`: from 8 rows to the next 8.
//
// K-major (the 64 numbers run along the summed dimension): rows are outputs; the step to the next
// 16 summed elements is 32 bytes. MN-major (the 64 numbers run along the output dimension): rows
// are summed, 16 of them are a step; the next 64 outputs are `slice_bytes` away.
constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
__device__ __forceinline__ uint64_t k_major_operand(uint32_t address, uint32_t group_bytes) {
  return kSwizzle128 | (uint64_t{group_bytes >> 4} << 32) | (uint64_t{1} << 16) |
         ((address & 0x3FFFF) >> 4);
}
__device__ __forceinline__ uint64_t mn_major_operand(uint32_t address,
                                                     uint32_t group_bytes,
                                                     uint32_t slice_bytes) {
  return kSwizzle128 | (uint64_t{group_bytes >> 4} << 32) | (uint64_t{slice_bytes >> 4} << 16) |
         ((address & 0x3FFFF) >> 4);
}

// d[64, N] (+)= a[64, 16] * b[16, N], f32 accumulators. ss(): a K-major and b K-major in shared
// memory; rs(): a in registers, b MN-major in shared memory. `add` false: d is overwritten. Thread
// t of the warpgroup holds d[4 j + {0, 1}] = rows 16 (t / 32) + t % 32 / 4, columns 8 j + 2 (t % 4)
// + {0, 1}, and d[4 j + {2, 3}] the same 8 rows below.
template <int N, bool kBf16>
struct Wgmma;

#define TENON_D16(i)                                                                          \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7]), "+f"(d[i + 8]), "+f"(d[i + 9]), "+f"(d[i + 10]),        \
      "+f"(d[i + 11]), "+f"(d[i + 12]), "+f"(d[i + 13]), "+f"(d[i + 14]), "+f"(d[i + 15])
#define TENON_D32 TENON_D16(0), TENON_D16(16)
#define TENON_D48 TENON_D32, TENON_D16(32)
#define TENON_D64 TENON_D48, TENON_D16(48)
#define TENON_D80 TENON_D64, TENON_D16(64)
#define TENON_D96 TENON_D80, TENON_D16(80)
#define TENON_D112 TENON_D96, TENON_D16(96)
#define TENON_D128 TENON_D112, TENON_D16(112)
#define TENON_L32                                                                              \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24," \
  "%25,%26,%27,%28,%29,%30,%31"
#define TENON_L48 TENON_L32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define TENON_L64 TENON_L48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define TENON_L80 TENON_L64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define TENON_L96 TENON_L80 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define TENON_L112 \
  TENON_L96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define TENON_L128 \
  TENON_L112 ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// R: accumulators of a thread, N / 2; I0 to I5: R, R + 1, ... (assembler operands count from the
// outputs).
#define TENON_WGMMA(N, R, IS_BF16, TYPE, I0, I1, I2, I3, I4, I5)                                   \
  template <>                                                                                      \
  struct Wgmma<N, IS_BF16> {                                                                       \
    static __device__ __forceinline__ void ss(float (&d)[R], uint64_t a, uint64_t b, bool add) {   \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #I2                                        \
                   ", 0;\n"                                                                        \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" TENON_L##R \
                   "}, %" #I0 ", %" #I1 ", p, 1, 1, 0, 0;\n}\n"                                    \
                   : TENON_D##R                                                                    \
                   : "l"(a), "l"(b), "r"(static_cast<int>(add)));                                  \
    }                                                                                              \
    static __device__ __forceinline__ void rs(float (&d)[R],                                       \
                                              const uint32_t* a,                                   \
                                              uint64_t b,                                          \
                                              bool add) {                                          \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #I5                                        \
                   ", 0;\n"                                                                        \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" TENON_L##R \
                   "}, {%" #I0 ", %" #I1 ", %" #I2 ", %" #I3 "}, %" #I4 ", p, 1, 1, 1;\n}\n"       \
                   : TENON_D##R                                                                    \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                           \
                     "r"(static_cast<int>(add)));                                                  \
    }                                                                                              \
  };
#define TENON_WGMMA_TYPES(N, R, I0, I1, I2, I3, I4, I5)   \
  TENON_WGMMA(N, R, true, "bf16", I0, I1, I2, I3, I4, I5) \
  TENON_WGMMA(N, R, false, "f16", I0, I1, I2, I3, I4, I5)

TENON_WGMMA_TYPES(64, 32, 32, 33, 34, 35, 36, 37)
TENON_WGMMA_TYPES(96, 48, 48, 49, 50, 51, 52, 53)
TENON_WGMMA_TYPES(128, 64, 64, 65, 66, 67, 68, 69)
TENON_WGMMA_TYPES(160, 80, 80, 81, 82, 83, 84, 85)
TENON_WGMMA_TYPES(192, 96, 96, 97, 98, 99, 100, 101)
TENON_WGMMA_TYPES(224, 112, 112, 113, 114, 115, 116, 117)
TENON_WGMMA_TYPES(256, 128, 128, 129, 130, 131, 132, 133)

#undef TENON_WGMMA_TYPES
#undef TENON_WGMMA
#undef TENON_L32
#undef TENON_L48
#undef TENON_L64
#undef TENON_L80
#undef TENON_L96
#undef TENON_L112
#undef TENON_L128
#undef TENON_D16
#undef TENON_D32
#undef TENON_D48
#undef TENON_D64
#undef TENON_D80
#undef TENON_D96
#undef TENON_D112
#undef TENON_D128

}  // namespace tenon::flash::ptx
