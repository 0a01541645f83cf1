#include "kernels/cpu/make_kernel_table.h"

#if defined(__x86_64__)
#include "kernels/cpu/vec_avx2.h"
#endif

namespace tenon::cpu {

const KernelTable* avx2_kernels() {
#if defined(__x86_64__)
  static constexpr KernelTable kTable = make_kernel_table<VecAvx2>();
  return &kTable;
#else
  return nullptr;
#endif
}

}  // namespace tenon::cpu
