// Merging partial attention results over disjoint sets of keys: what split-KV and cascade rest on.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <span>

namespace tenon {

// a := the softmax-weighted union of a and b, for one (row, head): out[dim] are normalised outputs,
// lse natural log. An empty side (lse -inf) changes nothing, whatever its out holds; two empties
// give out 0, lse -inf.
void merge_states(std::span<float> out_a, float& lse_a, std::span<const float> out_b, float lse_b);

}  // namespace tenon
