#include "kernels/cuda/linear_choice.h"

namespace tenon {
namespace {

// Up to here a layer takes a few microseconds, and the kernel with the shortest way through wins.
constexpr int64_t kSmallBytes = int64_t{48} << 20;
constexpr int64_t kSkinnyTokens = 16;

}  // namespace

// Measured on an H200 with bench/cuda/linear_bench.
LinearKernel choose_linear_kernel(const SkinnyLinearArgs& args) {
  const bool skinny = args.n * args.k * 2 < kSmallBytes && args.tokens <= kSkinnyTokens &&
                      can_run_skinny_linear(args);
  return skinny ? LinearKernel::kSkinny : LinearKernel::kCublasLt;
}

}  // namespace tenon
