// GCC 12 takes the deliberately undefined operands inside its own AVX-512 intrinsics for mistakes.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include "kernels/cpu/make_kernel_table.h"

#if defined(__x86_64__)
#include "kernels/cpu/vec_avx512.h"
#endif

namespace tenon::cpu {

const KernelTable* avx512_kernels() {
#if defined(__x86_64__)
  static constexpr KernelTable kTable = make_kernel_table<VecAvx512>();
  return &kTable;
#else
  return nullptr;
#endif
}

}  // namespace tenon::cpu
