// Rotary position embedding tables (RoFormer, arXiv:2104.09864). Plain data.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tenon {

// cos and sin for every position: cos[position * rotary_dim / 2 + i]. Memory of the Ops' device.
struct RopeView {
  int32_t rotary_dim = 0;
  bool interleaved =
      false;  // pairs (2i, 2i+1) as GGUF's llama stores them; false: NeoX (i, i + rotary_dim/2)
  std::span<const float> cos, sin;
};

// The same in host memory.
struct RopeTable {
  int32_t rotary_dim = 0;
  bool interleaved = false;
  std::vector<float> cos, sin;

  operator RopeView() const { return {rotary_dim, interleaved, cos, sin}; }  // NOLINT: a view of it
};

}  // namespace tenon
