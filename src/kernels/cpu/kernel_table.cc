#include "kernels/cpu/kernel_table.h"

#include <vector>

namespace tenon::cpu {
namespace {

#if defined(__x86_64__)
bool cpu_has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("avx");
}
bool cpu_has_avx512() {
  return cpu_has_avx2() && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}
#else
bool cpu_has_avx2() {
  return false;
}
bool cpu_has_avx512() {
  return false;
}
#endif

}  // namespace

std::span<const KernelTable* const> available_kernels() {
  static const std::vector<const KernelTable*> tables = [] {
    std::vector<const KernelTable*> found = {portable_kernels()};
    if (cpu_has_avx2() && avx2_kernels() != nullptr) found.push_back(avx2_kernels());
    if (cpu_has_avx512() && avx512_kernels() != nullptr) found.push_back(avx512_kernels());
    return found;
  }();
  return tables;
}

const KernelTable* find_kernels(std::string_view isa) {
  const auto tables = available_kernels();
  if (isa == "auto") return tables.back();
  for (const KernelTable* table : tables) {
    if (table->isa == isa) return table;
  }
  return nullptr;
}

}  // namespace tenon::cpu
