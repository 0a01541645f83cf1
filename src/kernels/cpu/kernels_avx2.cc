#include "kernels/cpu/kernel_table.h"

namespace tenon::cpu {

const KernelTable* avx2_kernels() { return nullptr; }

}  // namespace tenon::cpu
