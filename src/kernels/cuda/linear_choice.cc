#include "kernels/cuda/linear_choice.h"

#include "kernels/cuda/row_linear.h"

namespace tenon {
namespace {

// Up to here a layer takes a few microseconds, and the kernel with the shortest way through wins.
constexpr int64_t kSmallBytes = int64_t{48} << 20;
constexpr int64_t kSmallTokens = 16;
// Above it, the own kernels gain where they can keep more loads in flight than cuBLASLt does:
// whole rows for one token, unless a row is so long that a warp needs many steps for it; blocks of
// columns for a few tokens, for long rows and for very large weights.
constexpr int64_t kLargeTokens = 8;
constexpr int64_t kLongRow = 8192;
constexpr int64_t kVeryLargeBytes = int64_t{200} << 20;

}  // namespace

// Measured on an H200 with bench/cuda/linear_bench.
LinearKernel choose_linear_kernel(const SkinnyLinearArgs& args) {
  const int64_t bytes = args.n * args.k * 2;
  const bool skinny = can_run_skinny_linear(args);
  if (bytes < kSmallBytes) {
    return skinny && args.tokens <= kSmallTokens ? LinearKernel::kSkinny : LinearKernel::kCublasLt;
  }
  if (args.tokens == 1 && args.k < kLongRow && can_run_row_linear(args)) return LinearKernel::kRows;
  const bool gains = args.k >= kLongRow || bytes >= kVeryLargeBytes;
  return skinny && gains && args.tokens <= kLargeTokens ? LinearKernel::kSkinny
                                                        : LinearKernel::kCublasLt;
}

}  // namespace tenon
