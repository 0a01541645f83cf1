#include "kernels/cuda/linear_choice.h"

#include "kernels/cuda/streamed_linear.h"

namespace tenon {
namespace {

// Below it a layer takes a few microseconds whatever the kernel does, and the one with the shortest
// way through wins; above it, the one that keeps memory busy.
constexpr int64_t kStreamedBytes = int64_t{16} << 20;
constexpr int64_t kSkinnyTokens = 16;

}  // namespace

// Measured on an H200 with bench/cuda/linear_bench.
LinearKernel choose_linear_kernel(const SkinnyLinearArgs& args) {
  if (args.n * args.k * 2 >= kStreamedBytes) {
    return can_run_streamed_linear(args) ? LinearKernel::kStreamed : LinearKernel::kCublasLt;
  }
  const bool skinny = args.tokens <= kSkinnyTokens && can_run_skinny_linear(args);
  return skinny ? LinearKernel::kSkinny : LinearKernel::kCublasLt;
}

}  // namespace tenon
