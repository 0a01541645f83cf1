#include "kernels/cpu/kernel_table.h"

namespace tenon::cpu {

const KernelTable* avx512_kernels() { return nullptr; }

}  // namespace tenon::cpu
