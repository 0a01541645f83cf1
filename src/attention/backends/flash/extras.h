// What a layer may ask of the kernels besides plain attention, and what its pages may hold: shared
// by the decode and the prefill kernel.
#pragma once

#include <cstdint>

namespace tenon::flash {

// What the pages hold.
enum class Cells : uint8_t {
  kHalf,  // the type of q
  kF8,    // e4m3
  kI8,    // integers of at most 127, with scales by token and head
};

// Pointers are to device memory.
struct Extras {
  static constexpr int32_t kNoWindow = 1 << 30;

  int32_t window = kNoWindow;       // keys seen: query position - key position < window
  float soft_cap = 0.0F;            // of scores; 0: none
  float two_over_cap = 0.0F;        // 2 / soft_cap
  const float* alibi = nullptr;     // [num_q_heads] slopes; null: none
  const float* sinks = nullptr;     // [num_q_heads] additional scores; null: none
  const float* k_scales = nullptr;  // [num_kv_heads] of cells, on top of all heads'; null: none
  const float* v_scales = nullptr;

  void set_soft_cap(float cap) {
    soft_cap = cap;
    two_over_cap = cap > 0.0F ? 2.0F / cap : 0.0F;
  }
};

}  // namespace tenon::flash
