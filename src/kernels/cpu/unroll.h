// Straight code for short loops: tiles keep arrays of vectors in registers only if their loops are
// gone.
#pragma once

#include <type_traits>
#include <utility>

namespace tenon::cpu {

// Calls fn(integral_constant<int, i>) for i = 0..kCount-1.
template <int kCount, typename Fn>
[[gnu::always_inline]] inline void unrolled(Fn&& fn) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) __attribute__((always_inline)) {
    (fn(std::integral_constant<int, kIndex>()), ...);
  }
  (std::make_integer_sequence<int, kCount>());
}

}  // namespace tenon::cpu
