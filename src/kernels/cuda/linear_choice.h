// Which of three ways a linear layer takes on a GPU, by shape, as measured (docs in
// linear_choice.cc).
#pragma once

#include <cstdint>

#include "kernels/cuda/skinny_linear.h"

namespace tenon {

enum class LinearKernel : uint8_t { kCublasLt, kSkinny, kRows };

[[nodiscard]] LinearKernel choose_linear_kernel(const SkinnyLinearArgs& args);

}  // namespace tenon
