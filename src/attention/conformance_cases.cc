// The cases; conformance.cc runs them.
#include "attention/conformance.h"

namespace tenon {
namespace {

constexpr int32_t kHeadDims[] = {32, 64, 72, 80, 96, 128, 192, 256};
constexpr int32_t kGroups[] = {1, 2, 3, 4, 5, 7, 8, 16};
constexpr int32_t kBlockSizes[] = {1, 8, 16, 32};
constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
constexpr KvLayout kLayouts[] = {KvLayout::kLBHNC, KvLayout::kLBNHC, KvLayout::kBLHNC};
// Around a vector, a tile, a page.
constexpr int32_t kWindows[] = {1, 7, 16, 64, 100};
const char* const kMixed = "3q1s70_q5s37_q20s41_q33";
// Decode, prefill, chunked prefill, mixed, rows without keys or queries, rows long enough to split.
const char* const kBatches[] = {"q1s1",
                                "q1",
                                "q0",
                                "q2s0",
                                "16q1s100",
                                "q1s512_q1s513",
                                "q1s1400",
                                "q65",
                                "q130",
                                "q64s64_q1s64",
                                "q63s200",
                                "q2s600_q4s1100",
                                "q40s1060",
                                "q1s4_q2s0_q1s7_q0s4",
                                "q1s2000_8q1s5_q30"};

std::vector<ConformanceCase> quick_cases() {
  std::vector<ConformanceCase> cases;
  const auto add = [&](auto&& change) {
    ConformanceCase c;
    c.batch = kMixed;
    change(c);
    cases.push_back(c);
  };
  for (const char* batch : kBatches) {
    add([&](ConformanceCase& c) { c.batch = batch; });
  }
  for (const int32_t dim : kHeadDims) {
    add([&](ConformanceCase& c) { c.head_dim_qk = c.head_dim_v = dim; });
  }
  for (const int32_t dim : {1, 3, 17}) {
    add([&](ConformanceCase& c) { c.head_dim_qk = c.head_dim_v = dim; });
  }
  add([](ConformanceCase& c) { c.head_dim_qk = 192, c.head_dim_v = 128; });
  add([](ConformanceCase& c) { c.head_dim_qk = 24, c.head_dim_v = 72, c.kv_dtype = DType::kF32; });
  for (const int32_t group : kGroups) {
    add([&](ConformanceCase& c) { c.num_q_heads = 2 * group; });
  }
  add([](ConformanceCase& c) { c.num_q_heads = 40, c.num_kv_heads = 1; });
  for (const DType dtype : kDTypes) {
    for (const int32_t block_size : kBlockSizes) {
      add([&](ConformanceCase& c) { c.kv_dtype = dtype, c.block_size = block_size; });
    }
    for (const KvLayout layout : kLayouts) {
      add([&](ConformanceCase& c) { c.kv_dtype = dtype, c.layout = layout, c.head_dim_qk = 72; });
    }
  }
  for (const int32_t window : kWindows) {
    add([&](ConformanceCase& c) {
      c.batch = "q1s1100_q1s90_q30s85_q140", c.sliding_window = window;
    });
  }
  add([](ConformanceCase& c) { c.soft_cap = 2.0F; });
  add([](ConformanceCase& c) { c.soft_cap = 20.0F, c.sliding_window = 33; });
  add([](ConformanceCase& c) { c.causal = false; });
  add([](ConformanceCase& c) { c.k_scale = 0.5F, c.v_scale = 4.0F, c.kv_dtype = DType::kBF16; });
  return cases;
}

std::vector<ConformanceCase> full_cases() {
  std::vector<ConformanceCase> cases = quick_cases();
  int turn = 0;  // walks through the small axes while the large ones are multiplied
  for (const int32_t dim : kHeadDims) {
    for (const int32_t group : kGroups) {
      for (const char* batch : kBatches) {
        ConformanceCase c;
        c.batch = batch;
        c.head_dim_qk = c.head_dim_v = dim;
        c.num_q_heads = 2 * group;
        const int pick = turn++;
        c.kv_dtype = kDTypes[pick % 3];
        c.block_size = kBlockSizes[pick / 3 % 4];
        c.layout = kLayouts[pick / 5 % 3];
        if (pick % 4 == 1) c.sliding_window = kWindows[pick / 4 % 5];
        if (pick % 5 == 2) c.soft_cap = 15.0F;
        if (pick % 7 == 3 && !c.sliding_window) c.causal = false;
        cases.push_back(c);
      }
    }
  }
  return cases;
}

}  // namespace

std::vector<ConformanceCase> conformance_cases(ConformanceLevel level) {
  return level == ConformanceLevel::kQuick ? quick_cases() : full_cases();
}

std::string describe_case(const ConformanceCase& c) {
  std::string text =
      fmt::format("{} heads {}/{} dim {}/{} {} {} block {}", c.batch, c.num_q_heads, c.num_kv_heads,
                  c.head_dim_qk, c.head_dim_v, dtype_traits(c.kv_dtype).name,
                  kv_layout_name(c.layout), c.block_size);
  if (!c.causal) text += " non-causal";
  if (c.sliding_window) text += fmt::format(" window {}", *c.sliding_window);
  if (c.soft_cap > 0) text += fmt::format(" cap {}", c.soft_cap);
  if (c.k_scale != 1 || c.v_scale != 1) text += fmt::format(" scales {}/{}", c.k_scale, c.v_scale);
  return text;
}

}  // namespace tenon
