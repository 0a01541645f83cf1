#include "kernels/cpu/make_kernel_table.h"
#include "kernels/cpu/vec_portable.h"

namespace tenon::cpu {

const KernelTable* portable_kernels() {
  static constexpr KernelTable kTable = make_kernel_table<VecPortable>();
  return &kTable;
}

}  // namespace tenon::cpu
